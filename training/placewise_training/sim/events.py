"""The event queue: a heap in (time, kind, order of pushing), and the running hash of the events taken from it."""

import enum
import hashlib
import heapq
import struct
from collections.abc import Sequence
from typing import Any

from placewise_core.basics.frozen import frozen


class EventKind(enum.IntEnum):
    """At equal times the lower value goes first: what frees resources before what asks for them."""

    FINISH = 0
    FAULT = 1
    TELEMETRY = 2
    ARRIVAL = 3
    TICK = 4


@frozen
class QueuedEvent:
    time_s: float
    kind: EventKind
    payload: Any
    version: int = 0


class EventQueue:
    """Events in time order; equal times by kind, then in the order they were pushed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Any, int]] = []
        self._pushed = 0

    def push(self, time_s: float, kind: EventKind, payload: Any = None, version: int = 0) -> None:
        if not time_s < float("inf"):
            raise ValueError(f"an event needs a finite time, not {time_s}")
        self._pushed += 1
        heapq.heappush(self._heap, (time_s, int(kind), self._pushed, payload, version))

    def pop(self) -> QueuedEvent:
        time_s, kind, _, payload, version = heapq.heappop(self._heap)
        return QueuedEvent(time_s, EventKind(kind), payload, version)

    @property
    def next_time_s(self) -> float:
        """Time of the next event, inf if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def __len__(self) -> int:
        return len(self._heap)


class EventHash:
    """A digest over all events: equal for equal runs, on any machine."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, time_s: float, kind: str, number: int, places: Sequence[str] = ()) -> None:
        self._hash.update(struct.pack("<dq", time_s, number))
        self._hash.update(kind.encode())
        for place in places:
            self._hash.update(place.encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
