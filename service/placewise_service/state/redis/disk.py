"""Notices that the state store cannot write to its disk, and that it can again. Costs callers nothing.

A store in that state refuses every change and answers calls that only read. A look per second finds out in each
process, even if nobody asks for a change: a replica that is not ready gets no calls that could show the end of it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from placewise_core.domain.errors import StateUnavailableError
from placewise_service.background import cancel_and_wait
from placewise_service.state.errors import UnwritableStateError

log = structlog.get_logger(__name__)

_PERIOD_S = 1.0


class Writable(Protocol):
    """The part of the state store that says whether it takes changes."""

    async def check_writable(self) -> None:
        """Raises UnwritableStateError if the disk refuses, StateUnavailableError if the store does not answer."""
        ...


class DiskWatch:
    """Looks at `store` once a second; calls `show` at the beginning and at each change of whether it is unwritable."""

    def __init__(self, store: Writable, show: Callable[[bool], None]) -> None:
        self._store = store
        self._show = show
        self._problem = ""
        self._following: asyncio.Task[None] | None = None
        show(False)

    def problem(self) -> str:
        """Why changes are refused; "" while they are not."""
        return self._problem

    def start(self) -> None:
        """Looks from now on, in the background."""
        self._following = asyncio.create_task(self._follow(), name="state disk")

    async def close(self) -> None:
        """Ends the task. Idempotent."""
        await cancel_and_wait((self._following,))
        self._following = None

    async def look(self) -> None:
        """Asks once. A store that does not answer keeps its last state."""
        try:
            await self._store.check_writable()
        except UnwritableStateError as error:
            if not self._problem:
                log.error("every change is refused until there is room on the state store's disk", reason=error.message)
                self._show(True)
            self._problem = f"{error.message}: make room there, or see the log of Redis"
        except StateUnavailableError:
            return
        else:
            if self._problem:
                log.info("the state store writes to its disk again")
                self._show(False)
            self._problem = ""

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_PERIOD_S)
