"""Look-ups of the steps of jobs in Slurm's accounting: soon after a reason for it, a few times, one after the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from placewise_client.backoff import Backoff
from placewise_slurm.http import TransportError
from placewise_slurm.records import SlurmStep

log = logging.getLogger(__name__)

HELP = (
    'Run slurmdbd, and slurmrestd with its plugin for it (openapi/dbv… or slurmdbd), or set hooks.share_steps = "job".'
)

# slurmdbd knows a step within a second.
_WAITS = Backoff(0.5, 8.0)
_MOST_LOOKS = 5
# Between two look-ups of any jobs: slurmdbd has other work.
_PAUSE_S = 0.2
_MOST_JOBS = 1000


class Learn(Protocol):
    """Takes the steps of a job, None if accounting did not answer. True if the job needs no more look-ups."""

    def __call__(self, job_id: int, steps: Sequence[SlurmStep] | None, *, is_last: bool) -> bool: ...


@dataclass(slots=True)
class _Due:
    at_s: float
    asked: int = 0


@dataclass(slots=True)
class StepLookups:
    """`ask` returns the steps of one job or raises TransportError. `run` looks up what `want` asks for."""

    ask: Callable[[int], Awaitable[Sequence[SlurmStep]]]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _due: dict[int, _Due] = field(default_factory=dict)
    _has_due: asyncio.Event = field(default_factory=asyncio.Event)
    _is_silent: bool = False

    def want(self, job_id: int) -> bool:
        """The job's steps have changed, or must be looked up again. False if too many jobs wait already."""
        if job_id not in self._due and len(self._due) >= _MOST_JOBS:
            return False
        at_s = self.clock() + _WAITS.pause_s(1)
        known = self._due.get(job_id)
        self._due[job_id] = _Due(min(at_s, known.at_s) if known else at_s)
        self._has_due.set()
        return True

    async def run(self, learn: Learn) -> None:
        """Looks up until it is cancelled."""
        while True:
            await self._has_due.wait()
            await self.look(learn)

    async def look(self, learn: Learn) -> None:
        """The look-up that is due first, when it is due. At least one has to be wanted."""
        first = min(due.at_s for due in self._due.values())
        await self.sleep(max(_PAUSE_S, first - self.clock()))
        job_id, due = min(self._due.items(), key=lambda item: item[1].at_s)
        due.at_s, due.asked = float("inf"), due.asked + 1  # `want` may make it new meanwhile
        steps = await self._steps(job_id)
        is_new = self._due[job_id] is not due
        is_last = due.asked == _MOST_LOOKS and not is_new
        if learn(job_id, steps, is_last=is_last) or is_last:
            del self._due[job_id]
        elif not is_new:
            due.at_s = self.clock() + _WAITS.pause_s(due.asked + 1)
        if not self._due:
            self._has_due.clear()

    async def _steps(self, job_id: int) -> Sequence[SlurmStep] | None:
        try:
            steps = await self.ask(job_id)
        except TransportError as error:
            if not self._is_silent:
                log.warning("times of shares are not reported, as slurmrestd shows no steps: %s. %s", error, HELP)
            self._is_silent = True
            return None
        self._is_silent = False
        return steps
