"""Keeps an adapter from waiting on a service that has just failed. Never opens for longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# After a failure the service is asked again no sooner than this, so that a burst of jobs does not each wait a budget.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


@dataclass(slots=True)
class Breaker:
    """Keeps questions away from a service that has just failed, for a short and growing time.

    `outages` counts how often the service went from answering to failing.
    """

    clock: Callable[[], float] = time.monotonic
    pause_s: float = 0.0
    open_until_s: float = float("-inf")
    reason: str = ""
    outages: int = 0

    def is_open(self) -> bool:
        return self.clock() < self.open_until_s

    def fail(self, reason: str) -> None:
        self.outages += self.pause_s == 0.0
        self.pause_s = min(_LONGEST_PAUSE_S, self.pause_s * 2 or _FIRST_PAUSE_S)
        self.open_until_s = self.clock() + self.pause_s
        self.reason = reason

    def succeed(self) -> None:
        self.pause_s = 0.0
        self.open_until_s = float("-inf")
