"""Slices that can be counted: a clock that moves when it is read, and an observer that has a turn in every round."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from placewise_core.basics.clock import ManualClock

T = TypeVar("T")


class TickingClock(ManualClock):
    """Each reading of the monotonic clock takes a millisecond: a slice ends after so many steps, on any machine."""

    readings = 0

    def monotonic_s(self) -> float:
        self.readings += 1
        return super().monotonic_s() + 0.001 * self.readings


class Counting:
    """Slices of one decision in one go: how often it would pause, and its work aside."""

    def __init__(self) -> None:
        self.pauses = 0
        self.asides = 0

    def pause(self) -> None:
        self.pauses += 1

    def aside(self, work: Callable[[], T]) -> T:
        self.asides += 1
        return work()


@asynccontextmanager
async def every_round(act: Callable[[int], object]) -> AsyncIterator[list[int]]:
    """Calls `act(number of the round)` in every round of the event loop; the list has the rounds' numbers."""
    rounds: list[int] = []

    async def observe() -> None:
        while True:
            rounds.append(len(rounds))
            act(rounds[-1])
            await asyncio.sleep(0)

    task = asyncio.create_task(observe())
    try:
        yield rounds
        if task.done():
            task.result()
    finally:
        task.cancel()
