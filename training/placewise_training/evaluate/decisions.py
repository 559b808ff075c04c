"""Logged decisions as arrays, with every placement that the candidate or the policy in force could have given.

Symbols: decision i of N with context x, logged action a, reward r. P(a|x) is the probability with which the log's
mixture of policies gave a, π_c(a|x) the candidate's, π_0(a|x) that of the policy in force. w = π_c(a|x) / P(a|x).
"""

from dataclasses import dataclass, replace

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray

_SUM_TOLERANCE = 1e-6
# Two policies differ at a decision if more than this share of their probability lies on different placements.
_SAME = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """K placements, each of one decision; together they hold all of both policies' probability at each decision."""

    decision: IntArray  # (K,) row of the decision
    candidate: FloatArray  # (K,) π_c
    own: FloatArray  # (K,) π_0
    propensity: FloatArray  # (K,) P, 0 if the log could not have held this placement
    features: FloatArray  # (K, F) of context and placement

    def summed(self, values: FloatArray, count: int) -> FloatArray:
        """(count,) sums of (K,) values over the placements of each decision."""
        return np.bincount(self.decision, values, minlength=count).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LoggedDecisions:
    """N decisions, checked. Raises ValueError that names the first array that cannot be, and how."""

    reward: FloatArray  # (N,) `reward_h`, in jobs done within its horizon
    propensity: FloatArray  # (N,) P of the logged action, in (0, 1]
    candidate: FloatArray  # (N,) π_c of the logged action
    own: FloatArray  # (N,) π_0 of the logged action
    block: IntArray  # (N,) block of time, ascending in time
    features: FloatArray  # (N, F) of context and logged action
    options: Options

    def __post_init__(self) -> None:
        count, options = len(self.reward), self.options
        if count == 0:
            raise ValueError("no decisions: nothing can be estimated")
        for name, values in (
            ("propensity", self.propensity),
            ("candidate", self.candidate),
            ("own", self.own),
            ("block", self.block),
            ("features", self.features),
        ):
            _check_rows(name, values, count)
        for name, values in (
            ("options.candidate", options.candidate),
            ("options.own", options.own),
            ("options.propensity", options.propensity),
            ("options.features", options.features),
        ):
            _check_rows(name, values, len(options.decision))
        _check_probabilities(self)
        if not np.isfinite(self.reward).all():
            raise ValueError(f"reward of decision {int(np.flatnonzero(~np.isfinite(self.reward))[0])} is not finite")

    @property
    def weights(self) -> FloatArray:
        """(N,) w = π_c(a|x) / P(a|x)."""
        return self.candidate / self.propensity

    @property
    def differing(self) -> BoolArray:
        """(N,) whether candidate and policy in force place differently: 1 − Σ_a min(π_c, π_0) > 0."""
        shared = self.options.summed(np.minimum(self.options.candidate, self.options.own), len(self.reward))
        return 1.0 - shared > _SAME

    @property
    def unsupported(self) -> FloatArray:
        """(N,) the candidate's probability on placements that the log could not have held."""
        missing = np.where(self.options.propensity > 0.0, 0.0, self.options.candidate)
        return self.options.summed(missing, len(self.reward))

    @property
    def largest_weight(self) -> float:
        """The largest weight that this log could have given, drawn or not: a bound known before the draws."""
        options = self.options
        held = options.propensity > 0.0
        return float((options.candidate[held] / options.propensity[held]).max(initial=0.0))

    def of_incumbent(self) -> "LoggedDecisions":
        """The same log with the policy in force as its own candidate."""
        return replace(self, candidate=self.own, options=replace(self.options, candidate=self.options.own))

    def taken(self, kept: BoolArray) -> "LoggedDecisions":
        """The decisions of an (N,) mask, with their placements. Raises ValueError if none is kept."""
        row = np.cumsum(kept) - 1
        options, mine = self.options, kept[self.options.decision]
        return LoggedDecisions(
            self.reward[kept],
            self.propensity[kept],
            self.candidate[kept],
            self.own[kept],
            self.block[kept],
            self.features[kept],
            Options(
                row[options.decision[mine]],
                options.candidate[mine],
                options.own[mine],
                options.propensity[mine],
                options.features[mine],
            ),
        )


def _check_rows(name: str, values: FloatArray | IntArray, count: int) -> None:
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} rows, {count} are needed")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds a number that is not finite")


def _check_probabilities(log: LoggedDecisions) -> None:
    options = log.options
    if not ((log.propensity > 0.0) & (log.propensity <= 1.0 + _SUM_TOLERANCE)).all():
        raise ValueError("propensity of a logged action is outside (0, 1]")
    for name, values in (("candidate", options.candidate), ("own", options.own)):
        total = options.summed(values, len(log.reward))
        if (values < 0.0).any() or len(total) != len(log.reward) or (abs(total - 1.0) > _SUM_TOLERANCE).any():
            raise ValueError(f"options.{name} does not sum to 1 at each decision")
