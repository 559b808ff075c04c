"""Candidates: for any sequence of allowed actions, nothing is oversubscribed and the view stays as it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId, Resources, Role, TaskGroup
from placewise_core.gang.actions import action_of
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import harmony_cluster

gangs = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.sampled_from([0.5, 1.0, 2.0]))


def job(workers: int, servers: int, most_per_node: int, gpus: float) -> Job:
    groups = [
        TaskGroup(Role.WORKER, workers, Resources(cpu_cores=2, gpus=gpus, memory_gib=8), max_per_node=most_per_node)
    ]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(cpu_cores=1, memory_gib=4)))
    return Job(JobId("gang"), groups=tuple(groups))


def fresh(nodes: int) -> tuple[ClusterView, PlaceContext]:
    records = ClusterRecords("c", 0, "e", nodes=tuple(spec.node for spec in harmony_cluster(nodes)))
    return ClusterView(records), PlaceContext(0.0, np.random.default_rng(0))


@settings(max_examples=examples(60), deadline=None)
@given(gang=gangs, nodes=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_any_allowed_actions_lead_to_a_sound_placement_or_a_clean_stop(
    gang: tuple[int, int, int, float], nodes: int, seed: int
) -> None:
    view, context = fresh(nodes)
    before = view.usage.free.copy()
    wanted = job(*gang)
    placing = Gang(wanted, view, context)
    candidates = Candidates(placing)
    rng = np.random.default_rng(seed)
    while not candidates.is_stuck():
        mask = candidates.mask
        assert not mask[nodes:].any() or candidates.left[Role.PARAMETER_SERVER] > 0
        candidates.take(int(rng.choice(np.flatnonzero(mask))))
        assert all(min(left.free) >= 0 for left in placing.left.values())
    if not placing.remaining:
        placement = placing.assignments()
        assert len(placement) == wanted.task_count
        counts = [sum(a.role is Role.WORKER and a.node == node.id for a in placement) for node in view.nodes.records]
        assert gang[2] == 0 or max(counts) <= gang[2]
        view.add_job(RunningJob(wanted, placement))
        assert (view.usage.free >= 0).all()
        view.remove_job(wanted.id)
    else:
        with pytest.raises(ValueError, match="not placed yet"):
            placing.assignments()
    np.testing.assert_array_equal(view.usage.free, before)


def test_masked_actions_are_refused() -> None:
    view, context = fresh(2)
    candidates = Candidates(Gang(job(1, 0, 0, 1.0), view, context))
    with pytest.raises(ValueError, match="masked"):
        candidates.take(action_of(Role.PARAMETER_SERVER, 0, 2))


def test_candidates_are_counted_from_zero() -> None:
    view, context = fresh(4)
    placing = Gang(job(1, 0, 0, 1.0), view, context)
    candidates = Candidates(placing, np.array([1, 3]))
    assert len(candidates.mask) == 4
    candidates.take(action_of(Role.WORKER, 1, 2))
    assert placing.assignments()[0].node == view.nodes.records[3].id
