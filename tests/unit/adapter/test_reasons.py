"""Reasons in an adapter's events are such that the service takes the event: it refused one whose words were odd."""

from __future__ import annotations

from typing import Any

import pytest

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest, ReportJobEventsResponse
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import AdapterSettings, End, NativeJob, Stage
from placewise_client.adapter.reporter import OutcomeReporter
from placewise_core.domain.checks import MAX_TEXT, check_text


class Service:
    def __init__(self) -> None:
        self.events: list[JobEvent] = []

    async def report_job_events(self, request: ReportJobEventsRequest, **_: Any) -> ReportJobEventsResponse:
        self.events += request.events
        return ReportJobEventsResponse()


@pytest.mark.parametrize("reason", ["x" * 600, "exit code 1\nlast words", "DeadlineExceeded"])
async def test_the_service_takes_the_reason_of_an_end(reason: str) -> None:
    client: Any = Service()
    reporter = OutcomeReporter(client, AdapterSettings("c"))
    reporter.report_ended(NativeJob("j", Job(id="j"), Stage.ENDED, end=End.FAILED, end_reason=reason), None)
    assert await reporter.flush()
    (event,) = client.events
    check_text(event.reason, "reason", MAX_TEXT)
    assert event.reason.startswith(reason[:11])
