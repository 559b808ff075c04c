"""Clocks: what time it is, as an argument. Never sleeps."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)


class ManualClock:
    """A clock that stands still until it is moved: for tests and the simulator."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._monotonic_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Moves both clocks. Raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError("time does not run backwards; use jump() for a wall clock that is set back")
        self._now_s += seconds
        self._monotonic_s += seconds

    def jump(self, to_s: float) -> None:
        """Sets the wall clock alone, as an operator or NTP might."""
        self._now_s = to_s
