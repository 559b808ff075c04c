"""Work on decisions that were answered, for the log: behind everything else, and shed first.

One study at a time, in short slices, and for no more than a given share of the time. A rest follows each slice, so that
a call meets few of them. Each study uses up time that comes back at the given share. Studies that come while none is
left, or find the queue full, are shed. Never fails a decision.
"""

import asyncio
import math
from collections import deque
from typing import Final, Protocol

import structlog

from placewise_core.basics.clock import Clock
from placewise_core.basics.slices import Slices
from placewise_service.background import cancel_and_wait
from placewise_service.engine.slicing import Slicing

log = structlog.get_logger(__name__)

_MOST_QUEUED: Final = 8  # each keeps copies of a view
_SLICE_S: Final = 0.0005  # calls that came meanwhile wait for no more than one step of a policy
_LONGEST_REST: Final = 9.0  # of a slice, in its own length: a study works for a tenth of the time until it is done


class Deferred(Protocol):
    """A study of one decision. Exactly one of `finish` and `shed` is called, once."""

    @property
    def decision_id(self) -> str:
        """The decision that was answered."""
        ...

    def study(self, slices: Slices) -> None:
        """Does the work, pausing between its steps. May raise anything."""
        ...

    def finish(self) -> None:
        """Logs what `study` found; nothing if it raised."""
        ...

    def shed(self) -> None:
        """There is no time for the study."""
        ...


class Studying:
    """Studies in turn, at most `most` waiting, for at most `time_share` of the time. One event loop owns it.

    Each counts `costs` times: with cold caches and a wait for each slice, calls pay more than a study's own time.
    After a quiet time as many as may wait come in one go; under load one comes whenever the time for it has come back.
    """

    def __init__(self, clock: Clock, time_share: float, most: int = _MOST_QUEUED, costs: float = 1.0) -> None:
        self._rest, self._most = costs * (1.0 / time_share - 1.0), most
        self._slicing = Slicing(clock.monotonic_s, _SLICE_S)
        self._slicing.rest = min(self._rest, _LONGEST_REST)
        self._clock = clock
        self._rests_until_s = -math.inf
        self._study_s = 0.0  # of the latest study without its rests: longer under load, as calls come between
        self._queue: deque[Deferred] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether a study offered now would be done."""
        due_s = self._rests_until_s + self._rest * self._study_s * len(self._queue)
        return len(self._queue) < self._most and self._clock.monotonic_s() >= due_s

    def offer(self, study: Deferred) -> None:
        """Takes over a study, or sheds it at once if there is no time."""
        if not self.has_room:
            study.shed()
            return
        self._queue.append(study)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="studies")

    async def finish(self) -> None:
        """Works out everything that waits, without a rest."""
        if self._task is not None:
            rest, self._slicing.rest = self._slicing.rest, 0.0
            try:
                await self._task
            finally:
                self._slicing.rest = rest

    async def close(self) -> None:
        """Ends the work; what still waits is shed."""
        await cancel_and_wait((self._task,))
        self._task = None
        while self._queue:
            self._queue.popleft().shed()

    async def _run(self) -> None:
        while self._queue:
            study = self._queue[0]
            began_s, rested_s = self._clock.monotonic_s(), self._slicing.rested_s
            try:
                await self._slicing.run(study.study)
            except Exception:  # of no consequence for any answer
                log.exception("a study of a decision failed", decision_id=study.decision_id)
            self._queue.popleft().finish()
            now_s = self._clock.monotonic_s()
            self._study_s = now_s - began_s - (self._slicing.rested_s - rested_s)
            rest_s = self._rest * self._study_s
            self._rests_until_s = max(now_s - rest_s * (self._most - 1), self._rests_until_s) + rest_s
