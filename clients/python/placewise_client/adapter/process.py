"""What a process that runs an adapter asks of Python, so that a scheduler which waits for it waits less."""

from __future__ import annotations

import gc


def settle_garbage_collector() -> None:
    """What is loaded now stays: without this every collection would walk it, in the middle of an answer.

    A first generation of 20 000 objects is some hundred answers; the collections in between took up to 0.9 ms each.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
