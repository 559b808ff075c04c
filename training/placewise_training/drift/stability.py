"""Population stability of one input column, and values that were never seen before. Pure arithmetic."""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import special

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.inputs.stability import BINS, counted, edges, psi

ERROR = 0.05
# The usual limits of PSI (Siddiqi 2006): below the first stable, above the second drifted.
MODERATE, DRIFTED = 0.1, 0.25
_SPLITS = 4000  # of the blocks, drawn for the PSI that chance gives


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
    bounds = edges(reference, bins)
    return stability_of_counts(counted(reference, bounds), counted(recent, bounds), error)


def stability_of_counts(reference: IntArray, recent: IntArray, error: float = ERROR) -> Stability:
    """PSI = Σ_k (p_k − q_k) ln(p_k / q_k) of (K,) counts, p recent, q the reference. Without drift it is about
    (1/n + 1/m) χ² with K − 1 degrees of freedom (Yurdakul 2018). Raises ValueError if either is empty."""
    if not reference.sum() or not recent.sum():
        raise ValueError("no rows to compare")
    used = (reference + recent) > 0
    freedom = max(int(used.sum()) - 1, 1)
    chi2 = 2.0 * special.gammaincinv(freedom / 2.0, 1.0 - error)  # scipy.stats.chi2.ppf, which takes a second to import
    noise = chi2 * (1.0 / reference.sum() + 1.0 / recent.sum())
    return Stability(float(psi(recent, reference)), float(noise))


def stability_by_blocks(
    values: FloatArray, block: IntArray, is_recent: BoolArray, bins: int = BINS, error: float = ERROR
) -> Stability:
    """Of (N,) values with the block of time of each, none of which has values of both sides. Values near in time are
    alike, as those of jobs that met one another, so the noise is also that of as many blocks drawn at random as
    recent: the 1 − `error` quantile of their PSI. With too few blocks for this quantile, values count as independent.
    Raises ValueError if a side is empty."""
    reference = values[~is_recent]
    bounds = edges(reference, bins)
    found = stability(reference, values[is_recent], bins, error)
    blocks, place = np.unique(block, return_inverse=True)
    recent = np.zeros(len(blocks), dtype=bool)
    recent[place[is_recent]] = True
    if math.comb(len(blocks), int(recent.sum())) * error < 1.0:
        return found
    counts = np.stack([counted(values[place == b], bounds) for b in range(len(blocks))])
    after = _splits(len(blocks), int(recent.sum())) @ counts  # (splits, bins)
    by_chance = float(np.quantile(psi(after, counts.sum(axis=0) - after), 1.0 - error))
    return Stability(found.psi, max(found.noise, by_chance))


@functools.lru_cache(8)
def _splits(blocks: int, recent: int) -> FloatArray:
    """(splits, blocks) of 1 for each of `recent` blocks drawn without replacement, 0 for the others; not to be
    written."""
    orders = np.random.default_rng(0).random((_SPLITS, blocks)).argsort(axis=1)
    return np.asarray(orders < recent, dtype=np.float64)


def unseen(reference: Sequence[Hashable], recent: Sequence[Hashable]) -> Mapping[Hashable, int]:
    """How often each value stands in `recent` that never stood in `reference`, the most frequent first."""
    known = set(reference)
    return dict(Counter(value for value in recent if value not in known).most_common())
