"""The order in which a host asks about its queues, if its policy tries the jobs of a queue in their order.

A policy that is asked about all queues at once promises the same idle GPUs to jobs of several queues, and most of these
jobs then find no place. By turns, each question follows the starts of the one before. Decides nothing.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class QueueTurn(NamedTuple):
    """The jobs `[first, behind)` of a queue are the next to be asked about. `is_front`: no job waits before them."""

    queue: str
    first: int
    behind: int
    is_front: bool


class Turns(Generic[T]):
    """One round over all queues, whose jobs have increasing numbers. The queue whose next job has the least number
    comes next. Its first job is asked about alone: it starts, or becomes the head. All behind it are asked about in one
    go, up to the first jobs of other queues that were not asked about in this round."""

    def __init__(self, queues: Mapping[str, Sequence[T]], number: Callable[[T], int]) -> None:
        self._queues = queues
        self._number = number
        self._next = [(number(jobs[0]), queue, 0, True) for queue, jobs in queues.items() if jobs]
        heapq.heapify(self._next)

    def take(self) -> QueueTurn | None:
        """The next turn; None at the end of the round. The caller tells how it ended before it takes another."""
        if not self._next:
            return None
        _, queue, first, is_front = heapq.heappop(self._next)
        if is_front:
            return QueueTurn(queue, first, first + 1, is_front=True)
        until = min((number for number, _, _, waits in self._next if waits), default=math.inf)
        return QueueTurn(
            queue, first, bisect_left(self._queues[queue], until, lo=first, key=self._number), is_front=False
        )

    def end(self, turn: QueueTurn, *, has_started: bool) -> None:
        """Jobs of the turn were admitted, or none."""
        jobs = self._queues[turn.queue]
        if turn.behind < len(jobs):
            entry = self._number(jobs[turn.behind]), turn.queue, turn.behind, turn.is_front and has_started
            heapq.heappush(self._next, entry)
