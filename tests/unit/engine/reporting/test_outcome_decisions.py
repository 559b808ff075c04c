"""Every outcome in the log names the decision that led to it, in any order of arrival."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.errors import StateUnavailableError
from placewise_core.domain.events import JobsEnded
from placewise_core.domain.job import JobId
from placewise_log.record import OutcomeRecord, decode_entry
from placewise_service.engine import Engine
from placewise_service.engine.reporting.departed import Departed
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import JobReport, ReportResult

JOB = JobId("a")


class OvertakingStore(MemoryStore):
    """Answers a report only after every tail has heard of it, or not at all."""

    is_answering = True

    async def report_jobs(self, cluster: str, reports: Sequence[JobReport]) -> ReportResult:
        result = await super().report_jobs(cluster, reports)
        await asyncio.sleep(0.05)
        if not self.is_answering:
            raise StateUnavailableError("the answer was lost")
        return result


def event(kind: JobEventKind, **fields: object) -> JobEvent:
    return dataclasses.replace(JobEvent(JOB, kind), **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[Engine, Engine, OvertakingStore, ManualClock]]:
    clock = ManualClock(1_000_000.0)
    store = OvertakingStore(clock)
    async with running_engine(store=store, clock=clock) as one, running_engine(0, store=store, clock=clock) as other:
        await other.get_cluster(CLUSTER)
        yield one, other, store, clock


async def placed(engine: Engine) -> str:
    """A decision's id; the other replica has heard of it."""
    decision = await ask_place(engine, PlaceCommand(CLUSTER, (make_job(JOB),)))
    await asyncio.sleep(0.05)
    return decision.meta.decision_id


async def outcomes(store: MemoryStore, *engines: Engine) -> list[tuple[JobEventKind, str]]:
    """(kind, decision id) of every outcome in the ring."""
    for engine in engines:
        assert await engine._parts.sink.flush()
    entries = [decode_entry(data) for _, data in await store.read_decisions(CLUSTER, "0", 1000)]
    return [(entry.event.kind, entry.decision_id) for entry in entries if isinstance(entry, OutcomeRecord)]


async def test_an_end_that_the_view_hears_of_before_the_report_is_answered() -> None:
    async with two_replicas() as (engine, _, store, _):
        decision_id = await placed(engine)
        for kind in (JobEventKind.STARTED, JobEventKind.PROGRESS, JobEventKind.FINISHED):
            await engine.report_job_events(CLUSTER, [event(kind)])
        assert await outcomes(store, engine) == [
            (JobEventKind.STARTED, decision_id),
            (JobEventKind.PROGRESS, decision_id),
            (JobEventKind.FINISHED, decision_id),
        ]


@pytest.mark.parametrize("repeats_at", [0, 1])
async def test_an_end_repeated_because_its_answer_was_lost(repeats_at: int) -> None:
    async with two_replicas() as (one, other, store, _):
        decision_id = await placed(one)
        store.is_answering = False
        with pytest.raises(StateUnavailableError):
            await one.report_job_events(CLUSTER, [event(JobEventKind.FINISHED)])
        store.is_answering = True
        await (one, other)[repeats_at].report_job_events(CLUSTER, [event(JobEventKind.FINISHED)])
        assert await outcomes(store, one, other) == [(JobEventKind.FINISHED, decision_id)]


async def test_an_end_repeated_after_the_view_was_built_anew() -> None:
    async with two_replicas() as (one, _, store, _):
        decision_id = await placed(one)
        live = await one._parts.views.get(CLUSTER)
        before = dict(live.view.jobs)
        await one.report_job_events(CLUSTER, [event(JobEventKind.FINISHED)])
        live.departed, live.view.jobs = Departed(), before  # as if the tail had missed the end
        await live._reload()
        await one.report_job_events(CLUSTER, [event(JobEventKind.FINISHED)])
        assert await outcomes(store, one) == 2 * [(JobEventKind.FINISHED, decision_id)]


async def test_a_job_that_starts_after_its_reservation_expired() -> None:
    async with two_replicas() as (engine, _, store, clock):
        decision_id = await placed(engine)
        clock.advance(61.0)
        await engine._expire(await engine._parts.views.get(CLUSTER))
        assert not (await engine.get_cluster(CLUSTER)).view.jobs
        await engine.report_job_events(CLUSTER, [event(JobEventKind.STARTED)])
        assert await outcomes(store, engine) == [(JobEventKind.STARTED, decision_id)]


async def test_a_job_started_again_without_asking_is_no_outcome_of_the_old_decision() -> None:
    async with two_replicas() as (engine, _, store, _):
        decision_id = await placed(engine)
        await engine.report_job_events(CLUSTER, [event(JobEventKind.FINISHED)])
        await engine.report_job_events(CLUSTER, [event(JobEventKind.STARTED)])
        assert await outcomes(store, engine) == [(JobEventKind.FINISHED, decision_id), (JobEventKind.STARTED, "")]


@pytest.mark.parametrize("repeats_at", [0, 1])
async def test_a_start_and_an_end_repeated_by_an_adapter_that_was_restarted(repeats_at: int) -> None:
    async with two_replicas() as (one, other, store, clock):
        decision_id = await placed(one)
        started = event(JobEventKind.STARTED, event_time_s=clock.now_s() + 1)
        ended = event(JobEventKind.FINISHED, event_time_s=clock.now_s() + 5)
        await one.report_job_events(CLUSTER, [started])
        await one.report_job_events(CLUSTER, [ended])
        await (one, other)[repeats_at].report_job_events(CLUSTER, [started, ended])
        again = event(JobEventKind.STARTED, event_time_s=clock.now_s() + 6)
        await one.report_job_events(CLUSTER, [again])
        run = [(JobEventKind.STARTED, decision_id), (JobEventKind.FINISHED, decision_id)]
        found = await outcomes(store, one, other)
        assert Counter(found) == Counter([*run, *run, (JobEventKind.STARTED, "")])


async def test_a_report_that_names_the_decision_once_names_it_for_all_its_events_of_the_job() -> None:
    async with two_replicas() as (engine, _, store, _):
        events = [event(JobEventKind.STARTED, decision_id="d1"), event(JobEventKind.FINISHED)]
        await engine.report_job_events(CLUSTER, events)
        assert await outcomes(store, engine) == [(JobEventKind.STARTED, "d1"), (JobEventKind.FINISHED, "d1")]


async def test_only_so_many_departed_jobs_are_remembered() -> None:
    async with two_replicas() as (engine, _, _, _):
        await placed(engine)
        (job,) = (await engine.get_cluster(CLUSTER)).view.jobs.values()
    jobs = {JobId(f"j{n}"): dataclasses.replace(job, job=make_job(f"j{n}"), decision_id=f"d{n}") for n in range(4)}
    departed = Departed(most=3)
    departed.note(jobs, JobsEnded(tuple(jobs)))
    departed.note(jobs, JobsEnded((JobId("j1"), JobId("unheard-of"))))
    departed.note({JobId("j9"): jobs[JobId("j2")]}, JobsEnded((JobId("j9"),)))
    known = [departed.decision_of(JobId(f"j{n}"), is_end=True) for n in range(4)]
    assert known == ["", "d1", "d2", "d3"]
