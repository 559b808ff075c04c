"""Action ids of the policy net: there and back, and the mask."""

import pytest
from tests.fakes.place_cases import context, gang, node, running, view_of

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import NodeId, Role
from placewise_core.gang.actions import action_mask, action_of, actions_of, decode_action
from placewise_core.gang.policy import action_of as action_of_tasks
from placewise_core.policies.registry import placement_policies


@pytest.mark.parametrize("action", range(6))
def test_there_and_back(action: int) -> None:
    role, m = decode_action(action, 3)
    assert action_of(role, m, 3) == action


@pytest.mark.parametrize("action", [-1, 6])
def test_outside(action: int) -> None:
    with pytest.raises(IndexError):
        decode_action(action, 3)


def test_a_placement_as_actions() -> None:
    view = view_of([node("a", gpus=1), node("b", gpus=0)], [])
    proposal = placement_policies()["load-balance"].propose(gang(workers=1, servers=1), view, context())
    assert proposal is not None
    assert actions_of(proposal.assignments, view).tolist() == [0, 3]


def test_an_action_tells_equal_tasks_apart_and_no_gpus() -> None:
    def task(name: str, on: str, gpu: int) -> Assignment:
        return Assignment(name, Role.WORKER, NodeId(on), gpu_indices=(gpu,))

    placed = action_of_tasks([task("w0", "a", 0), task("w1", "b", 0)])
    assert placed == action_of_tasks([task("w1", "b", 3), task("w0", "a", 2)])
    assert placed != action_of_tasks([task("w0", "b", 0), task("w1", "a", 0)])


def test_the_mask_opens_what_fits_for_the_roles_left() -> None:
    view = view_of([node("a"), node("b", gpus=0), node("c")], [running("r", "c", [0, 1, 2, 3])])
    job, usable = gang(workers=1, servers=1), view.usable(1000.0)
    both = action_mask(job, view, usable, {Role.WORKER: 1, Role.PARAMETER_SERVER: 1})
    assert both.tolist() == [True, False, False, True, True, True]
    workers = action_mask(job, view, usable, {Role.WORKER: 1})
    assert workers.tolist() == [True, False, False, False, False, False]
