"""Decayed sums of a site's reports: the store keeps these alone. Estimates nothing.

A row has Σw, Σw·x and Σw·x² over reports x of weight w, each counting half after a time that its estimator sets, as of
`time_s`. add_sums.lua computes the same in Redis.
"""

from collections.abc import Mapping

from placewise_core.basics.frozen import frozen

_RESIDUE = 1e-9  # of decayed counts that are equal but for rounding


@frozen
class Addition:
    """A report for the row of a kind. Of those with the same `once`, unless it is "", the first counts alone."""

    kind: str
    value: float
    weight: float = 1.0
    once: str = ""


@frozen
class Sums:
    """Decayed number of reports, and sums of x and x², as of `time_s`."""

    count: float = 0.0
    sum: float = 0.0
    squares: float = 0.0
    time_s: float = 0.0

    def at(self, time_s: float, halving_s: float) -> "Sums":
        """The sums as they count at a time; a time before their own changes nothing."""
        if time_s <= self.time_s:
            return self
        kept = 0.5 ** ((time_s - self.time_s) / halving_s)
        return Sums(self.count * kept, self.sum * kept, self.squares * kept, time_s)

    def added(self, x: float, time_s: float, halving_s: float, weight: float = 1.0) -> "Sums":
        """The sums with one report more, as add_sums.lua has it."""
        old, time_s = self.at(time_s, halving_s), max(time_s, self.time_s)
        return Sums(old.count + weight, old.sum + weight * x, old.squares + weight * x * x, time_s)

    def plus(self, other: "Sums") -> "Sums":
        """The sums over the reports of both, each as it counts at its own time."""
        time_s = max(self.time_s, other.time_s)
        return Sums(self.count + other.count, self.sum + other.sum, self.squares + other.squares, time_s)

    def less(self, by: float) -> "Sums":
        """The sums of x − `by`."""
        squares = self.squares - 2.0 * by * self.sum + by * by * self.count
        return Sums(self.count, self.sum - by * self.count, squares, self.time_s)

    def without(self, other: "Sums") -> "Sums":
        """The sums over the reports that are not among the others."""
        count = self.count - other.count
        if count < _RESIDUE * self.count:
            return Sums(time_s=self.time_s)
        return Sums(count, self.sum - other.sum, self.squares - other.squares, self.time_s)

    @property
    def mean(self) -> float:
        """Of x; 0 without a report."""
        return self.sum / self.count if self.count > 0 else 0.0

    @property
    def within(self) -> float:
        """Σw·(x − mean)²."""
        return max(0.0, self.squares - self.mean * self.sum)

    @property
    def row(self) -> dict[str, float]:
        """As the store keeps it."""
        return {"count": self.count, "sum": self.sum, "squares": self.squares, "time_s": self.time_s}


def sums_of(row: Mapping[str, float]) -> Sums:
    """The sums in a row of the store."""
    return Sums(*(row.get(name, 0.0) for name in ("count", "sum", "squares", "time_s")))


def student(freedom: float, normal: float) -> float:
    """Student's quantile by that of the normal distribution (Abramowitz & Stegun 26.7.5, first two terms)."""
    z = normal
    return z + (z**3 + z) / (4.0 * freedom) + (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / (96.0 * freedom**2)
