"""Lengths learned from jobs that ended, for jobs that declare none: on every replica, and only if the setting is on."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Verdict
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.learned.durations import kinds_of
from placewise_log.record import DecisionRecord, decode_entry
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

ON = ClusterSettings(learn_durations=True)
NOW_S = 1_000_000.0


def unknown(name: str, **changes: object) -> Job:
    return make_job(name, user="ann", **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def engine_with(settings: ClusterSettings = ON, **options: object) -> AsyncIterator[tuple[Engine, ManualClock]]:
    clock = ManualClock(NOW_S)
    async with running_engine(clock=clock, **options) as engine:  # type: ignore[arg-type]
        await engine.update_settings(CLUSTER, settings)
        yield engine, clock


async def ran(engine: Engine, clock: ManualClock, job: Job, seconds: float, end: str = "FINISHED") -> None:
    """The job is placed, runs so long and ends."""
    await ask_place(engine, place(job))
    await answer_is_on_its_way()
    await engine.report_job_events(CLUSTER, [JobEvent(job.id, JobEventKind.STARTED)])
    clock.advance(seconds)
    await engine.report_job_events(CLUSTER, [JobEvent(job.id, JobEventKind(end))])


async def test_a_job_without_a_length_gets_the_one_of_those_that_ended() -> None:
    async with engine_with() as (engine, clock):
        first = await ask_place(engine, place(unknown("a")))
        assert first.meta.lengths == (), "nothing has ended"
        await ran(engine, clock, unknown("b"), 300.0)
        decision = await ask_place(engine, place(unknown("c")))
        (length,) = decision.meta.lengths
        assert (length.job_id, length.single_gpu_s, length.source) == ("c", 300.0, "model, user and shape")
        assert length.low_s < 300.0 < length.high_s
        await answer_is_on_its_way()
        running = (await engine.get_cluster(CLUSTER)).view.jobs[JobId("c")]
        assert running.job.single_gpu_s == 300.0, "its expected end rests on it"


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED"])
async def test_every_end_counts_once(end: str) -> None:
    async with engine_with() as (engine, clock):
        await ran(engine, clock, unknown("a"), 300.0, end)
        again = JobEvent(JobId("a"), JobEventKind(end))
        await engine.report_job_events(CLUSTER, [again, again])
        row = (await engine.get_cluster(CLUSTER)).view.estimates.durations.row(kinds_of(unknown("a"))[0])
        assert row == {"count": 1.0, "sum": math.log(300.0), "squares": math.log(300.0) ** 2, "time_s": NOW_S + 300.0}


async def test_switched_off_nothing_is_written_and_nothing_filled_in() -> None:
    async with engine_with(ClusterSettings()) as (engine, clock):
        await ran(engine, clock, unknown("a"), 300.0)
        view = (await engine.get_cluster(CLUSTER)).view
        assert not list(view.estimates.durations.kinds)
        await engine.update_settings(CLUSTER, ON)
        await ran(engine, clock, unknown("b"), 300.0)
        assert list(view.estimates.durations.kinds)
        await engine.update_settings(CLUSTER, ClusterSettings())
        decision = await ask_place(engine, place(unknown("c")))
        assert decision.meta.lengths == ()
        await answer_is_on_its_way()
        assert view.jobs[JobId("c")].job.single_gpu_s == 0.0


async def test_admission_orders_by_learned_lengths_and_every_replica_by_the_same() -> None:
    clock, settings = ManualClock(NOW_S), replace(ON, admit_policy="qos")
    store = MemoryStore(clock)
    async with (
        running_engine(nodes=1, gpus=1, store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await one.update_settings(CLUSTER, settings)
        for name, seconds in (("slow", 20_000.0), ("quick", 60.0)):
            await ran(one, clock, replace(unknown(f"{name}-before"), model=name), seconds)
        version = (await one.get_cluster(CLUSTER)).view.version
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < version:
            await live.wait_changed(1.0)
        jobs = tuple(replace(unknown(name), model=name) for name in ("slow", "quick"))
        command = AdmitCommand(CLUSTER, "q", jobs, is_dry_run=True)
        answers = [await ask_admit(engine, command) for engine in (one, other)]
        assert answers[0].plan == answers[1].plan
        assert answers[0].meta.lengths == answers[1].meta.lengths
        assert [length.source for length in answers[0].meta.lengths] == ["model, user and shape"] * 2
        assert [admission.rank for admission in answers[0].plan.admissions] == [2, 1], (
            "the request has the slow one first"
        )


async def test_the_log_has_the_job_as_the_policy_read_it_and_where_its_length_comes_from() -> None:
    store = MemoryStore(ManualClock(NOW_S))
    async with engine_with(store=store) as (engine, clock):
        await ran(engine, clock, unknown("a"), 300.0)
        admitted = await ask_admit(engine, AdmitCommand(CLUSTER, "q", (unknown("b"),)))
        assert admitted.plan.admissions[0].verdict is Verdict.ADMIT
        assert await logged(engine)
        entries = [decode_entry(data) for _, data in await store.read_decisions(CLUSTER, "0", 100)]
        record = next(each for each in entries if isinstance(each, DecisionRecord) and each.admit is not None)
        assert record.jobs[0].single_gpu_s == 300.0
        assert record.meta.lengths == admitted.meta.lengths != ()


async def test_rows_beyond_the_limit_are_not_learned_and_those_of_all_jobs_come_first() -> None:
    async with engine_with() as (engine, clock):
        engine._reporter._most_profiles = 5
        for i in range(4):
            await ran(engine, clock, replace(unknown(f"a{i}"), model=f"m{i}"), 300.0)
        durations = (await engine.get_cluster(CLUSTER)).view.estimates.durations
        assert len(list(durations.kinds)) == 5
        kinds = kinds_of(replace(unknown("a"), model="m1"))
        assert [durations.row(kind).get("count", 0.0) > 0 for kind in kinds] == [True, True, False, False]
        assert durations.row(kinds[0])["count"] == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize(("settings", "passing"), [(ON, {"quick"}), (ClusterSettings(), set())])
async def test_a_job_without_a_length_passes_the_head_only_by_a_learned_one(
    settings: ClusterSettings, passing: set[str]
) -> None:
    """The gang can start when `runs` ends, in 1000 s: one who mostly ends before may go first."""
    async with engine_with(settings, nodes=2, gpus=4) as (engine, clock):
        for name, seconds in (("slow", 5_000.0), ("quick", 60.0)):
            await ran(engine, clock, replace(unknown(f"{name}-before"), model=name), seconds)
        await ask_place(engine, place(unknown("runs", workers=2, single_gpu_s=1_500.0)))
        await answer_is_on_its_way()
        gang = unknown("gang", workers=8, single_gpu_s=450.0)
        jobs = (gang, *[replace(unknown(name), model=name) for name in ("slow", "quick")])
        plan = (await ask_admit(engine, AdmitCommand(CLUSTER, "q", jobs, policy="fifo"))).plan
        assert {each.job_id for each in plan.admissions if each.verdict is Verdict.ADMIT} == passing
