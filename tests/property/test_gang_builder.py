"""GangBuilder: for any sequence of allowed actions, nothing is oversubscribed and everything can be given back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewise_core.actions import action_of
from placewise_core.cluster import RunningJob
from placewise_core.events import ClusterRecords
from placewise_core.job import Job, JobId, Resources, Role, TaskGroup
from placewise_core.place.context import PlaceContext
from placewise_core.place.gang_builder import GangBuilder
from placewise_core.view import ClusterView
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


@settings(max_examples=60, deadline=None)
@given(gang=gangs, nodes=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_any_allowed_actions_lead_to_a_sound_placement_or_a_clean_stop(
    gang: tuple[int, int, int, float], nodes: int, seed: int
) -> None:
    view, context = fresh(nodes)
    before = view.free.copy()
    wanted = job(*gang)
    builder = GangBuilder(wanted, view, context)
    rng = np.random.default_rng(seed)
    while not builder.is_complete and not builder.is_stuck():
        mask = builder.mask()
        assert mask[nodes:].any() == (mask[nodes:].any() and builder.remaining_of(Role.PARAMETER_SERVER) > 0)
        builder.apply(int(rng.choice(np.flatnonzero(mask))))
        assert (view.free >= 0).all()
        assert (view.free_gpus() >= 0).all()
    if builder.is_complete:
        placement = builder.placement()
        assert len(placement) == wanted.task_count
        counts = [sum(a.role is Role.WORKER and a.node == node.id for a in placement) for node in view.nodes]
        assert gang[2] == 0 or max(counts) <= gang[2]
        builder.give_back()
        view.add_job(RunningJob(wanted, placement))
        view.remove_job(wanted.id)
    else:
        with pytest.raises(ValueError, match="not placed yet"):
            builder.placement()
        builder.give_back()
    np.testing.assert_array_equal(view.free, before)


@settings(max_examples=40, deadline=None)
@given(gang=gangs, seed=st.integers(0, 1000))
def test_the_mask_stays_what_a_new_builder_would_say(gang: tuple[int, int, int, float], seed: int) -> None:
    """Masks are kept up task by task; from scratch, on the claimed view, they must come out the same."""
    view, context = fresh(3)
    wanted = job(*gang)
    builder = GangBuilder(wanted, view, context)
    rng = np.random.default_rng(seed)
    while not builder.is_complete and not builder.is_stuck():
        builder.apply(int(rng.choice(np.flatnonzero(builder.mask()))))
        for role in (Role.WORKER, Role.PARAMETER_SERVER):
            if gang[2] == 0 and builder.remaining_of(role):
                first = action_of(role, 0, 3)
                anew = GangBuilder(wanted, view, context).mask()
                np.testing.assert_array_equal(builder.mask()[first : first + 3], anew[first : first + 3])


def test_masked_actions_are_refused() -> None:
    view, context = fresh(2)
    builder = GangBuilder(job(1, 0, 0, 1.0), view, context)
    with pytest.raises(ValueError, match="masked"):
        builder.apply(action_of(Role.PARAMETER_SERVER, 0, 2))


def test_candidates_are_counted_from_zero() -> None:
    view, context = fresh(4)
    builder = GangBuilder(job(1, 0, 0, 1.0), view, context, rows=np.array([3, 1]))
    assert len(builder.mask()) == 4
    builder.apply(action_of(Role.WORKER, 0, 2))
    assert builder.placement()[0].node == view.node_id(3)
