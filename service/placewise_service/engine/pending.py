"""An answer while the store is asked to hold it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

Decision = TypeVar("Decision")


class Pending(Generic[Decision]):
    """A decision that the view assumes already, with the store's agreement on its way.

    `decision` can be written down meanwhile; most become the answer. Await `settled` once for the answer itself. A
    pending decision that nobody awaits, because its caller was cancelled or failed, settles in a task of its own.
    """

    __slots__ = ("_settling", "decision")

    def __init__(self, decision: Decision, settling: Coroutine[Any, Any, Decision] | None = None) -> None:
        """`settling` asks for the store's agreement; None if the decision needs none."""
        self.decision: Decision = decision
        self._settling: Coroutine[Any, Any, Decision] | None = settling

    @property
    def is_settled(self) -> bool:
        """True if `decision` is the answer."""
        return self._settling is None

    async def settled(self) -> Decision:
        """The answer: `decision` with its expiry, another one after a conflict, or the first one given to a repeated
        question. Raises what deciding raises."""
        settling, self._settling = self._settling, None
        return self.decision if settling is None else await settling

    def __del__(self) -> None:
        if self._settling is None:
            return
        try:
            abandoned = asyncio.get_running_loop().create_task(self._settling, name="settle an abandoned decision")
        except RuntimeError:  # the loop has ended, and the view with it
            self._settling.close()
        else:
            _ABANDONED.add(abandoned)
            abandoned.add_done_callback(_end)


_ABANDONED: set[asyncio.Task[Any]] = set()  # a loop keeps no task alive


def _end(abandoned: asyncio.Task[Any]) -> None:
    _ABANDONED.discard(abandoned)
    if not abandoned.cancelled():
        abandoned.exception()  # looked at: nobody else will
