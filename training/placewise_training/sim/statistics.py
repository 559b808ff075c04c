"""Means with confidence intervals, distributions in flat memory, time averages. NaN never gets in: add() refuses it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Bins 0.4 % wide: a quantile is off by at most 0.2 % of itself, and memory does not grow with the number of values.
_LOG_STEP = math.log(1.004)


class Distribution:
    """Mean (exact) and quantiles (to 0.2 %) of values ≥ 0 in memory that does not depend on how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._bins: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Raises ValueError for NaN, infinity or a negative value."""
        if not 0.0 <= value < math.inf:
            raise ValueError(f"not a metric value: {value}")
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)
        key = -(10**6) if value < 1e-9 else math.floor(math.log(value) / _LOG_STEP)
        self._bins[key] = self._bins.get(key, 0) + 1

    @property
    def mean(self) -> float:
        """0 of nothing."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """The smallest value that at least a share q is no larger than; 0 of nothing."""
        wanted = q * self.count - 1e-9
        seen = 0
        for key in sorted(self._bins):
            seen += self._bins[key]
            if seen >= wanted:
                return 0.0 if key == -(10**6) else min(self.largest, math.exp((key + 0.5) * _LOG_STEP))
        return 0.0


class TimeAverage:
    """Integral of a piecewise constant value over time, divided by the time."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._value = 0.0
        self._since_s = start_s
        self.start_s = start_s
        self.integral = 0.0

    def restart(self, now_s: float) -> None:
        """Forgets the time before `now_s`; the value stays."""
        self._since_s = self.start_s = now_s
        self.integral = 0.0

    def set(self, now_s: float, value: float) -> None:
        """The value is `value` from `now_s` on. Raises ValueError for NaN or infinity."""
        if not math.isfinite(value):
            raise ValueError(f"not a metric value: {value}")
        self.integral += self._value * (now_s - self._since_s)
        self._since_s = now_s
        self._value = value

    def mean(self, now_s: float) -> float:
        """Average from the start to `now_s`; the present value if no time passed."""
        span = now_s - self.start_s
        if span <= 0:
            return self._value
        return (self.integral + self._value * (now_s - self._since_s)) / span


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with the half-width of its 95 % confidence interval (Student's t; 0 from one value)."""

    mean: float
    half_width: float
    count: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95 % interval. Raises ValueError for no values, NaN or infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"not metric values: {values}")
    if array.size == 1:
        return Estimate(float(array[0]), 0.0, 1)
    from scipy import special  # noqa: PLC0415 (takes a third of a second to import, and one seed needs none of it)

    spread = float(array.std(ddof=1)) / math.sqrt(array.size)
    return Estimate(float(array.mean()), float(special.stdtrit(array.size - 1, 0.975)) * spread, int(array.size))


def paired_change(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Relative change ours/theirs − 1 over paired seeds, with its interval. Raises ValueError on unequal lengths."""
    if len(ours) != len(theirs):
        raise ValueError("paired seeds need equally many values on both sides")
    return estimate([a / b - 1.0 for a, b in zip(ours, theirs, strict=True)])


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index (Σx)²/(n·Σx²): 1 is equal, 1/n is one takes all; 1 of nothing."""
    squares = sum(v * v for v in values)
    return sum(values) ** 2 / (len(values) * squares) if values and squares > 0 else 1.0
