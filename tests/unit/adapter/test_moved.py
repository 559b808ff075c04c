"""A job that runs and holds other places than the service was told is reported again, once for each change."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from placewise.v1.cluster_pb2 import Assignment, JobEvent, ReportJobEventsRequest, ReportJobEventsResponse
from placewise.v1.job_pb2 import Job, Resources
from placewise_client.adapter.book import Book
from placewise_client.adapter.native import AdapterSettings, HostState, NativeJob, Placement, Stage
from placewise_client.adapter.reporter import OutcomeReporter


class Service:
    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def report_job_events(self, request: ReportJobEventsRequest, **_: Any) -> ReportJobEventsResponse:
        await self.answers.wait()
        self.events += request.events
        return ReportJobEventsResponse()


def places(*nodes: str) -> tuple[Assignment, ...]:
    return tuple(Assignment(task=f"t{i}", node=node, demand=Resources(gpus=8)) for i, node in enumerate(nodes))


def running(*nodes: str, start_time_s: float = 0.0) -> NativeJob:
    stage = Stage.RUNNING
    return NativeJob("j", Job(id="j"), stage, placement=places(*nodes), start_time_s=start_time_s, can_move=True)


def told(events: list[JobEvent]) -> list[list[str]]:
    return [[task.node for task in event.placement] for event in events]


DECIDED = Placement(places("n1", "n2"), reservation_id="r", decision_id="d")


async def test_other_places_than_told_are_told_once_under_the_same_decision() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.report_started(running("n1", "n2", start_time_s=5.0), DECIDED)
    for nodes in (("n1", "n3"), ("n1", "n3"), ("n1",), ("n1", "n2")):
        reporter.report_started(running(*nodes, start_time_s=9.0), DECIDED)
        assert await reporter.flush()
    assert told(client.events) == [[], ["n1", "n3"], ["n1"], ["n1", "n2"]]
    assert {(event.decision_id, event.reservation_id, event.event_time.seconds) for event in client.events} == {
        ("d", "r", 5)
    }


async def test_places_are_compared_with_those_that_the_service_shows_after_a_restart() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.note_started("j", places("n1", "n2"), 5.0)
    reporter.report_started(running("n1", "n2"), None)
    assert reporter.backlog == 0
    reporter.report_started(running("n1"), None)
    assert await reporter.flush()
    assert told(client.events) == [["n1"]]


async def test_a_job_that_shows_no_places_or_is_forgotten_changes_nothing() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.note_started("j", places("n1"), 0.0)
    reporter.report_started(running(), None)
    reporter.forget(["j"])
    reporter.report_started(running("n2"), None)  # a start of its own
    assert await reporter.flush()
    assert told(client.events) == [["n2"]]
    assert client.events[0].reason == ""


async def test_a_service_that_is_away_hears_only_where_a_job_runs_in_the_end() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.report_started(running("n1", "n2"), DECIDED)
    reporter.report_started(running("n1", "n3"), DECIDED)
    assert reporter.is_pressing
    client.answers.clear()
    sending = asyncio.create_task(reporter.flush())
    await asyncio.sleep(0)
    for nodes in (("n1",), ("n2",), ("n3", "n4")):  # what is under way stays
        reporter.report_started(running(*nodes), DECIDED)
    assert reporter.backlog == 3
    client.answers.set()
    assert await sending
    assert told(client.events) == [[], ["n1", "n3"], ["n3", "n4"]]


async def test_only_what_is_queued_is_news_for_the_service() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    looks = [("n1", "n2"), ("n2", "n1"), ("n1", "n3"), ("n1", "n3"), ()]
    assert [reporter.report_started(running(*nodes), DECIDED) for nodes in looks] == [True, False, True, False, False]


def test_a_running_job_is_news_when_its_places_change() -> None:
    book = Book()
    looks = [running("n1"), running("n1"), running("n2"), running("n2")]
    assert [len(book.update(HostState([job]), 0.0)) for job in looks] == [1, 0, 1, 0]
    fixed = dataclasses.replace(running("n3"), can_move=False)
    assert book.update(HostState([fixed]), 0.0) == []
