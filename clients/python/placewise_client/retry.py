"""When to try a call again, and how long to wait before: pure arithmetic, shared by both clients."""

from __future__ import annotations

import random
from dataclasses import dataclass

from placewise_client.backoff import Backoff
from placewise_client.errors import PlacewiseError, StateUnavailableError

# More tries could harm a busy service, or repeat a call that was carried out.
_FEW_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, inside the overall deadline of the call.

    Only StaleSnapshot, Overloaded and StateUnavailable are tried again. A delay the service asks for is waited in full;
    if it does not fit into the time left, the error is raised at once.

    `attempts`: the most tries. None: while the service is unavailable (it restarts, or cannot be reached) as many as
    the deadline allows, of a call that may be repeated or that has not left this process; else 4.
    """

    attempts: int | None = None
    first_delay_s: float = 0.05
    longest_delay_s: float = 2.0

    def delay_s(self, failed: int, error: PlacewiseError, left_s: float, rng: random.Random) -> float | None:
        """Seconds to wait after the `failed`-th failure (from 1), or None to give up."""
        is_last = self.attempts is not None and failed >= self.attempts
        if not error.is_retryable or is_last or left_s < self.first_delay_s:
            return None
        pause_s = Backoff(self.first_delay_s, self.longest_delay_s).pause_s(failed)
        # The next try gets half of the time left.
        delay_s = rng.uniform(0.0, min(pause_s, left_s / 2.0))
        if error.retry_delay_s is not None:
            # Jitter comes on top of the service's delay, or all shed callers would come back together.
            delay_s += error.retry_delay_s
        return delay_s if delay_s < left_s else None


@dataclass(slots=True)
class Tries:
    """The failures of one call. `is_repeatable`: it may be carried out twice without harm."""

    policy: RetryPolicy | None
    is_repeatable: bool
    rng: random.Random
    _failed: int = 0
    _limited: int = 0

    def delay_s(self, error: PlacewiseError, left_s: float) -> float | None:
        """Notes one more failure; seconds to wait, or None to give up."""
        if self.policy is None:
            return None
        self._failed += 1
        is_away = isinstance(error, StateUnavailableError)
        self._limited += not (is_away and (self.is_repeatable or not error.was_sent))
        if self.policy.attempts is None and self._limited >= _FEW_ATTEMPTS:
            return None
        return self.policy.delay_s(self._failed, error, left_s, self.rng)


DEFAULT_RETRY = RetryPolicy()
