"""Runs synchronous work on the event loop in slices of a few milliseconds; in between everybody else has a turn.

The work runs on a stack of its own (a greenlet): core stays synchronous, and a decision can stop in the middle of any
policy. One slice runs per round of the loop, however many decisions want one.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from placewise_core.basics.slices import Slices
from placewise_core.domain.errors import DeadlineExceededError

T = TypeVar("T")

SLICE_S = 0.005  # a round of the loop is noticed by nobody at this length; a switch costs a hundredth of it


class _Late(BaseException):
    """Ends work whose deadline has passed. No Exception: another policy would answer for a policy's exception."""


class Slicing:
    """Shares one event loop between long pieces of work, and with all others.

    After each slice it rests `rest` times as long, for one round of the loop at least.
    """

    def __init__(self, monotonic_s: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._monotonic_s = monotonic_s
        self._slice_s = slice_s
        self._turn = asyncio.Lock()
        self.rest = 0.0
        self.rested_s = 0.0  # in all

    async def run(self, work: Callable[[Slices], T], deadline_s: float = math.inf) -> T:
        """The result of `work`, which calls `pause` between its steps.

        A cancellation ends the work at its next pause, with its `finally` clauses. Raises the work's errors, and
        DeadlineExceededError.
        """
        slices = _Running(self._monotonic_s, self._slice_s)
        worker = greenlet(lambda _: work(slices))
        worker.gr_context = contextvars.copy_context()
        asked: Any = None  # a step to be done aside, or the result
        given: Any = None
        rest_s = 0.0
        while True:
            try:
                given = None if asked is None else await asyncio.to_thread(asked)
                async with self._turn:
                    await asyncio.sleep(rest_s)  # a round for the others
                    self.rested_s += rest_s
                    if self._monotonic_s() >= deadline_s:
                        raise _Late
                    began_s = slices.begin()
                    asked = worker.switch(given)
            except BaseException as error:
                if not worker:  # not begun, or over: then the error is its own
                    raise _shown(error) from None
                began_s = slices.begin()
                asked = _thrown(worker, error)
            rest_s = self.rest * (self._monotonic_s() - began_s)
            if worker.dead:
                return asked  # type: ignore[no-any-return]


def _thrown(worker: greenlet, error: BaseException) -> Any:
    try:
        return worker.throw(error)
    except BaseException as raised:
        raise _shown(raised) from None


def _shown(error: BaseException) -> BaseException:
    if isinstance(error, _Late):
        return DeadlineExceededError("the deadline passed before the decision was complete")
    return error


class _Running:
    """Slices of one piece of work, as it sees them. See placewise_core.basics.slices.Slices."""

    def __init__(self, monotonic_s: Callable[[], float], slice_s: float) -> None:
        self._monotonic_s = monotonic_s
        self._slice_s = slice_s
        self._loop = getcurrent()
        self._until_s = 0.0

    def begin(self) -> float:
        """Begins a slice. Returns the time."""
        began_s = self._monotonic_s()
        self._until_s = began_s + self._slice_s
        return began_s

    def pause(self) -> None:
        if self._monotonic_s() >= self._until_s:
            self._loop.switch(None)

    def aside(self, work: Callable[[], T]) -> T:
        return self._loop.switch(work)  # type: ignore[no-any-return]
