"""Population stability of one input column, and values that were never seen before. Pure arithmetic."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from placewise_core.basics.arrays import FloatArray, IntArray

BINS = 10
ERROR = 0.05
# The usual limits of PSI (Siddiqi 2006): below the first stable, above the second drifted.
MODERATE, DRIFTED = 0.1, 0.25
_HALF = 0.5  # added to each count, so that an empty bin has a logarithm


class Level(StrEnum):
    """How far a column has moved."""

    STABLE = "STABLE"
    MODERATE = "MODERATE"
    DRIFTED = "DRIFTED"


@dataclass(frozen=True, slots=True)
class Stability:
    """PSI of one column. `noise`: PSI reaches it by chance with the error allowed."""

    psi: float
    noise: float

    @property
    def level(self) -> Level:
        """STABLE also if as much is seen by chance."""
        if self.psi < MODERATE or self.psi <= self.noise:
            return Level.STABLE
        return Level.MODERATE if self.psi < DRIFTED else Level.DRIFTED


def stability(reference: FloatArray, recent: FloatArray, bins: int = BINS, error: float = ERROR) -> Stability:
    """Of numbers: bins by quantiles of the reference, equal edges merged; NaN has a bin of its own, and so has a value
    that at least 1/`bins` of the reference are equal to. `error`: divided by the number of columns that are looked at,
    at most ERROR of all looks find a column beyond its noise by chance. Raises ValueError if either is empty."""
    edges = (
        np.unique(np.quantile(reference[~np.isnan(reference)], np.linspace(0.0, 1.0, bins + 1)[1:-1]))
        if len(reference)
        else np.empty(0)
    )
    return stability_of_counts(_counted(reference, edges), _counted(recent, edges), error)


def stability_of_counts(reference: IntArray, recent: IntArray, error: float = ERROR) -> Stability:
    """PSI = Σ_k (p_k − q_k) ln(p_k / q_k) of (K,) counts, p recent, q the reference. Without drift it is about
    (1/n + 1/m) χ² with K − 1 degrees of freedom (Yurdakul 2018). Raises ValueError if either is empty."""
    if not reference.sum() or not recent.sum():
        raise ValueError("no rows to compare")
    used = (reference + recent) > 0
    before, after = reference[used] + _HALF, recent[used] + _HALF
    q, p = before / before.sum(), after / after.sum()
    noise = stats.chi2.ppf(1.0 - error, max(int(used.sum()) - 1, 1)) * (1.0 / reference.sum() + 1.0 / recent.sum())
    return Stability(float(((p - q) * np.log(p / q)).sum()), float(noise))


def unseen(reference: Sequence[Hashable], recent: Sequence[Hashable]) -> Mapping[Hashable, int]:
    """How often each value stands in `recent` that never stood in `reference`, the most frequent first."""
    known = set(reference)
    return dict(Counter(value for value in recent if value not in known).most_common())


def _counted(values: FloatArray, edges: FloatArray) -> IntArray:
    """Counts below the first edge, on each edge, between each two, above the last, and of NaN."""
    is_missing = np.isnan(values)
    present = values[~is_missing]
    place = np.searchsorted(edges, present, side="left") + np.searchsorted(edges, present, side="right")
    counts = np.bincount(place, minlength=2 * len(edges) + 1)
    return np.append(counts, is_missing.sum())
