"""How long to wait after a failure. The only back-off of the SDK and of the adapters."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_EXPONENT = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with each failure in a row, from `first_s` to `longest_s` seconds."""

    first_s: float
    longest_s: float

    def pause_s(self, failed: int) -> float:
        """Seconds to wait after the `failed`-th failure in a row (from 1)."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failed - 1, _LARGEST_EXPONENT))
