"""Explorers that look ahead: they never dead-end, and their propensities are those of the enumeration."""

import itertools

import numpy as np
import pytest
from tests.fakes.explored import AHEAD, everywhere
from tests.fakes.place_cases import context, gang, node, view_of
from tests.fakes.quick.examples import examples

from placewise_core.domain.job import GpuSharing, Job, JobId, Resources, Role, TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.policy import action_of
from placewise_core.policies.explorers import random_ahead
from placewise_core.policies.random_fit import Random
from placewise_core.view.view import ClusterView


def tight() -> ClusterView:
    """Four nodes, where a worker on a node with much CPU takes a server's only place."""
    return view_of(
        [node("a", gpus=1, cpu=4.9), node("b", gpus=1, cpu=4.9), node("c", gpus=1, cpu=3.9), node("d", gpus=1, cpu=3.9)]
    )


def pair(workers: int, servers: int) -> Job:
    """Workers of one GPU and one core, and servers of four cores."""
    groups = [TaskGroup(Role.WORKER, workers, Resources(1, 1, 8, 0, 1))]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(4, 0, 8, 0, 1)))
    return Job(JobId("job"), groups=tuple(groups))


TIGHT = [pair(workers, servers) for workers, servers in ((1, 0), (1, 1), (2, 1), (1, 2), (2, 2))]


def halves(count: int) -> Job:
    """Workers of half a GPU each, beside others if need be: counting alone does not say how many fit."""
    group = TaskGroup(Role.WORKER, count, Resources(1, 0.5, 8, 0, 1))
    return Job(JobId("job"), groups=(group,), gpu_sharing=GpuSharing(True, 4.0))


def shared() -> ClusterView:
    return view_of([node(name, gpus=1, max_jobs_per_gpu=2) for name in "abcd"])


CASES = [(job, tight()) for job in TIGHT] + [(halves(count), shared()) for count in (1, 2, 3)]
IDS = ["+".join(str(group.count) for group in job.groups) for job in TIGHT] + ["half", "two halves", "three halves"]


@pytest.mark.parametrize("walked", [1024, 20, 1])
@pytest.mark.parametrize(("job", "view"), CASES, ids=IDS)
def test_looking_ahead_sums_to_one_and_never_fails(
    job: Job, view: ClusterView, walked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_ahead, "_WALKED", walked)
    ctx = context(seed=9)
    expected = everywhere(job, view)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-9)
    for _ in range(examples(40)):
        proposal = AHEAD.propose(job, view, ctx)
        assert proposal is not None
        assert proposal.propensity == pytest.approx(expected[action_of(proposal.assignments)], abs=1e-9)


def test_every_placement_of_two_servers_and_two_workers_is_drawn_or_left_out_for_the_plan() -> None:
    """The servers go to a and b, the only nodes with their CPU; the workers then share c and d."""
    found = everywhere(pair(2, 2), tight())
    assert {tuple(node for _, node in action) for action in found} == set(itertools.product("ab", "ab", "cd", "cd")) - {
        (p, q, v, w) for p, q, v, w in itertools.product("ab", "ab", "cd", "cd") if p == q or v == w
    }


def test_a_large_gang_of_two_groups_is_placed_twice_and_not_once_per_look(monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of([node(f"n{i}", gpus=4, cpu=16.0) for i in range(40)])
    job, taken = pair(48, 16), 0
    take = Gang.take

    def counting(gang: Gang, group: TaskGroup, m: int, count: int = 1) -> bool:
        nonlocal taken
        taken += count
        return take(gang, group, m, count)

    monkeypatch.setattr(Gang, "take", counting)
    proposal = AHEAD.propose(job, view, context(seed=4))
    assert proposal is not None
    assert len({a.node for a in proposal.assignments}) > 20
    assert taken <= 2 * job.task_count


@pytest.mark.parametrize("job", TIGHT[3:], ids=["1+2", "2+2"])
def test_random_alone_runs_into_dead_ends_there(job: Job) -> None:
    ctx = context(seed=9)
    assert any(Random().propose(job, tight(), ctx) is None for _ in range(60))


def test_nothing_is_drawn_for_a_gang_that_does_not_fit() -> None:
    ctx = context(seed=1)
    assert AHEAD.propose(gang(workers=9, servers=1), tight(), ctx) is None
    assert ctx.rng.random() == np.random.default_rng(1).random()
