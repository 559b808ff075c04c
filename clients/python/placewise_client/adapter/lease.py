"""One adapter of a cluster decides at a time: the one that holds a lease and renews it.

Another waits. It takes over at once when the holder releases the lease, and after DURATION_S without a renewal. A
holder that could not renew for RENEW_LIMIT_S stops before that, so two never decide together. The waiting adapter
measures the silence by its own clock, from the moment when it saw the last renewal: clocks of two machines are never
compared.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import NoReturn

log = logging.getLogger(__name__)

# client-go's own defaults are 15, 10 and 2 seconds; an adapter that is away costs decisions, so ours are shorter.
DURATION_S = 8.0
RENEW_LIMIT_S = 5.0
RETRY_S = 1.0


class LeaseLostError(Exception):
    """The lease could not be renewed, or another adapter has taken it: this one must not decide any more."""


class LeaseStoreError(Exception):
    """The store of the lease did not answer, or refused."""


class Lease(ABC):
    """`identity` is this adapter's alone. Subclasses store the lease: one record, compared and set."""

    def __init__(self, name: str, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.identity = identity
        self.is_held = False
        self._clock = clock
        self._renewed_at_s = float("-inf")
        self._seen = ("", float("-inf"))

    @abstractmethod
    async def _read(self) -> tuple[str, str]:
        """(holder, version). Each write changes the version. Both are empty before the first holder.

        Raises LeaseStoreError.
        """

    @abstractmethod
    async def _write(self, version: str, holder: str) -> bool:
        """Makes `holder` the holder, only if nobody has written since `version`. False if somebody has.

        Raises LeaseStoreError.
        """

    async def acquire(self) -> None:
        """Returns when the lease is held. Waits for as long as another holds it."""
        holder = ""
        while True:
            found = await self.attempt()
            if self.is_held:
                log.info("this adapter (%s) holds lease %s", self.identity, self.name)
                return
            if found != holder:
                holder = found
                log.info("lease %s is held by %s: waiting", self.name, holder or "an unknown adapter")
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> NoReturn:
        """Renews it. Raises LeaseLostError."""
        while True:
            await asyncio.sleep(RETRY_S)
            holder = await self._attempt_in_time()
            if not self.is_held and holder and holder != self.identity:
                raise LeaseLostError(f"lease {self.name} was taken by {holder}")
            self.is_held = self._clock() - self._renewed_at_s < RENEW_LIMIT_S
            if not self.is_held:
                raise LeaseLostError(f"lease {self.name} could not be renewed for {RENEW_LIMIT_S:g} s")

    async def lead(self, work: Awaitable[None]) -> None:
        """Does `work` for as long as the lease is held, and ends with it. Raises LeaseLostError."""
        parts = [asyncio.ensure_future(self.keep()), asyncio.ensure_future(work)]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def release(self) -> None:
        """Releases the lease, so that another need not wait. Best effort."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            holder, version = await self._read()
            if holder == self.identity:
                await self._write(version, "")
        except LeaseStoreError as error:
            log.info("lease %s is not released: %s", self.name, error)

    async def attempt(self) -> str:
        """Takes or renews the lease if it may. Returns the holder, as far as known."""
        started_s = self._clock()
        try:
            holder, version = await self._read()
            if version != self._seen[0]:
                self._seen = (version, started_s)
            is_silent = started_s - self._seen[1] >= DURATION_S
            if holder not in ("", self.identity) and not is_silent:
                self.is_held = False
                return holder
            if not await self._write(version, self.identity):
                return ""  # another was faster
        except LeaseStoreError as error:
            log.warning("lease %s: %s", self.name, error)
            return ""
        # From before it was asked for: others count from when they see it, which is later.
        self.is_held, self._renewed_at_s = True, started_s
        return self.identity

    async def _attempt_in_time(self) -> str:
        """Storage that hangs must not keep the holder from noticing that its time is up."""
        try:
            async with asyncio.timeout(max(0.0, self._renewed_at_s + RENEW_LIMIT_S - self._clock())):
                return await self.attempt()
        except TimeoutError:
            return ""
