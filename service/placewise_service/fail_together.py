"""One at a time, and all who wait fail together: if each asked in turn a store that hangs, each would wait for its own
failure behind those of the others."""

import asyncio
from types import TracebackType

from placewise_core.domain.errors import StateUnavailableError


class FailTogether:
    """A lock of one event loop. The store's failure to answer its holder is that of all who wait for the lock then."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failures = 0
        self._message = ""

    async def acquire(self) -> None:
        """Returns when it is the caller's turn. Raises StateUnavailableError if the store failed a holder meanwhile."""
        before = self._failures
        await self._lock.acquire()
        if self._failures != before:
            self._lock.release()
            raise StateUnavailableError(self._message)

    def release(self) -> None:
        self._lock.release()

    def fail(self, error: StateUnavailableError) -> None:
        """The store did not answer the holder."""
        self._failures += 1
        self._message = error.message

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StateUnavailableError):
            self.fail(error)
        self.release()
