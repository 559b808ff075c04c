"""Throughput learned from reports of progress: on every replica, in forecasts and answers, and only if it is on."""

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
from placewise_core.domain.decision import PlaceDecision
from placewise_core.domain.job import ElasticRange, Job, JobId
from placewise_core.speed.learned.throughputs import row_of
from placewise_log.record import DecisionRecord, decode_entry
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

ON = ClusterSettings(learn_throughput=True)
NOW_S = 1_000_000.0


def job(name: str, **changes: object) -> Job:
    return replace(make_job(name, dataset_size=1000, batch_size=64, total_epochs=10.0), **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def engine_with(settings: ClusterSettings = ON, **options: object) -> AsyncIterator[Engine]:
    async with running_engine(clock=ManualClock(NOW_S), **options) as engine:  # type: ignore[arg-type]
        await engine.update_settings(CLUSTER, settings)
        yield engine


async def started(engine: Engine, asked: Job) -> PlaceDecision:
    """The job is placed and starts."""
    decision = await ask_place(engine, place(asked, policy="load-balance"))
    await answer_is_on_its_way()
    await engine.report_job_events(CLUSTER, [JobEvent(asked.id, JobEventKind.STARTED)])
    return decision


async def progressed(engine: Engine, name: str, speed: float, epochs: float) -> None:
    event = JobEvent(JobId(name), JobEventKind.PROGRESS, speed=speed, epochs_done=epochs)
    await engine.report_job_events(CLUSTER, [event])


async def ended(engine: Engine, name: str) -> None:
    await engine.report_job_events(CLUSTER, [JobEvent(JobId(name), JobEventKind.FINISHED)])


async def rows(engine: Engine) -> dict[str, float]:
    """Reports by kind."""
    known = (await engine.get_cluster(CLUSTER)).view.estimates.throughputs
    return {kind: known.row(kind)["count"] for kind in known.kinds}


async def test_forecasts_follow_what_jobs_report() -> None:
    async with engine_with() as engine:
        first = await started(engine, job("a"))
        assert first.meta.speeds == (), "nothing was reported"
        forecast = first.decisions[0].predicted_speed
        await progressed(engine, "a", forecast / 3.0, 1.0)
        await ended(engine, "a")
        second = await ask_place(engine, place(job("b"), policy="load-balance"))
        (speed,) = second.meta.speeds
        assert (speed.job_id, speed.nodes, speed.gpus, speed.reports) == ("b", 1, 1, 1.0)
        assert speed.source == "model, GPU type and shape"
        assert second.decisions[0].predicted_speed == pytest.approx(speed.samples_per_s / 1000.0, rel=0.02)
        assert second.decisions[0].predicted_speed < 0.7 * forecast


async def test_a_report_counts_once_and_later_ones_of_a_job_by_their_share() -> None:
    async with engine_with() as engine:
        await started(engine, job("a"))
        event = JobEvent(JobId("a"), JobEventKind.PROGRESS, speed=0.5, epochs_done=2.0)
        await engine.report_job_events(CLUSTER, [event, event])
        await engine.report_job_events(CLUSTER, [event])
        assert list((await rows(engine)).values()) == [1.0]
        await progressed(engine, "a", 0.5, 4.0)
        (kind,) = await rows(engine)
        assert (await rows(engine))[kind] == 1.5
        row = (await engine.get_cluster(CLUSTER)).view.estimates.throughputs.row(kind)
        assert row["sum"] == pytest.approx(1.5 * math.log(500.0))
        assert row_of(kind).batch == 64


async def test_a_job_with_neighbours_teaches_nothing() -> None:
    async with engine_with(nodes=1) as engine:
        await started(engine, job("a"))
        await started(engine, job("b"))
        await progressed(engine, "a", 0.5, 1.0)
        assert await rows(engine) == {}
        await ended(engine, "b")
        await progressed(engine, "a", 0.5, 2.0)
        assert list((await rows(engine)).values()) == [0.5]


async def test_switched_off_nothing_is_written_and_no_forecast_changes() -> None:
    async with engine_with(ClusterSettings()) as engine:
        first = await started(engine, job("a"))
        await progressed(engine, "a", 0.001, 1.0)
        assert await rows(engine) == {}
        await engine.update_settings(CLUSTER, ON)
        await progressed(engine, "a", 0.001, 2.0)
        assert len(await rows(engine)) == 1
        await engine.update_settings(CLUSTER, ClusterSettings())
        second = await ask_place(engine, place(job("b"), policy="load-balance"))
        assert second.meta.speeds == ()
        assert second.decisions[0].predicted_speed == first.decisions[0].predicted_speed


async def test_admission_knows_how_long_a_job_takes_and_every_replica_the_same() -> None:
    clock = ManualClock(NOW_S)
    store = MemoryStore(clock)
    async with (
        running_engine(store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await one.update_settings(CLUSTER, replace(ON, admit_policy="qos"))
        asked = replace(job("q"), groups=(), elastic=ElasticRange(1, 1), total_epochs=1e6)
        command = AdmitCommand(CLUSTER, "q", (asked,), is_dry_run=True)
        before = (await ask_admit(one, command)).plan.admissions[0]
        first = await started(one, job("a"))
        await progressed(one, "a", first.decisions[0].predicted_speed / 4.0, 1.0)
        await ended(one, "a")
        version = (await one.get_cluster(CLUSTER)).view.version
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < version:
            await live.wait_changed(1.0)
        answers = [await ask_admit(engine, command) for engine in (one, other)]
        assert answers[0].plan == answers[1].plan
        assert answers[0].meta.speeds == answers[1].meta.speeds != ()
        took_s, takes_s = (a.expected_finish_time_s - NOW_S for a in (before, answers[0].plan.admissions[0]))
        assert takes_s > 1.4 * took_s


async def test_the_log_has_what_was_learned() -> None:
    store = MemoryStore(ManualClock(NOW_S))
    async with engine_with(store=store) as engine:
        await started(engine, job("a"))
        await progressed(engine, "a", 0.5, 1.0)
        decision = await ask_place(engine, place(job("b"), policy="load-balance"))
        assert await logged(engine)
        entries = [decode_entry(data) for _, data in await store.read_decisions(CLUSTER, "0", 100)]
        records = [each for each in entries if isinstance(each, DecisionRecord)]
        assert records[-1].meta.speeds == decision.meta.speeds != ()


async def test_rows_beyond_the_limit_are_not_learned() -> None:
    async with engine_with() as engine:
        engine._reporter._most_profiles = 2
        for i in range(4):
            await started(engine, job(f"a{i}", model=f"m{i}"))
            await progressed(engine, f"a{i}", 0.5, 1.0)
            await ended(engine, f"a{i}")
        assert len(await rows(engine)) == 2
