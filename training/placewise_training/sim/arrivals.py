"""When jobs arrive: the papers' patterns. Times only, in seconds, ascending; what arrives is in workloads.py."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

INTERVAL_S = 1200.0  # Harmony's scheduling interval

# Draws `count` arrival times at a mean of `per_interval` jobs per interval.
Arrivals = Callable[[np.random.Generator, int, float, float], list[float]]


def _listed(times: NDArray[np.float64]) -> list[float]:
    return [float(time_s) for time_s in times]


def uniform_arrivals(rng: np.random.Generator, count: int, per_interval: float, interval_s: float) -> list[float]:
    """Harmony's default: in each interval 0 … 2·mean jobs, every number equally likely, at uniform moments."""
    times: list[float] = []
    start_s = 0.0
    while len(times) < count:
        here = int(rng.integers(0, round(2 * per_interval) + 1))
        times.extend(np.sort(rng.uniform(start_s, start_s + interval_s, here)).tolist())
        start_s += interval_s
    return times[:count]


def poisson_arrivals(rng: np.random.Generator, count: int, per_interval: float, interval_s: float) -> list[float]:
    """Exponential gaps."""
    return _listed(np.cumsum(rng.exponential(interval_s / per_interval, count)))


# Google's cluster traces: arrivals come in bursts, with a day's rhythm. Reproduced as a Poisson process whose rate is
# modulated by a two-state chain (bursts of four times the mean, a fifth of the time) and by a daily sine of ± 50 %.
_BURST, _BURST_SHARE, _BURST_INTERVALS = 4.0, 0.2, 2.0


def google_like_arrivals(rng: np.random.Generator, count: int, per_interval: float, interval_s: float) -> list[float]:
    """Bursty arrivals with a daily rhythm, at the mean rate asked for."""
    calm = (1.0 - _BURST * _BURST_SHARE) / (1.0 - _BURST_SHARE)
    leave_burst = 1.0 / _BURST_INTERVALS
    enter_burst = leave_burst * _BURST_SHARE / (1.0 - _BURST_SHARE)
    times: list[float] = []
    is_burst, slot = False, 0
    while len(times) < count:
        is_burst = rng.random() >= leave_burst if is_burst else rng.random() < enter_burst
        day = 1.0 + 0.5 * math.sin(2 * math.pi * slot * interval_s / 86400.0)
        here = rng.poisson(per_interval * day * (_BURST if is_burst else calm))
        start_s = slot * interval_s
        times.extend(np.sort(rng.uniform(start_s, start_s + interval_s, here)).tolist())
        slot += 1
    return times[:count]


def dispersed_arrivals(rng: np.random.Generator, count: int, per_interval: float, interval_s: float) -> list[float]:
    """Proteus' "dispersion": one after the other, gaps of half to one and a half times the mean."""
    gaps = rng.uniform(0.5, 1.5, count) * interval_s / per_interval
    return _listed(np.cumsum(gaps))


def concentrated_arrivals(rng: np.random.Generator, count: int, per_interval: float, interval_s: float) -> list[float]:
    """Proteus' "concentration": the same number of jobs within a tenth of the time, in one burst at the start."""
    span_s = 0.1 * count * interval_s / per_interval
    return _listed(np.sort(rng.uniform(0.0, span_s, count)))


PATTERNS: Mapping[str, Arrivals] = {
    "uniform": uniform_arrivals,
    "poisson": poisson_arrivals,
    "google": google_like_arrivals,
    "dispersed": dispersed_arrivals,
    "concentrated": concentrated_arrivals,
}


def arrival_times(
    pattern: str, rng: np.random.Generator, count: int, per_interval: float, interval_s: float = INTERVAL_S
) -> list[float]:
    """`count` ascending times of that pattern. Raises ValueError for an unknown one or a rate that is not positive."""
    if pattern not in PATTERNS:
        raise ValueError(f"no arrival pattern is called {pattern!r}; there are: {', '.join(PATTERNS)}")
    if not 0 < per_interval < math.inf:
        raise ValueError(f"jobs per interval must be positive, not {per_interval}")
    return PATTERNS[pattern](rng, count, per_interval, interval_s)
