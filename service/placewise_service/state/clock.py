"""The store's clock as a Clock: the one time that all replicas share. Never asks the store while a caller waits.

Slots of a queue, the age of telemetry and the times in the log are counted in it, so that replicas agree on them
however their machines' clocks are set. Between two looks at the store it runs with the machine's monotonic clock, which
no operator and no NTP sets.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import StateUnavailableError
from placewise_service.background import cancel_and_wait

log = structlog.get_logger(__name__)

_PERIOD_S = 10.0  # monotonic clocks drift by less than a millisecond meanwhile
_CREDIBLE_S = 0.1  # the answer has the time of some moment between question and answer
_REMARKABLE_S = 1.0


class TimeSource(Protocol):
    """The part of the state store that has a clock."""

    async def ping(self) -> float:
        """Seconds since the Unix epoch. Raises StateUnavailableError."""
        ...


class StoreClock:
    """A Clock on the time of `source`; on that of `own` until the source was first heard of."""

    def __init__(self, source: TimeSource, own: Clock) -> None:
        self._source = source
        self._own = own
        self.monotonic_s: Callable[[], float] = own.monotonic_s  # itself: it is asked several times per decision
        self._offset_s = own.now_s() - own.monotonic_s()
        self._is_heard = False
        self._following: asyncio.Task[None] | None = None

    def now_s(self) -> float:
        return self.monotonic_s() + self._offset_s

    async def start(self) -> None:
        """Takes over the store's time, and follows it from then on. Raises StateUnavailableError."""
        await self.look()
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="store clock")

    async def close(self) -> None:
        """Ends the task. Idempotent."""
        await cancel_and_wait((self._following,))
        self._following = None

    async def look(self) -> None:
        """Asks the store once. An answer that was long on its way is not believed, unless it is the first."""
        before_s = self.monotonic_s()
        server_s = await self._source.ping()
        after_s = self.monotonic_s()
        if self._is_heard and after_s - before_s > _CREDIBLE_S:
            return
        self._offset_s = server_s - (before_s + after_s) / 2
        if not self._is_heard and abs(ahead_s := self._own.now_s() - self.now_s()) > _REMARKABLE_S:
            log.warning("this machine's clock is not the store's; the store's is used", ahead_s=round(ahead_s, 3))
        self._is_heard = True

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.look()
            except StateUnavailableError:
                continue  # the monotonic clock goes on
