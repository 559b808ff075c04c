"""Work that waits until the answers are sent: counting and recording decisions."""

import asyncio
from collections.abc import Callable, Sequence

_DELAY_S = 0.06  # answers to a burst of some tens of calls come first
_MOST_AT_ONCE = 64  # acts, some two milliseconds; a question that came meanwhile has its turn then

_Act = tuple[Callable[..., None], tuple[object, ...]]


class Afterwards:
    """Acts of one event loop, carried out a moment later and several at a time.

    Work after each request would evict the next request's data from the processor's caches, and run cold itself. In a
    batch, the first item warms the caches for the others.
    """

    def __init__(self) -> None:
        self._acts: list[_Act] = []

    def add(self, act: Callable[..., None], *args: object) -> None:
        """Calls `act(*args)` within some 60 ms. Needs a running event loop."""
        self._acts.append((act, args))
        if len(self._acts) == 1:
            asyncio.get_running_loop().call_later(_DELAY_S, self._turn)

    def run(self) -> None:
        """Carries out all that waits, in the order of asking. An act that fails fails alone: the loop hears of it."""
        acts, self._acts = self._acts, []
        _carry_out(acts)

    def _turn(self) -> None:
        """Carries out the first of those that wait, and the others in turns of their own."""
        acts = self._acts[:_MOST_AT_ONCE]
        del self._acts[:_MOST_AT_ONCE]
        if self._acts:
            asyncio.get_running_loop().call_soon(self._turn)
        _carry_out(acts)


def _carry_out(acts: Sequence[_Act]) -> None:
    for act, args in acts:
        try:
            act(*args)
        except Exception as error:
            context = {"message": f"{act!r} failed after an answer", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
