"""A view's cached counts (slots, tightness, shared GPUs) equal those of a new view."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.place_cases import arrays, context, gang, node, view_of

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.tetris import Tetris

_NODES = [node(f"n{i}", gpus=i % 5, cpu=8 + 8 * i, max_jobs_per_gpu=3) for i in range(12)]
_DEMANDS = (Resources(4, 1, 8), Resources(1.5, 2, 0.3), Resources(6, 0, 1), Resources(0, 1), Resources())
_GROUP = TaskGroup(Role.WORKER, 1, _DEMANDS[0])

_tasks = st.tuples(st.integers(0, 11), st.sampled_from(_DEMANDS), st.integers(0, 5), st.booleans())
_steps = st.lists(st.tuples(st.integers(0, 5), st.lists(_tasks, min_size=1, max_size=4)), max_size=25)


def _running(number: int, tasks: list[tuple[int, Resources, int, bool]]) -> RunningJob:
    """A job as a host may report it: GPUs that are taken, or that the node does not have, among them."""
    job = Job(JobId(f"j{number}"), groups=(_GROUP,), gpu_sharing=GpuSharing(tasks[0][3], 2.0), model=f"m{number % 2}")
    assignments = tuple(
        Assignment(f"t{i}", Role.WORKER, NodeId(f"n{m}"), tuple(range(first, first + int(demand.gpus))), demand)
        for i, (m, demand, first, _) in enumerate(tasks)
    )
    return RunningJob(job, assignments)


@given(_steps)
@settings(deadline=None)
def test_rooms_that_are_kept_are_those_counted_anew(
    steps: list[tuple[int, list[tuple[int, Resources, int, bool]]]],
) -> None:
    view = view_of(_NODES)
    for number, tasks in steps:
        view.remove_job(JobId(f"j{number}"))
        if len(tasks) % 2:
            view.add_job(_running(number, tasks))
        fresh = view_of(_NODES, list(view.jobs.values()))
        for demand in _DEMANDS:
            vector = view.nodes.demand_vector(demand)
            assert vector is not None
            np.testing.assert_array_equal(view.slots.countable_slots(vector), fresh.slots.countable_slots(vector))
        np.testing.assert_array_equal(view.usage.tightness, fresh.usage.tightness)
        assert view.usage.shared_gpus == int((view.usage.gpu_tenant_count > 1).sum())


@given(st.lists(_tasks, min_size=1, max_size=6))
@settings(deadline=None)
def test_claims_taken_together_are_those_taken_one_by_one(tasks: list[tuple[int, Resources, int, bool]]) -> None:
    together, singly = view_of(_NODES), view_of(_NODES)
    running = _running(0, [(m // 6, demand, g, shares) for m, demand, g, shares in tasks])
    together.usage.claim_all(running.job, running.assignments)
    for assignment in running.assignments:
        singly.usage.claim(running.job, assignment)
    for name, value in arrays(together).items():
        np.testing.assert_array_equal(value, arrays(singly)[name], err_msg=name)
    assert [together.usage.first_free_gpus(m, 9) for m in range(12)] == [
        singly.usage.first_free_gpus(m, 9) for m in range(12)
    ]


class _ConsolidateOneByOne(Consolidate):
    """Decides every task for itself."""

    fills_nodes = False


class _TetrisOneByOne(Tetris):
    fills_nodes = is_by_node = False


_FILLING = ((Consolidate(), _ConsolidateOneByOne()), (Tetris(), _TetrisOneByOne()))


@given(st.integers(1, 30), st.sampled_from([1.0, 2.0, 0.0]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 1))
@settings(deadline=None)
def test_filling_a_node_in_one_step_places_as_task_by_task_does(
    workers: int, gpus: float, servers: int, most: int, policy: int
) -> None:
    job = gang(workers=workers, gpus=gpus, servers=servers, group={"max_per_node": most})
    taken = [(m, _DEMANDS[m % 3], m % 4, False) for m in range(0, 12, 1 + workers % 5)]
    view = view_of(_NODES, [_running(0, taken)])
    found = [scorer.propose(job, view, context()) for scorer in _FILLING[policy]]
    assert found[0] == found[1]
