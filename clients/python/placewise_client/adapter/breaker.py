"""Keeps an adapter from waiting on a service that has just failed. Never opens for longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from placewise_client.backoff import Backoff

# A burst of jobs must not wait one budget each.
_PAUSES = Backoff(0.1, 1.0)


@dataclass(slots=True)
class Breaker:
    """Keeps questions away from a service that has just failed, for a short and growing time.

    `outages` counts how often the service went from answering to failing.
    """

    clock: Callable[[], float] = time.monotonic
    failed: int = 0
    open_until_s: float = float("-inf")
    reason: str = ""
    outages: int = 0

    def is_open(self) -> bool:
        return self.clock() < self.open_until_s

    def fail(self, reason: str) -> None:
        self.outages += self.failed == 0
        self.failed += 1
        self.open_until_s = self.clock() + _PAUSES.pause_s(self.failed)
        self.reason = reason

    def succeed(self) -> None:
        self.failed = 0
        self.open_until_s = float("-inf")
