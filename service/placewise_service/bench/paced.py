"""The client of `placewise bench shadow`: Place at half of saturation and at saturation, shadow on and off by turns.

    python -m placewise_service.bench.paced < plan.json > result.json

Requests come at random times (Poisson, the same ones with the shadow on and off), whether or not earlier ones are
answered; a latency counts from the time at which its request was due. Reservations are released as part of the load.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count

import msgspec
import numpy as np
import uvloop

from placewise.v1.bundle_pb2 import SetShadowRequest
from placewise.v1.cluster_pb2 import Assignment, JobEvent, ReportJobEventsRequest
from placewise.v1.decision_pb2 import PLACED, PlaceResponse
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_service.bench.load import SAMPLE
from placewise_service.bench.workload import Workload

_TIMEOUT_S = 60.0
_RELEASED_TOGETHER = 16
_COMPARED = 50  # requests one after another whose answers are compared


class PacedPlan(msgspec.Struct, frozen=True):
    """What to measure: `turns` of `seconds` off and on, at `share` of saturation; then at saturation by `callers`.
    `shadow` and `shadow_policy` are as in SetShadow."""

    workload: Workload
    target: str
    shadow: str
    shadow_policy: str
    turns: int
    seconds: float
    share: float
    callers: int


class Turn(msgspec.Struct):
    """One turn: latencies in ms, answers per second, and the calls that failed or did not fit."""

    is_shadowed: bool
    p50_ms: float
    p99_ms: float
    rps: float
    calls: int
    errors: int


class PacedResult(msgspec.Struct):
    """`paced` and `saturated` hold the turns in their order."""

    saturation_rps: float
    paced: list[Turn]
    saturated: list[Turn]
    answers_equal: bool


class Paced:
    """One measurement."""

    def __init__(self, plan: PacedPlan) -> None:
        self._plan = plan
        self._client = AsyncClient(plan.target, timeout_s=_TIMEOUT_S, retry=None)
        self._numbers = count()
        free = plan.workload.free_gangs  # more at once would find no room
        self._room, self._together = asyncio.Semaphore(free), max(1, min(_RELEASED_TOGETHER, free // 2))
        self._placed: list[JobEvent] = []
        self._errors = 0

    async def run(self) -> PacedResult:
        """All turns; the first, at saturation, warms up and sets the pace."""
        plan = self._plan
        sample = plan.workload.place(SAMPLE).jobs[0].id  # would stand in the way for a second
        await self._report([JobEvent(job_id=sample, kind=JobEvent.CANCELLED)])
        answers = [await self._compared(is_shadowed) for is_shadowed in (False, True)]
        await self._set_shadow(False)
        await self._saturated(False)
        rate = (await self._saturated(False)).rps
        # Who begins alternates, so that other load on the machine falls on both.
        sides = [is_on for turn in range(plan.turns) for is_on in (turn % 2 == 1, turn % 2 == 0)]
        paced = [await self._paced(is_on, plan.share * rate, seed=i // 2) for i, is_on in enumerate(sides)]
        saturated = [await self._saturated(is_on) for is_on in sides]
        await self._set_shadow(False)
        await self._client.close()
        return PacedResult(rate, paced, saturated, answers[0] == answers[1])

    async def _set_shadow(self, is_on: bool) -> None:
        name, policy = (self._plan.shadow, self._plan.shadow_policy) if is_on else ("", "")
        await self._client.set_shadow(SetShadowRequest(name=name, policy=policy))

    async def _paced(self, is_shadowed: bool, rate: float, seed: int) -> Turn:
        await self._set_shadow(is_shadowed)
        gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=max(1, round(rate * self._plan.seconds)))
        times_ms: list[float] = []
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            async for due_s in _due(began_s, np.cumsum(gaps).tolist()):
                group.create_task(self._ask(due_s, times_ms))
        return await self._turn(is_shadowed, times_ms, time.perf_counter() - began_s)

    async def _saturated(self, is_shadowed: bool) -> Turn:
        await self._set_shadow(is_shadowed)
        times_ms: list[float] = []
        began_s = time.perf_counter()
        until_s = began_s + self._plan.seconds

        async def caller() -> None:
            while (now_s := time.perf_counter()) < until_s:
                await self._ask(now_s, times_ms)

        await asyncio.gather(*(caller() for _ in range(self._plan.callers)))
        return await self._turn(is_shadowed, times_ms, time.perf_counter() - began_s)

    async def _turn(self, is_shadowed: bool, times_ms: Sequence[float], seconds: float) -> Turn:
        await self._release(self._placed)
        p50, p99 = np.percentile(times_ms or [0.0], (50, 99))
        errors, self._errors = self._errors, 0
        return Turn(is_shadowed, float(p50), float(p99), len(times_ms) / seconds, len(times_ms), errors)

    async def _ask(self, due_s: float, times_ms: list[float]) -> None:
        await self._room.acquire()
        try:
            answer = await self._client.place(self._plan.workload.place(next(self._numbers)))
        except PlacewiseError:
            self._errors += 1
            self._room.release()
            return
        times_ms.append((time.perf_counter() - due_s) * 1000.0)
        if not self._note(answer):
            self._room.release()
        if len(self._placed) >= self._together:
            await self._release(self._placed)

    def _note(self, answer: PlaceResponse) -> bool:
        """True if the job of the answer holds something, until it is released."""
        (decision,) = answer.decisions
        self._errors += decision.outcome != PLACED
        if decision.reservation_id:
            event = JobEvent(job_id=decision.job_id, kind=JobEvent.CANCELLED)
            event.reservation_id = decision.reservation_id
            self._placed.append(event)
        return bool(decision.reservation_id)

    async def _release(self, events: list[JobEvent]) -> None:
        released, self._placed = events, []
        if released:
            await self._report(released)
            for _ in released:
                self._room.release()

    async def _report(self, events: Sequence[JobEvent]) -> None:
        request = ReportJobEventsRequest(cluster=self._plan.workload.cluster, events=events)
        await self._client.report_job_events(request)

    async def _compared(self, is_shadowed: bool) -> list[bytes]:
        """The placements of the same questions, one after another."""
        await self._set_shadow(is_shadowed)
        found = []
        for number in range(_COMPARED):
            request = self._plan.workload.place(-2 - number - _COMPARED * is_shadowed)
            request.seed = number
            await self._room.acquire()
            answer = await self._client.place(request)
            if not self._note(answer):
                self._room.release()
            found.append(b"".join(task.SerializeToString(deterministic=True) for task in _tasks(answer)))
            await self._release(self._placed)
        return found


def _tasks(answer: PlaceResponse) -> Sequence[Assignment]:
    return [task for decision in answer.decisions for task in decision.assignments]


async def _due(began_s: float, offsets_s: Sequence[float]) -> AsyncIterator[float]:
    """Each time, once it has come."""
    for offset_s in offsets_s:
        due_s = began_s + offset_s
        wait_s = due_s - time.perf_counter()
        await asyncio.sleep(max(0.0, wait_s))
        yield due_s


async def _measure(plan: PacedPlan) -> PacedResult:
    return await Paced(plan).run()


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(_measure(msgspec.json.decode(sys.stdin.buffer.read(), type=PacedPlan))))
    )
