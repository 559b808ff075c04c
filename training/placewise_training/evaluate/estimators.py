"""IPS, SNIPS, the direct method, doubly robust and switch-DR, each with its per-round values.

Every estimator is a ratio of two means over the decisions, θ = Σ n_i / Σ d_i, so one interval serves them all; d_i is 1
except for SNIPS. The estimand is the mean reward if one decision were the candidate's and all others the logging
policy's. Symbols as in `decisions`; q̂(x, a) is a forecast made without the decision's own block of time.
"""

from dataclasses import dataclass

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_training.evaluate.decisions import LoggedDecisions

# Quantiles of the weights that a switch tries; the last never switches.
_SWITCH_QUANTILES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """q̂ of the logged actions and of all options."""

    logged: FloatArray  # (N,)
    options: FloatArray  # (K,)


@dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """An estimate as two sums over the decisions."""

    name: str
    numerator: FloatArray  # (N,)
    denominator: FloatArray  # (N,)
    # Width of an interval that holds each round's value if rewards and forecasts are in [0, 1]; None if none is known.
    span: float | None = None

    @property
    def value(self) -> float:
        """θ; NaN if all weights of SNIPS are 0."""
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total else float("nan")

    @property
    def rounds(self) -> FloatArray:
        """(N,) values whose mean is θ: θ + (n_i − θ d_i) / mean(d). They are n_i where d is 1."""
        value = self.value
        return value + (self.numerator - value * self.denominator) / float(self.denominator.mean())


def ips(log: LoggedDecisions) -> Estimated:
    """V = 1/N Σ w_i r_i: unbiased with support (Horvitz & Thompson 1952)."""
    return Estimated("ips", log.weights * log.reward, np.ones(len(log.reward)), log.largest_weight)


def snips(log: LoggedDecisions) -> Estimated:
    """V = Σ w_i r_i / Σ w_i: a bias of order 1/N buys less variance (Swaminathan & Joachims 2015)."""
    weights = log.weights
    return Estimated("snips", weights * log.reward, weights)


def direct(log: LoggedDecisions, forecast: Forecast) -> Estimated:
    """V = 1/N Σ_i Σ_a π_c(a|x_i) q̂(x_i, a): as biased as the forecast (Dudík, Langford & Li 2011)."""
    return Estimated("direct", _expected(log, forecast), np.ones(len(log.reward)))


def doubly_robust(log: LoggedDecisions, forecast: Forecast) -> Estimated:
    """V = direct + 1/N Σ w_i (r_i − q̂(x_i, a_i)): unbiased if P or q̂ is right (Dudík et al. 2011)."""
    residual = log.weights * (log.reward - forecast.logged)
    span = 1.0 + 2.0 * log.largest_weight
    return Estimated("doubly_robust", _expected(log, forecast) + residual, np.ones(len(log.reward)), span)


def switch_dr(log: LoggedDecisions, forecast: Forecast, threshold: float | None = None) -> Estimated:
    """V = direct + 1/N Σ 1{w_i ≤ τ} w_i (r_i − q̂(x_i, a_i)): trusts q̂ alone where weights exceed τ (Wang, Agarwal &
    Dudík 2017). Without a threshold, `switch_threshold` gives τ."""
    most = switch_threshold(log, forecast) if threshold is None else threshold
    weights = np.where(log.weights <= most, log.weights, 0.0)
    values = _expected(log, forecast) + weights * (log.reward - forecast.logged)
    return Estimated("switch_dr", values, np.ones(len(log.reward)))


def switch_threshold(log: LoggedDecisions, forecast: Forecast) -> float:
    """τ with the least estimated variance plus the square of the largest bias, the rule of Wang et al. (2017). The bias
    is at most the candidate's probability of options with w > τ, times the span of the rewards. τ is one of some
    quantiles of the logged weights or their maximum."""
    weights, count = log.weights, len(log.reward)
    if not weights.any():
        return 0.0
    options = log.options
    expected, residual = _expected(log, forecast), log.reward - forecast.logged
    span = float(np.ptp(log.reward))

    def risk(threshold: float) -> float:
        values = expected + np.where(weights <= threshold, weights, 0.0) * residual
        is_beyond = options.candidate > threshold * options.propensity
        beyond = float(options.candidate[is_beyond].sum()) / count
        return float(values.var()) / count + (span * beyond) ** 2

    tried = np.quantile(weights[weights > 0.0], _SWITCH_QUANTILES)
    return float(min(np.unique(tried), key=risk))


def estimates(log: LoggedDecisions, forecast: Forecast) -> tuple[Estimated, ...]:
    """All five, in the order of a report."""
    return (ips(log), snips(log), direct(log, forecast), doubly_robust(log, forecast), switch_dr(log, forecast))


def _expected(log: LoggedDecisions, forecast: Forecast) -> FloatArray:
    """(N,) Σ_a π_c(a|x_i) q̂(x_i, a)."""
    return log.options.summed(log.options.candidate * forecast.options, len(log.reward))
