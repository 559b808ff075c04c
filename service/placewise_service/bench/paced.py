"""The client of `placewise bench shadow`: Place at half of saturation and at saturation, shadow on and off by turns.

A turn alternates three sides every half second, so that other load on the machine falls on all alike: without a
shadow, with it, and without it once more, which shows the noise. The rest that follows a shadow's decision falls on all
three: the service measured has a third of its share of the time for them, and so all of it on the side with a shadow.

    python -m placewise_service.bench.paced < plan.json > result.json

Requests come at random times (Poisson, the same ones for each side), whether or not earlier ones are
answered; a latency counts from the time at which its request was due. Reservations are released as part of the load.
"""

import asyncio
import gc
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

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
_STRETCH_S = 0.5
_WARM_UP_STRETCHES = 4
OFF: Final = "off"
ON: Final = "on"
CONTROL: Final = "control"  # off as well
SIDES: Final = (OFF, ON, CONTROL)
_COMPARED = 50  # requests one after another whose answers are compared


class PacedPlan(msgspec.Struct, frozen=True):
    """What to measure: `turns` of `seconds` of each side, at `share` of saturation; then a fifth as long at saturation
    by `callers`. `shadow` and `shadow_policy` are as in SetShadow."""

    workload: Workload
    target: str
    shadow: str
    shadow_policy: str
    turns: int
    seconds: float
    share: float
    callers: int


class Stretch(msgspec.Struct):
    """One stretch of one side: latencies in ms, how long it took, and the calls that failed or did not fit."""

    times_ms: list[float]
    busy_s: float
    errors: int


Turn = dict[str, list[Stretch]]  # by side; stretch i of each came beside those of the others
Load = Callable[[int, int], Awaitable[list[float]]]  # turn, stretch → latencies in ms


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
        rate = await self._saturation_rps()
        at_share = partial(self._paced, plan.share * rate)
        paced: list[Turn] = []
        saturated: list[Turn] = []
        for number in range(plan.turns):
            paced.append(await self._turn(at_share, plan.seconds, number))
            saturated.append(await self._turn(self._saturated, plan.seconds / 5, number))
        await self._set_shadow(False)
        await self._client.close()
        return PacedResult(rate, paced, saturated, answers[0] == answers[1])

    async def _set_shadow(self, is_on: bool) -> None:
        name, policy = (self._plan.shadow, self._plan.shadow_policy) if is_on else ("", "")
        await self._client.set_shadow(SetShadowRequest(name=name, policy=policy))

    async def _saturation_rps(self) -> float:
        """Answers per second at saturation, after a warm-up as long as the measurement."""
        calls, began_s = 0, time.perf_counter()
        for stretch in range(2 * _WARM_UP_STRETCHES):
            if stretch == _WARM_UP_STRETCHES:
                calls, began_s = 0, time.perf_counter()
            calls += len(await self._saturated(0, stretch))
            await self._release(self._placed)
        return calls / (time.perf_counter() - began_s)

    async def _turn(self, load: Load, seconds: float, number: int) -> Turn:
        found: Turn = defaultdict(list)
        for stretch in range(max(1, round(seconds / _STRETCH_S))):
            first = stretch % len(SIDES)  # who begins alternates
            for side in (*SIDES[first:], *SIDES[:first]):
                await self._set_shadow(side == ON)
                began_s = time.perf_counter()
                times_ms = await load(number, stretch)
                found[side].append(Stretch(times_ms, time.perf_counter() - began_s, 0))
                await self._release(self._placed)
                found[side][-1].errors, self._errors = self._errors, 0
        return found

    async def _paced(self, rate: float, number: int, stretch: int) -> list[float]:
        length = max(1, round(rate * min(_STRETCH_S, self._plan.seconds)))
        gaps = np.random.default_rng((number, stretch)).exponential(1.0 / rate, size=length)
        times_ms: list[float] = []
        async with asyncio.TaskGroup() as group:
            async for due_s in _due(time.perf_counter(), np.cumsum(gaps).tolist()):
                group.create_task(self._ask(due_s, times_ms))
        return times_ms

    async def _saturated(self, number: int, stretch: int) -> list[float]:
        del number, stretch  # the load is the same whenever it comes
        times_ms: list[float] = []
        until_s = time.perf_counter() + min(_STRETCH_S, self._plan.seconds)

        async def caller() -> None:
            while (now_s := time.perf_counter()) < until_s:
                await self._ask(now_s, times_ms)

        await asyncio.gather(*(caller() for _ in range(self._plan.callers)))
        return times_ms

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
    gc.set_threshold(3_000, 1, 1_000_000)  # a full collection would keep answers waiting for 40 ms or more
    return await Paced(plan).run()


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(_measure(msgspec.json.decode(sys.stdin.buffer.read(), type=PacedPlan))))
    )
