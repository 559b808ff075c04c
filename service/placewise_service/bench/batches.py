"""The client of the throughput benchmark: many gangs at a time, in one request, over one stream, or by many callers.

    python -m placewise_service.bench.batches < plan.json > result.json

A decision is one gang placed and reserved. Its reservations are released before the next round, unmeasured.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import msgspec
import uvloop

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest
from placewise.v1.decision_pb2 import PLACED, PlaceRequest, PlaceResponse
from placewise_client.aio import AsyncClient
from placewise_service.bench.workload import Workload

_WARM_UP_ROUNDS = 1
_CALLERS = 16
_TIMEOUT_S = 60.0  # of one call: a throughput is measured, nothing may give up early

Ask = Callable[[list[PlaceRequest]], Awaitable[list[PlaceResponse]]]


class BatchPlan(msgspec.Struct, frozen=True):
    """What to measure: `rounds` of `batch` gangs for each way of asking."""

    workload: Workload
    target: str
    batch: int
    rounds: int


class BatchResult(msgspec.Struct):
    """Decisions per second by way of asking; decisions that a heuristic made instead, and gangs that found no place."""

    per_s: dict[str, float]
    fallbacks: int = 0
    errors: int = 0


class Batches:
    """One measurement."""

    def __init__(self, plan: BatchPlan) -> None:
        self._plan = plan
        self._result = BatchResult({})
        self._numbers = count()
        self._client = AsyncClient(plan.target, timeout_s=_TIMEOUT_S)

    async def run(self) -> BatchResult:
        """Measures every way of asking, by turns, so that other load on the machine falls on all of them."""
        ways: dict[str, Ask] = {"request": self._one_request, "stream": self._one_stream, "concurrent": self._callers}
        seconds = dict.fromkeys(ways, 0.0)
        for index in range(_WARM_UP_ROUNDS + self._plan.rounds):
            for name, ask in ways.items():
                spent_s = await self._round(ask)
                seconds[name] += spent_s if index >= _WARM_UP_ROUNDS else 0.0
        decisions = self._plan.rounds * self._plan.batch
        self._result.per_s = {name: decisions / spent_s for name, spent_s in seconds.items()}
        await self._client.close()
        return self._result

    async def _round(self, ask: Ask) -> float:
        """Seconds until the last answer is there."""
        requests = [self._plan.workload.place(next(self._numbers)) for _ in range(self._plan.batch)]
        began_s = time.perf_counter()
        answers = await ask(requests)
        spent_s = time.perf_counter() - began_s
        await self._give_back(answers)
        return spent_s

    async def _one_request(self, requests: list[PlaceRequest]) -> list[PlaceResponse]:
        whole = requests[0]
        for request in requests[1:]:
            whole.jobs.extend(request.jobs)
        return [await self._client.place(whole)]

    async def _one_stream(self, requests: list[PlaceRequest]) -> list[PlaceResponse]:
        return [answer async for answer in self._client.stream_place(requests)]

    async def _callers(self, requests: list[PlaceRequest]) -> list[PlaceResponse]:
        queue, answers = iter(requests), list[PlaceResponse]()

        async def caller() -> None:
            for request in queue:
                answers.append(await self._client.place(request))

        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
        return answers

    async def _give_back(self, answers: Sequence[PlaceResponse]) -> None:
        decisions = [decision for answer in answers for decision in answer.decisions]
        self._result.fallbacks += sum(len(answer.decisions) for answer in answers if answer.meta.fallback)
        self._result.errors += sum(decision.outcome != PLACED for decision in decisions)
        events = [
            JobEvent(job_id=d.job_id, kind=JobEvent.CANCELLED, reservation_id=d.reservation_id)
            for d in decisions
            if d.reservation_id
        ]
        request = ReportJobEventsRequest(cluster=self._plan.workload.cluster, events=events)
        await self._client.report_job_events(request)


async def _measure(plan: BatchPlan) -> BatchResult:
    return await Batches(plan).run()


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(_measure(msgspec.json.decode(sys.stdin.buffer.read(), type=BatchPlan))))
    )
