"""Guards of a canary: sequential tests of whether it does worse, valid however often anybody looks. Pure.

An *event* is a bad end of one job: a fallback answered, it found no place, its decision took long, it ran slowly. The
arms are assigned by a hash, so while the canary does no worse than the incumbent each event is the canary's with a
probability p₀ of at most the share s, whatever the rate of events is and however it changes. If the canary has r times
the incumbent's odds of an event, that probability is p(r) = r·s/(r·s + 1 − s). With k of n events the canary's,

    E = mean over r in RATIOS of (p(r)/s)ᵏ·((1 − p(r))/(1 − s))ⁿ⁻ᵏ

is a mean of likelihood ratios: a nonnegative supermartingale that begins at 1, so that it ever reaches 1/α with a
probability of at most α (Ville 1939; Wald 1945; Robbins 1970; Ramdas et al., "Game-theoretic statistics and safe
anytime-valid inference", Statistical Science 2023). E of several shares multiply. Each job counts once.

By time the pair of blocks of a period is what counts: the canary's block has the larger or the smaller rate of events,
with equal probability under the null, as the order is drawn; pairs with equal rates count for nothing.
"""

import enum
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from placewise_core.basics.frozen import frozen

ALPHA: Final = 0.05  # of rolling back a canary that does as well, by any guard, ever
RATIOS: Final = (1.15, 1.3, 1.5, 2.0, 3.0, 6.0)
FAILURES: Final = 10  # of the canary's policy, one after the other: it ends at once
# A decision is slow, and a job runs slowly, beyond so many times the incumbent's median: the geometric middle between
# that and latency × 1.5 or speed × 0.8, which are to be caught.
SLOW_LATENCY: Final = 1.22
SLOW_SPEED: Final = 0.9


class Guard(enum.StrEnum):
    """Events that a canary may not have more often than the incumbent."""

    FALLBACK = "fallback"
    NO_FIT = "no fit"
    LATENCY = "slow decision"
    SPEED = "slow job"


THRESHOLD: Final = math.log(len(Guard) / ALPHA)  # of log E: α is shared between the guards


def log_e(of_canary: int, events: int, share: float, ratios: Sequence[float] = RATIOS) -> float:
    """ln E of `of_canary` of `events` at a share in (0, 1)."""
    terms = []
    for ratio in ratios:
        p = ratio * share / (ratio * share + 1.0 - share)
        terms.append(of_canary * math.log(p / share) + (events - of_canary) * math.log((1.0 - p) / (1.0 - share)))
    most = max(terms)
    return most + math.log(sum(math.exp(term - most) for term in terms) / len(terms))


@frozen
class Counts:
    """Events and decided jobs of both arms while one rule held: at one share, or in one period of time."""

    share: float
    canary: int
    canary_of: int
    incumbent: int
    incumbent_of: int


def by_job(counts: Iterable[Counts]) -> float:
    """ln E over all shares that the canary had."""
    return sum(log_e(each.canary, each.canary + each.incumbent, each.share) for each in counts)


def by_time(periods: Iterable[Counts]) -> float:
    """ln E over finished periods, in each of which both arms decided jobs."""
    worse = better = 0
    for each in periods:
        if each.canary_of and each.incumbent_of:
            difference = each.canary * each.incumbent_of - each.incumbent * each.canary_of
            worse, better = worse + (difference > 0), better + (difference < 0)
    return log_e(worse, worse + better, 0.5)


def is_worse(log_e_value: float) -> bool:
    """Whether a guard ends the canary."""
    return log_e_value >= THRESHOLD


@dataclass(slots=True)
class Reference:
    """The running median of the incumbent's latest values; None before there are `least`. Values are compared with
    earlier ones alone, so that the comparison says nothing of their arm."""

    least: int = 20
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def add(self, value: float) -> None:
        self.latest.append(value)

    @property
    def value(self) -> float | None:
        return median(self.latest) if len(self.latest) >= self.least else None


def reason(guard: Guard, log_e_value: float, counts: Sequence[Counts]) -> str:
    """Why a guard ends a canary, in words."""
    canary, canary_of = sum(each.canary for each in counts), sum(each.canary_of for each in counts)
    incumbent, incumbent_of = sum(each.incumbent for each in counts), sum(each.incumbent_of for each in counts)
    return (
        f"{guard}: {canary} of {canary_of} jobs of the canary, {incumbent} of {incumbent_of} of the incumbent "
        f"(e-value {math.exp(min(log_e_value, 700.0)):.3g}, limit {math.exp(THRESHOLD):.3g})"
    )
