"""Step tokens: kept up task by task they equal tokens encoded from scratch, and show the real slots."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster import make_job, make_node

from placewise_core.actions import action_of
from placewise_core.cluster import RunningJob
from placewise_core.events import ClusterRecords
from placewise_core.features import STEP_COLUMNS, Encoder, Float32
from placewise_core.job import GpuSharing, Job, JobId, Resources, Role, TaskGroup
from placewise_core.place.consolidate import Consolidate
from placewise_core.place.context import PlaceContext
from placewise_core.place.gang_builder import GangBuilder
from placewise_core.place.plain_gang import PlainGang
from placewise_core.step_tokens import PlainSteps, StepTokens, encode_free, encode_step, free_of
from placewise_core.view import BoolArray, ClusterView

AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
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


@settings(max_examples=60, deadline=None)
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
    builder = GangBuilder(gang, view, CONTEXT, rows)
    steps = StepTokens(builder)
    while not builder.is_complete and not builder.is_stuck():
        np.testing.assert_array_equal(steps.features, encode_step(builder))
        fits = steps.features[:, [AT["workers_fit"], AT["servers_fit"]]] > 0
        mask = builder.mask()
        np.testing.assert_array_equal(fits.T.reshape(-1), mask)
        action = int(rng.choice(np.flatnonzero(mask)))
        if builder.apply(action) and not builder.is_complete:
            steps.update(action % len(rows))
    builder.give_back()


def test_what_the_columns_say() -> None:
    view = busy_view(3, 0)
    job = Job(
        JobId("gang"),
        groups=(
            TaskGroup(Role.WORKER, 3, Resources(cpu_cores=2, gpus=1)),
            TaskGroup(Role.PARAMETER_SERVER, 1, Resources(cpu_cores=1)),
        ),
    )
    builder = GangBuilder(job, view, CONTEXT)
    assert builder.apply(action_of(Role.WORKER, 1, 3))
    seen = {name: encode_step(builder)[:, i].tolist() for name, i in AT.items()}
    gpus = view.gpu_exists[0].sum()
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
    builder.give_back()


@settings(max_examples=60, deadline=None)
@given(
    workers=st.integers(1, 5),
    role=st.sampled_from([Role.WORKER, Role.PARAMETER_SERVER]),
    demand=st.sampled_from([Resources(cpu_cores=2, gpus=2), Resources(memory_gib=8, gpus=1), Resources(cpu_cores=0.3)]),
    most_per_node=st.integers(0, 2),
    nodes=st.integers(1, 6),
    running=st.integers(0, 4),
    is_shortlist=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_a_plain_gang_that_claims_nothing_is_seen_as_one_that_claims(
    workers: int,
    role: Role,
    demand: Resources,
    most_per_node: int,
    nodes: int,
    running: int,
    is_shortlist: bool,
    seed: int,
) -> None:
    view, rng = busy_view(nodes, running), np.random.default_rng(seed)
    job = Job(JobId("gang"), groups=(TaskGroup(role, workers, demand, max_per_node=most_per_node),))
    gang = PlainGang.of(job, view, CONTEXT)
    assert gang is not None
    rows = np.arange(1 if is_shortlist else 0, nodes)
    assert np.array_equal(free_of(Encoder().encode_nodes(view, 1.0, rows)), encode_free(view, rows))
    stamp = view.usage_stamp
    counted = PlainSteps(gang, rows)
    is_stuck = counted.is_stuck()
    counted.begin()
    seen: list[tuple[Float32, BoolArray, int]] = []
    while counted.left and counted.mask.any():
        action = int(rng.choice(np.flatnonzero(counted.mask)))
        seen.append((counted.features.copy(), counted.mask.copy(), action))
        counted.take(action % len(rows))
    assert (counted.left > 0) is is_stuck
    assert view.usage_stamp == stamp  # nothing was claimed
    builder = GangBuilder(job, view, CONTEXT, rows)
    claimed = StepTokens(builder)
    for i, (features, mask, action) in enumerate(seen):
        assert np.array_equal(features, claimed.features)
        assert np.array_equal(mask, builder.mask())
        assert builder.apply(action)
        if i + 1 < len(seen):
            claimed.update(action % len(rows))
    placement = tuple(builder.assignments)
    builder.give_back()
    if not counted.left:
        assert gang.assignments(counted.nodes) == placement
