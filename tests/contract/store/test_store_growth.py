"""Rows of profiles and co-runs, by the engine on every store: bounded in number, forgotten when no job uses them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, running_engine
from tests.fakes.state import Harness

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEvent, JobEventKind, ShareOutcome
from placewise_core.domain.job import CoRun, GpuSharing, Job, JobId, NodeId, Role, Subtask
from placewise_core.speed.co_runs import row_kind
from placewise_service.engine import Engine

IDLE_S = 0.4


@asynccontextmanager
async def replicas(harness: Harness) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two of one state; rows are forgotten after IDLE_S."""
    async with (
        running_engine(store=harness.store, clock=harness.clock) as engine,
        running_engine(0, store=harness.other(), clock=harness.clock) as other,
    ):
        for each in (engine, other):
            each._parts.options.profile_idle_s = IDLE_S
        yield engine, other


async def submit(engine: Engine, job: Job) -> None:
    await engine.report_job_events(CLUSTER, [JobEvent(job.id, JobEventKind.SUBMITTED, job=job)])


async def until_seen(engine: Engine, version: int) -> None:
    live = await engine._parts.views.get(CLUSTER)
    while live.view.version < version:
        await live.wait_changed(1.0)


async def test_rows_that_no_job_uses_are_forgotten_by_every_replica_and_used_ones_stay(harness: Harness) -> None:
    async with replicas(harness) as (engine, other):
        for name in ("idle", "used"):
            subtask = Subtask("s", kind=f"kind-{name}", profile={"cpu": 1.0})
            sharing = GpuSharing(co_runs=(CoRun("lm", 0.5),))
            job = replace(make_job(name), subtasks=(subtask,), model=f"model-{name}", gpu_sharing=sharing)
            await submit(engine, job)
        placement = (Assignment("t", Role.WORKER, NodeId("n0")),)
        started = JobEvent(JobId("used"), JobEventKind.STARTED, job=job, placement=placement)
        await until_seen(other, (await engine.report_job_events(CLUSTER, [started])).version)
        for _ in range(2):
            await harness.advance(0.6 * IDLE_S)
            await engine._forget_idle()
            await other._forget_idle()
        version = (await engine.get_cluster(CLUSTER)).view.version
        for replica in (engine, other):
            await until_seen(replica, version)
            view = (await replica.get_cluster(CLUSTER)).view
            assert set(view.subtask_profiles) == {"kind-used"}
            assert set(view.co_runs.kinds) == {row_kind("model-used")}
            assert view.co_runs.known_with(()).of("model-idle", "") == {}


async def test_rows_beyond_the_limit_are_not_learned_and_counted(harness: Harness) -> None:
    async with replicas(harness) as (engine, other):
        engine._reporter._most_profiles = 3

        async def report(i: int, cpu: float) -> None:
            subtask = Subtask("s", kind=f"kind-{i}", profile={"cpu": cpu})
            await submit(engine, replace(make_job(f"j{i}"), subtasks=(subtask,), model="m", gpu_sharing=GpuSharing()))

        for i in range(5):
            await report(i, 1.0)
        view = (await engine.get_cluster(CLUSTER)).view
        assert set(view.subtask_profiles) == {"kind-0", "kind-1", "kind-2"}
        await report(0, 2.0)
        assert view.subtask_profiles["kind-0"] == {"cpu": 2.0}, "known kinds are still measured again"
        sharing = GpuSharing(co_runs=(CoRun("other", 0.5),))
        await submit(engine, replace(make_job("j9"), model="mine", gpu_sharing=sharing))
        assert not list(view.co_runs.kinds)
        text = engine._parts.telemetry.render().decode()
        assert f'placewise_profiles_refused_total{{cluster="{CLUSTER}"}} 3.0' in text
        await until_seen(other, view.version)
        assert (await other.get_cluster(CLUSTER)).view.subtask_profiles == view.subtask_profiles


async def report_overhead(engine: Engine, kind: str) -> None:
    share = ShareOutcome(kind, node="n0", unit="cpu0", scale=1.0, seconds=1.0, overhead_s=0.5)
    await engine.report_job_events(CLUSTER, [JobEvent(JobId(kind), JobEventKind.SHARE_FINISHED, share=share)])


async def test_overheads_beyond_the_limit_are_not_learned_and_counted(harness: Harness) -> None:
    async with replicas(harness) as (engine, other):
        engine._reporter._most_profiles = 3
        for i in (*range(5), 0):
            await report_overhead(engine, f"kind-{i}")
        view = (await engine.get_cluster(CLUSTER)).view
        assert set(view.overheads) == {"kind-0", "kind-1", "kind-2"}
        text = engine._parts.telemetry.render().decode()
        assert f'placewise_profiles_refused_total{{cluster="{CLUSTER}"}} 2.0' in text
        await until_seen(other, view.version)
        assert (await other.get_cluster(CLUSTER)).view.overheads == view.overheads


async def test_overheads_that_nobody_reports_are_forgotten_by_every_replica(harness: Harness) -> None:
    async with replicas(harness) as (engine, other):
        await report_overhead(engine, "kind")
        engine._parts.options.profile_idle_s = 3600.0
        await engine._forget_idle()
        assert set((await engine.get_cluster(CLUSTER)).view.overheads) == {"kind"}
        engine._parts.options.profile_idle_s = IDLE_S
        await harness.advance(1.5 * IDLE_S)
        for replica in (engine, other):
            await replica._forget_idle()
        version = (await engine.get_cluster(CLUSTER)).view.version
        for replica in (engine, other):
            await until_seen(replica, version)
            assert not (await replica.get_cluster(CLUSTER)).view.overheads
        loaded = await harness.store.load(CLUSTER)
        assert loaded is not None
        assert not loaded[0].overheads


async def test_values_beyond_the_limit_are_not_learned_into_a_row(harness: Harness) -> None:
    async with replicas(harness) as (engine, _):
        engine._reporter._most_profiles = 3
        for i in range(5):
            subtask = Subtask("s", kind="kind", profile={f"metric-{i}": 1.0})
            sharing = GpuSharing(co_runs=(CoRun(f"lm-{i}", 0.5),))
            await submit(engine, replace(make_job(f"j{i}"), subtasks=(subtask,), model="m", gpu_sharing=sharing))
        view = (await engine.get_cluster(CLUSTER)).view
        assert set(view.subtask_profiles["kind"]) == {"metric-0", "metric-1", "metric-2"}
        assert len(view.co_runs.row(row_kind("m"))) == 3
        text = engine._parts.telemetry.render().decode()
        assert f'placewise_profiles_refused_total{{cluster="{CLUSTER}"}} 4.0' in text
