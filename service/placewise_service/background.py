"""Ends background tasks for certain. Starts none."""

import asyncio
from collections.abc import Iterable
from typing import Any

_ASK_AGAIN_S = 0.2


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancels the tasks and returns when all are done, even if they raised.

    A cancellation can meet the end of a read inside the Redis client and be lost there; a stop that waited for such a
    task once would wait for ever. So it is asked again until it is gone.
    """
    left = {task for task in tasks if task is not None}
    for task in left:
        task.add_done_callback(_retrieve)  # also where the one who waits is cancelled first
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_ASK_AGAIN_S)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Takes the task's error, so that asyncio does not log it when the task is collected."""
    if not task.cancelled():
        task.exception()
