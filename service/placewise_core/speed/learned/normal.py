"""Normal beliefs about the logarithm of a measured over a forecast speed. Know nothing of what was measured."""

import math
from collections.abc import Iterable

from placewise_core.basics.frozen import frozen
from placewise_core.speed.learned.sums import student

_QUANTILE = 1.6449  # of the normal distribution at 95 %: the interval holds 90 %


@frozen
class Normal:
    """Mean and variance."""

    mean: float
    variance: float

    def wider(self, spread: float) -> "Normal":
        """Of something that lies about this with that standard deviation."""
        return Normal(self.mean, self.variance + spread * spread)

    def after(self, seen: Iterable["Normal"]) -> "Normal":
        """With observations of it, each of its own variance."""
        precision = 1.0 / self.variance
        weighted = self.mean * precision
        for each in seen:
            precision += 1.0 / each.variance
            weighted += each.mean / each.variance
        return Normal(weighted / precision, 1.0 / precision)


@frozen
class Estimate:
    """The logarithm of the factor on a forecast, its variance V, the variance σ² of a report and its freedom;
    `reports` at the finest level with any, `source`."""

    log_factor: float
    variance: float
    noise: float
    freedom: float
    reports: float
    source: str

    @property
    def spread(self) -> float:
        """Half the 90 % interval of the next report's ln(measured / forecast)."""
        return student(self.freedom, _QUANTILE) * math.sqrt(self.variance + self.noise)
