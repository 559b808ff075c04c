"""A proxy that passes every call to the decision service byte for byte and keeps the placements it answered.

It is the tests' own witness of the decisions, apart from both the adapter and the service.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest
from placewise.v1.decision_pb2 import (
    PLACED,
    AdmitOrWaitRequest,
    AdmitOrWaitResponse,
    PlaceRequest,
    PlaceResponse,
)
from placewise_client.http1 import HttpPool

PLACE = "/placewise.v1.DecisionService/Place"
ADMIT_OR_WAIT = "/placewise.v1.DecisionService/AdmitOrWait"
REPORT_JOB_EVENTS = "/placewise.v1.ClusterService/ReportJobEvents"
BAD_GATEWAY = 502
# Headers of one connection, not of its messages.
HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "date", "server"})


class Recorder:
    """`decided` holds, by job id, how many tasks each node was given by the last answer; `started` the last report of
    its start."""

    def __init__(self, target: str) -> None:
        self._pool = HttpPool(target.removeprefix("http://"))
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        self.port = 0
        self.decided: dict[str, Counter[str]] = {}
        self.started: dict[str, JobEvent] = {}
        self.answers: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @property
    def target(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Recorder:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._pool.close()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        self.calls[request.path.rsplit("/", 1)[1]] += 1
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        try:
            answer = await self._pool.request(request.method, request.path, headers, body)
        except (OSError, asyncio.IncompleteReadError):
            return web.Response(status=BAD_GATEWAY)
        if answer.status == 200:
            self._record(request.path, body, answer.body)
        passed = {name: value for name, value in answer.headers.items() if name not in HOP}
        return web.Response(status=answer.status, headers=passed, body=answer.body)

    def _record(self, path: str, request: bytes, response: bytes) -> None:
        if path == PLACE and not PlaceRequest.FromString(request).dry_run:
            self._note(PlaceResponse.FromString(response))
        if path == ADMIT_OR_WAIT and not AdmitOrWaitRequest.FromString(request).dry_run:
            self._note(AdmitOrWaitResponse.FromString(response).placed)
        if path == REPORT_JOB_EVENTS:
            events = ReportJobEventsRequest.FromString(request).events
            self.started.update((event.job_id, event) for event in events if event.kind == JobEvent.STARTED)

    def _note(self, response: PlaceResponse) -> None:
        for decision in response.decisions:
            self.answers[decision.job_id] += decision.outcome == PLACED
            if decision.outcome == PLACED:
                self.decided[decision.job_id] = Counter(task.node for task in decision.assignments)
