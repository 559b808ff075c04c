"""Work that waits until the answers are sent: counting and recording decisions."""

import asyncio
from collections.abc import Callable

_DELAY_S = 0.01


class Afterwards:
    """Acts of one event loop, carried out a moment later and several at a time.

    Work after each request would evict the next request's data from the processor's caches, and run cold itself. In a
    batch, the first item warms the caches for the others.
    """

    def __init__(self) -> None:
        self._acts: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def add(self, act: Callable[..., None], *args: object) -> None:
        """Calls `act(*args)` within 10 ms. Needs a running event loop."""
        self._acts.append((act, args))
        if len(self._acts) == 1:
            asyncio.get_running_loop().call_later(_DELAY_S, self.run)

    def run(self) -> None:
        """Carries out what waits, in the order of asking. An act that fails fails alone: the loop hears of it."""
        acts, self._acts = self._acts, []
        for act, args in acts:
            try:
                act(*args)
            except Exception as error:
                context = {"message": f"{act!r} failed after an answer", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
