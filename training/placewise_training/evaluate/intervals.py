"""Confidence intervals of estimates: by bootstrap over blocks of time, and by the empirical Bernstein bound.

Rewards near in time depend on one another, so blocks of time are drawn, never single decisions. Intervals of a gain
take both policies' estimates in the same draws.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_training.evaluate.estimators import Estimated

RESAMPLES = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """Both ends in the unit of the estimate."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, eq=False)
class BlockSums:
    """θ = Σ_t sign_t · (Σ_b n_tb / Σ_b d_tb): one estimate, or the difference of two, as sums over B blocks of time."""

    signs: FloatArray  # (T,)
    numerators: FloatArray  # (T, B)
    denominators: FloatArray  # (T, B)

    @classmethod
    def of(cls, ours: Estimated, block: IntArray, theirs: Estimated | None = None) -> "BlockSums":
        """Of an estimate, or of `ours` less `theirs`. Raises ValueError for fewer than two blocks."""
        found, place = np.unique(block, return_inverse=True)
        if len(found) < 2:
            raise ValueError("all decisions are of one block of time: no interval can be given")
        terms = [ours] if theirs is None else [ours, theirs]
        return cls(
            np.array([1.0, -1.0][: len(terms)]),
            np.stack([np.bincount(place, term.numerator) for term in terms]),
            np.stack([np.bincount(place, term.denominator) for term in terms]),
        )

    def resampled(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(R,) θ and (R,) its standard error for independent blocks: Var θ ≈ Var(u) / B. Row r of `counts` (R, B) says
        how often it drew each block."""
        blocks = counts.shape[1]
        value, linear = self.linearised(counts)
        return value, np.sqrt((counts * linear**2).sum(axis=1) / (blocks - 1) / blocks)

    def linearised(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(R,) θ and (R, B) u_b = Σ_t sign_t (n_tb − θ_t d_tb) / mean(d_t), whose mean is 0 (Cochran 1977, section
        2.11)."""
        blocks = counts.shape[1]
        linear = np.zeros(counts.shape)
        value = np.zeros(len(counts))
        for sign, numerator, denominator in zip(self.signs, self.numerators, self.denominators, strict=True):
            mean = counts @ denominator / blocks
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = counts @ numerator / blocks / mean
                linear += sign * (numerator - ratio[:, None] * denominator) / mean[:, None]
            value += sign * ratio
        return value, linear


def drawn_blocks(blocks: int, resamples: int, seed: int) -> FloatArray:
    """(R, B) how often each of B blocks is drawn in R draws of B with replacement."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=resamples).astype(np.float64)


def standard_error(sums: BlockSums) -> float:
    """Of θ: √((Σ u_b² + 2 Σ u_b u_{b+1}) / B(B − 1)), as a load that outlasts a block ties it to the next (Hansen 1982,
    with one lag). A negative covariance counts as 0."""
    blocks = sums.numerators.shape[1]
    _, (linear,) = sums.linearised(np.ones((1, blocks)))
    neighbours = max(0.0, float(linear[:-1] @ linear[1:]))
    return math.sqrt((float(linear @ linear) + 2.0 * neighbours) / (blocks - 1) / blocks)


def percentile(sums: BlockSums, counts: FloatArray, level: float = LEVEL) -> Interval:
    """The bootstrap's quantiles of θ (Efron 1979)."""
    value, _ = sums.resampled(counts)
    tails = (1.0 - level) / 2.0, (1.0 + level) / 2.0
    return Interval(*np.quantile(value[np.isfinite(value)], tails).tolist())


def studentised(sums: BlockSums, counts: FloatArray, level: float = LEVEL) -> Interval:
    """Symmetric bootstrap-t: θ ± q·s, q the bootstrap's `level` quantile of |t*|, t* = (θ* − θ) / s* (Hall 1988), s the
    standard error above. Each end is a one-sided bound at (1 + level) / 2."""
    value, error, scores = _scores(sums, counts)
    half = float(np.quantile(scores, level)) * error if len(scores) else 0.0
    return Interval(value - half, value + half)


def p_value(sums: BlockSums, counts: FloatArray) -> float:
    """One-sided, of θ ≤ 0, by the same t*: below 0.05 if the lower end of the 90 % interval is above 0. This log's
    own t counts as one of the draws, so that no p value is 0."""
    value, error, scores = _scores(sums, counts)
    if error == 0.0:
        return float(value <= 0.0)
    beyond = float((scores >= abs(value) / error).sum() + 1) / (len(scores) + 1)
    return beyond / 2.0 if value > 0.0 else 1.0 - beyond / 2.0


def empirical_bernstein(values: FloatArray, span: float, level: float = LEVEL) -> Interval:
    """mean ± (√(2 V ln(4/δ) / N) + 7 span ln(4/δ) / (3 (N − 1))), δ = 1 − level, V the sample variance (Maurer &
    Pontil 2009, theorem 4, once for each side). It holds at any N for independent (N,) values that lie within `span`,
    a width known beforehand. Raises ValueError for one value, or for values wider apart than the span."""
    count = len(values)
    if count < 2:
        raise ValueError("empirical Bernstein needs two values")
    if float(np.ptp(values)) > span * (1.0 + 1e-9):
        raise ValueError(f"values are {np.ptp(values):.6g} apart, the span is {span:.6g}")
    risk = math.log(4.0 / (1.0 - level))
    half = math.sqrt(2.0 * float(values.var(ddof=1)) * risk / count) + 7.0 * span * risk / (3.0 * (count - 1))
    mean = float(values.mean())
    return Interval(mean - half, mean + half)


def _scores(sums: BlockSums, counts: FloatArray) -> tuple[float, float, FloatArray]:
    """θ, its standard error, and |t*| of the draws that have one."""
    (value,), _ = sums.resampled(np.ones((1, counts.shape[1])))
    resampled, errors = sums.resampled(counts)
    usable = np.isfinite(resampled) & (errors > 0.0)
    return float(value), standard_error(sums), abs(resampled[usable] - value) / errors[usable]
