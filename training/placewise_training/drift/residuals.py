"""Residuals of forecasts before and now. Pure arithmetic."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from placewise_core.basics.arrays import FloatArray, IntArray

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Shift:
    """Mean and spread of ln(actual / forecast), and by how much the mean moved, with its 95 % interval."""

    reference_mean: float
    recent_mean: float
    reference_spread: float
    recent_spread: float
    low: float
    high: float

    @property
    def change(self) -> float:
        return self.recent_mean - self.reference_mean

    @property
    def is_drifted(self) -> bool:
        """The interval of the change excludes 0."""
        return not self.low <= 0.0 <= self.high


def shift(
    reference: FloatArray, reference_block: IntArray, recent: FloatArray, recent_block: IntArray, level: float = LEVEL
) -> Shift:
    """Of (N,) and (M,) residuals with the block of time of each. The interval is Welch's over blocks, since residuals
    near in time are alike. Raises ValueError for fewer than two blocks on either side."""
    one, two = _by_block(reference, reference_block), _by_block(recent, recent_block)
    (before, error_before, freedom_before), (after, error_after, freedom_after) = one, two
    variance = error_before**2 + error_after**2
    scale = error_before**4 / freedom_before + error_after**4 / freedom_after
    freedom = variance**2 / scale if scale > 0.0 else freedom_before + freedom_after
    half = float(special.stdtrit(freedom, (1.0 + level) / 2.0)) * math.sqrt(variance)
    change = after - before
    return Shift(before, after, float(reference.std()), float(recent.std()), change - half, change + half)


def _by_block(values: FloatArray, block: IntArray) -> tuple[float, float, int]:
    """Mean over all values, its standard error from the spread between blocks (a ratio of their sums), and the degrees
    of freedom."""
    found, place = np.unique(block, return_inverse=True)
    count = len(found)
    if count < 2:
        raise ValueError("residuals of fewer than two blocks of time: their shift has no interval")
    mean = float(values.mean())
    off = np.bincount(place, values - mean) / np.bincount(place).mean()
    return mean, float(np.sqrt((off**2).sum() / (count - 1) / count)), count - 1
