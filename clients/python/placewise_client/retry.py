"""When to try a call again, and how long to wait before: pure arithmetic, shared by both clients."""

from __future__ import annotations

import random
from dataclasses import dataclass

from placewise_client.errors import PlacewiseError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, inside the overall deadline of the call.

    Only StaleSnapshot, Overloaded and StateUnavailable are tried again. A delay the service asks for is waited in full;
    if it does not fit into the time left, the error is raised at once.
    """

    attempts: int = 4
    first_delay_s: float = 0.05
    longest_delay_s: float = 2.0

    def delay_s(self, failed: int, error: PlacewiseError, left_s: float, rng: random.Random) -> float | None:
        """Seconds to wait after the `failed`-th failure (from 1), or None to give up."""
        if not error.is_retryable or failed >= self.attempts:
            return None
        ceiling_s = min(self.longest_delay_s, self.first_delay_s * 2.0 ** (failed - 1))
        delay_s = rng.uniform(0.0, ceiling_s)
        if error.retry_delay_s is not None:
            # Jitter comes on top of what was asked for, or all who were shed would come back together.
            delay_s += error.retry_delay_s
        return delay_s if delay_s < left_s else None


DEFAULT_RETRY = RetryPolicy()
