"""Speeds of pairs on shared GPUs from a site's co-runs, with any partners: a normal model of their log-odds.

Speed s of model i beside j has the log-odds z = ln(s / (1 − s)), which are −ln of the extra time. About an assumption,

    z_ij = assumed_ij + μ + a_i + b_j + e_ij

with the level μ ~ N(0, τ_μ²) of the site's pairs, and of each model the effect a on its own speed and b on that of its
partner, normal with τ_a, τ_b and the correlation ρ: whoever gets more of a GPU leaves less. e has the variance σ²;
those of the two speeds of a pair correlate by κ. The forecast is the mean given all co-runs, which has a closed form
(Gelman et al., Bayesian Data Analysis, 14.8 and 15.1); effects of models without co-runs are 0. The order of the
co-runs does not matter.

The constants are chosen on Gavel's K80 alone (docs/models/sharing.md).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen

OWN_SPREAD, PARTNER_SPREAD = 0.25, 0.5  # τ_a and τ_b
NOISE = 0.36  # σ
_EFFECTS, _NOISES = -0.6, -0.4  # ρ and κ
_LEAST, _MOST = 0.02, 0.98
_DIGITS = 6  # of log-odds: sums that differ by the machine's rounding are equal on every replica
# Of two jobs that are each within their limits with this probability both are with ½: the normal quantile of 1/√2.
_CAREFUL = 0.545


@frozen
class PairSpeed:
    """Speed of a model beside another over its speed alone: the forecast, and a lower one for decisions, which the true
    one exceeds with a probability of 0.7. Both are in (0, 1]."""

    forecast: float
    careful: float


@frozen
class Odds:
    """Log-odds of a speed: mean and variance."""

    mean: float
    variance: float

    def plus(self, assumed: float) -> "Odds":
        """About another mean."""
        return Odds(self.mean + assumed, self.variance)

    @property
    def speed(self) -> PairSpeed:
        """As speeds."""
        return PairSpeed(of_odds(self.mean), of_odds(self.mean - _CAREFUL * math.sqrt(self.variance)))


@frozen
class Spread:
    """How far a model's two effects may lie from 0, as shares of τ_a and τ_b."""

    own: float = 1.0
    partner: float = 1.0


@frozen
class CoRunCell:
    """A co-run seen from both sides: the log-odds of each speed less the assumed ones. `other` is None if nobody
    measured it, and for a model beside itself."""

    model: str
    partner: str
    own: float
    other: float | None


def log_odds(speed: float) -> float:
    """Finite for any speed."""
    inside = min(_MOST, max(_LEAST, speed))
    return math.log(inside / (1.0 - inside))


def of_odds(odds: float) -> float:
    """The inverse of log_odds."""
    return 1.0 / (1.0 + math.exp(-odds))


def shrunk(learned: float, variance: float, assumed: float) -> Odds:
    """A speed that reports have shown, with the variance of its logarithm, about an assumed one: in log-odds, where a
    pair lies about its assumption as far as its two effects and its noise say. Log-odds of a speed near 1 hang on its
    last percent: the variance is carried over at the smaller of the two speeds."""
    speed = min(_MOST, max(_LEAST, learned))
    measured, prior = variance / (1.0 - min(speed, assumed)) ** 2, OWN_SPREAD**2 + PARTNER_SPREAD**2 + NOISE**2
    share = prior / (prior + measured)
    mean = log_odds(assumed) + share * (log_odds(speed) - log_odds(assumed))
    return Odds(round(mean, _DIGITS), round(share * measured, _DIGITS))


class PairEffects:
    """The effects of the models of these co-runs, each pair in them once. Nobody changes it."""

    def __init__(self, cells: Sequence[CoRunCell], spreads: Mapping[str, Spread], level_spread: float) -> None:
        """`spreads` of all models of the co-runs; `level_spread` is τ_μ."""
        names = sorted({name for cell in cells for name in (cell.model, cell.partner)})
        self._index = {name: i for i, name in enumerate(names)}
        # In units of their spreads, so that one of 0 needs no infinite precision: level, own effects, partners'.
        own = np.array([OWN_SPREAD * spreads[name].own for name in names])
        partner = np.array([PARTNER_SPREAD * spreads[name].partner for name in names])
        self._units = np.concatenate([[level_spread], own, partner])
        self._mean, self._covariance = self._posterior(sorted(cells, key=lambda cell: (cell.model, cell.partner)))

    def of(self, model: str, partner: str, own: Spread, other: Spread, *, has_level: bool = True) -> Odds:
        """μ + a + b of a model beside a partner, and the variance of z. `own` and `other` are the spreads of the two,
        for effects that no co-run shows. Without `has_level` μ is left out."""
        row = self._rows([model], [partner])[0]
        row[0] *= has_level
        variance = float(row @ self._covariance @ row) + self._unknown(model, partner, own, other) + NOISE**2
        return Odds(round(float(row @ self._mean), _DIGITS), round(variance, _DIGITS))

    def _posterior(self, cells: Sequence[CoRunCell]) -> tuple[FloatArray, FloatArray]:
        one = self._rows([cell.model for cell in cells], [cell.partner for cell in cells])
        two = self._rows([cell.partner for cell in cells], [cell.model for cell in cells])
        own = np.array([cell.own for cell in cells])
        other = np.array([np.nan if cell.other is None else cell.other for cell in cells])
        both = ~np.isnan(other)
        # Sum and difference of two errors that correlate are independent of each other.
        half = math.sqrt(0.5)
        design = np.concatenate([one[~both], half * (one + two)[both], half * (one - two)[both]])
        values = np.concatenate([own[~both], half * (own + other)[both], half * (own - other)[both]])
        precision = np.array([1.0, 1.0 / (1.0 + _NOISES), 1.0 / (1.0 - _NOISES)])
        weights = np.repeat(precision, [(~both).sum(), both.sum(), both.sum()])
        weighted = design.T * (weights / NOISE**2)
        covariance = np.asarray(np.linalg.inv(self._prior() + weighted @ design), dtype=np.float64)
        return covariance @ (weighted @ values), covariance

    def _prior(self) -> FloatArray:
        """The inverse of the covariance of the effects, in units of their spreads."""
        count = len(self._index)
        precision = np.eye(1 + 2 * count)
        own, partner = np.arange(1, 1 + count), np.arange(1 + count, 1 + 2 * count)
        precision[own, own] = precision[partner, partner] = 1.0 / (1.0 - _EFFECTS**2)
        precision[own, partner] = precision[partner, own] = -_EFFECTS / (1.0 - _EFFECTS**2)
        return precision

    def _rows(self, models: Sequence[str], partners: Sequence[str]) -> FloatArray:
        """(N, 1 + 2M) the weights of level and effects in z of each pair; those of models without co-runs are 0."""
        count = len(self._index)
        rows = np.zeros((len(models), len(self._units)))
        rows[:, 0] = self._units[0]
        for names, first in ((models, 1), (partners, 1 + count)):
            at = np.array([first + self._index.get(name, -1 - first) for name in names], dtype=np.int64)
            there = np.flatnonzero(at >= 0)
            rows[there, at[there]] = self._units[at[there]]
        return rows

    def _unknown(self, model: str, partner: str, of_model: Spread, of_partner: Spread) -> float:
        """The variance of effects of models without co-runs."""
        own = 0.0 if model in self._index else OWN_SPREAD * of_model.own
        other = 0.0 if partner in self._index else PARTNER_SPREAD * of_partner.partner
        both = 2.0 * _EFFECTS * own * other if model == partner else 0.0
        return own**2 + other**2 + both
