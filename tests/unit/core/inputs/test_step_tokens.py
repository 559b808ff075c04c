"""Step tokens: kept up task by task they equal tokens encoded from scratch, and show the real slots."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster import make_job, make_node
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import GpuSharing, Job, JobId, Resources, Role, TaskGroup
from placewise_core.gang.actions import action_of
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.inputs.cluster import STEP_COLUMNS, Encoder
from placewise_core.inputs.steps import StepTokens, encode_free, free_of
from placewise_core.policies.consolidate import Consolidate
from placewise_core.view.view import ClusterView

AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
USAGE = slice(AT["free_cpu_share"], AT["tasks"] + 1)
CONTEXT = PlaceContext(1.0, 0)


def busy_view(nodes: int, running: int) -> ClusterView:
    inventory = tuple(make_node(f"n{i}", rack=f"r{i // 2}" if i % 3 else "") for i in range(nodes))
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=inventory))
    for i in range(running):
        job = make_job(f"running-{i}", workers=1 + i % 3)
        proposal = Consolidate().propose(job, view, CONTEXT)
        if proposal is not None:
            view.add_job(RunningJob(job, proposal.assignments))
    return view


def gang(workers: int, servers: int, gpus: float, most_per_node: int, *, is_sharing: bool) -> Job:
    sharing = GpuSharing(allowed=is_sharing, max_slowdown=2.0)
    demand = Resources(cpu_cores=2, gpus=gpus, memory_gib=8)
    groups = [TaskGroup(Role.WORKER, workers, demand, max_per_node=most_per_node)]
    groups.append(TaskGroup(Role.WORKER, 1, Resources(cpu_cores=1, gpus=1, memory_gib=4)))
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(cpu_cores=1, memory_gib=4)))
    return Job(JobId("gang"), groups=tuple(groups), gpu_sharing=sharing)


@settings(max_examples=examples(60), deadline=None)
@given(
    gang=st.builds(
        gang,
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        st.integers(0, 2),
        is_sharing=st.booleans(),
    ),
    nodes=st.integers(1, 6),
    running=st.integers(0, 4),
    seed=st.integers(0, 10_000),
)
def test_kept_up_equals_from_scratch(gang: Job, nodes: int, running: int, seed: int) -> None:
    view = busy_view(nodes, running)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(nodes, rng.integers(1, nodes + 1), replace=False))
    stamp = view.usage.stamp
    placing = Gang(gang, view, CONTEXT)
    candidates = Candidates(placing, rows)
    steps = StepTokens(candidates)
    while not candidates.is_stuck():
        anew = Candidates(placing, rows)
        np.testing.assert_array_equal(candidates.mask, anew.mask)
        np.testing.assert_array_equal(steps.features, StepTokens(anew).features)
        fits = steps.features[:, [AT["workers_fit"], AT["servers_fit"]]] > 0
        np.testing.assert_array_equal(fits.T.reshape(-1), candidates.mask)
        action = int(rng.choice(np.flatnonzero(candidates.mask)))
        if candidates.take(action) and placing.remaining:
            steps.update(action % len(rows))
    assert view.usage.stamp == stamp  # nothing was claimed


def test_what_the_columns_say() -> None:
    view = busy_view(3, 0)
    job = Job(
        JobId("gang"),
        groups=(
            TaskGroup(Role.WORKER, 3, Resources(cpu_cores=2, gpus=1)),
            TaskGroup(Role.PARAMETER_SERVER, 1, Resources(cpu_cores=1)),
        ),
    )
    candidates = Candidates(Gang(job, view, CONTEXT))
    assert candidates.take(action_of(Role.WORKER, 1, 3))
    seen = {name: StepTokens(candidates).features[:, i].tolist() for name, i in AT.items()}
    gpus = view.nodes.gpu_exists[0].sum()
    assert seen["workers_here"] == [0, 0.5, 0]
    assert seen["servers_here"] == [0, 0, 0]
    assert seen["is_used_by_gang"] == [0, 1, 0]
    assert seen["workers_left"] == [0.5] * 3
    assert seen["servers_left"] == [0.25] * 3
    assert seen["nodes_used"] == [0.25] * 3
    assert seen["workers_fit"] == [0.25 * min(2, room) for room in (gpus, gpus - 1, gpus)]
    assert seen["fits_all_left"] == [float(room >= 2) for room in (gpus, gpus - 1, gpus)]
    assert seen["free_gpus"] == [gpus / 2, (gpus - 1) / 2, gpus / 2]
    assert seen["free_gpu_share"][1] == pytest.approx((gpus - 1) / gpus)
    assert seen["tasks"] == [0, 0.125, 0]
    assert seen["is_in_rack_of_gang"] == [0, 1, 0]


@settings(max_examples=examples(60), deadline=None)
@given(
    gang=st.builds(
        gang,
        st.integers(1, 4),
        st.integers(0, 3),
        st.sampled_from([0.0, 1.0, 2.0]),
        st.integers(0, 2),
        is_sharing=st.booleans(),
    ),
    is_one_group=st.booleans(),
    nodes=st.integers(1, 6),
    running=st.integers(0, 4),
    seed=st.integers(0, 10_000),
)
def test_a_gang_that_claims_nothing_is_seen_as_one_that_claims(
    gang: Job, is_one_group: bool, nodes: int, running: int, seed: int
) -> None:
    """Resources left on nodes, tasks there and load: as the encoding of a view on which the gang is claimed."""
    view, rng = busy_view(nodes, running), np.random.default_rng(seed)
    job = replace(gang, groups=gang.groups[:1]) if is_one_group else gang
    rows = np.arange(nodes)
    assert np.array_equal(free_of(Encoder().encode_nodes(view, 1.0, rows)), encode_free(view, rows))
    placing = Gang(job, view, CONTEXT)
    candidates, claimed = Candidates(placing, rows), view.fork()
    steps = StepTokens(candidates)
    while not candidates.is_stuck():
        action = int(rng.choice(np.flatnonzero(candidates.mask)))
        if not candidates.take(action):
            continue
        claimed.usage.claim(job, placing.tasks[-1])
        if placing.remaining:
            steps.update(action % nodes)
            assert np.array_equal(steps.features[:, USAGE], encode_free(claimed, rows)[:, USAGE])
    if not placing.remaining:
        assert len(placing.assignments()) == job.task_count
        view.add_job(RunningJob(job, placing.assignments()))
        assert (view.usage.free >= 0).all()
