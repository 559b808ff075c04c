"""After an outage running jobs are told again in full: a start that still waits to be sent is not told beside that."""

from __future__ import annotations

import asyncio
from typing import Any

from placewise.v1.cluster_pb2 import Assignment, JobEvent, ReportJobEventsRequest, ReportJobEventsResponse
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import AdapterSettings, NativeJob, Placement, Stage
from placewise_client.adapter.reporter import OutcomeReporter

TASKS = (Assignment(task="t0", node="n1"),)
DECIDED = Placement(TASKS, decision_id="d")


class Service:
    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.answers = asyncio.Event()

    async def report_job_events(self, request: ReportJobEventsRequest, **_: Any) -> ReportJobEventsResponse:
        await self.answers.wait()
        self.events += request.events
        return ReportJobEventsResponse()


def running(key: str) -> NativeJob:
    return NativeJob(key, Job(id=key), Stage.RUNNING, placement=TASKS)


async def test_a_start_that_waits_to_be_sent_is_told_once_and_in_full() -> None:
    client: Any = Service()
    client.answers.set()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    for key in ("a", "b"):
        reporter.report_started(running(key), DECIDED)
    reporter.forget_all({"a"})
    reporter.report_started(running("a"), DECIDED, in_full=True)
    assert await reporter.flush()
    assert [(event.job_id, len(event.placement)) for event in client.events] == [("b", 0), ("a", 1)]


async def test_what_is_just_being_sent_stays() -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.report_started(running("a"), DECIDED)
    sending = asyncio.create_task(reporter.flush())
    await asyncio.sleep(0)
    reporter.forget_all({"a"})
    reporter.report_started(running("a"), DECIDED, in_full=True)
    client.answers.set()
    assert await sending
    assert [(event.job_id, len(event.placement)) for event in client.events] == [("a", 0), ("a", 1)]
