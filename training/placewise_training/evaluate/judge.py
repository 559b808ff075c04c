"""Judges candidates on the last stretch of a log: value, gain over the policy in force, intervals, Holm's correction.

Chooses among candidates on another stretch. It estimates the mean `reward_h` if one decision were the
candidate's and all others the logging policy's, and never JCT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import special

from placewise_core.basics.arrays import IntArray
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.estimators import Estimated, doubly_robust, estimates
from placewise_training.evaluate.intervals import (
    RESAMPLES,
    BlockSums,
    Interval,
    drawn_blocks,
    empirical_bernstein,
    p_value,
    standard_error,
    studentised,
)
from placewise_training.evaluate.regression import cross_fitted
from placewise_training.evaluate.support import Refused, Support
from placewise_training.lab.work.workers import Here, Workers

# The estimator that decides; the others are reported beside it. Fixed before any candidate is judged.
DECIDES = doubly_robust.__name__
ERROR, POWER = 0.05, 0.8


@dataclass(frozen=True, slots=True)
class EstimatorRow:
    """One estimator's word, in the reward's unit."""

    estimator: str
    value: float
    value_interval: Interval  # 95 %
    gain: float  # over the policy in force
    gain_interval: Interval  # 95 %
    least_gain: float  # one-sided 95 % bound
    bernstein: Interval | None  # 95 %, of the gain; None if rounds have no known bound
    p_value: float  # of "the gain is at most 0", one-sided


@dataclass(frozen=True, slots=True)
class Judgement:
    """A candidate on the judging stretch. Without rows if it was refused."""

    candidate: str
    support: Support
    refusals: tuple[Refused, ...]
    rows: tuple[EstimatorRow, ...] = ()
    adjusted_p: float | None = None  # Holm's, of the deciding estimator
    detectable_gain: float | None = None  # smallest gain found with 80 % power at 5 %, one-sided

    @property
    def deciding(self) -> EstimatorRow | None:
        return next((row for row in self.rows if row.estimator == DECIDES), None)


def chosen(candidates: Mapping[str, LoggedDecisions], workers: Workers | None = None) -> str | None:
    """The candidate with the largest doubly robust gain on the choosing stretch; None if all of them are refused."""
    supported = {name: log for name, log in candidates.items() if not Support.of(log).refusals}
    gains = dict(zip(supported, (workers or Here()).mapped(_gain, supported.values()), strict=True))
    return max(gains, key=lambda name: gains[name], default=None)


def judged(
    candidates: Mapping[str, LoggedDecisions],
    reward_bound: float,
    tried: int,
    seed: int = 0,
    workers: Workers | None = None,
) -> list[Judgement]:
    """Every candidate on the judging stretch, each once. `tried` candidates have been judged on it in all, these
    included: Holm's correction counts them. `reward_bound` is an upper bound of the rewards, which are at least 0."""
    found = [_judged(name, log, reward_bound, seed, workers or Here()) for name, log in candidates.items()]
    rows = [one.deciding for one in found]
    adjusted = iter(holm([row.p_value for row in rows if row], tried))
    return [
        Judgement(
            one.candidate, one.support, one.refusals, one.rows, next(adjusted) if row else None, one.detectable_gain
        )
        for one, row in zip(found, rows, strict=True)
    ]


def holm(p_values: Sequence[float], tried: int | None = None) -> list[float]:
    """Adjusted p values: with them in ascending order, max_{j ≤ i} min(1, (m − j) p_(j)), j from 0 (Holm 1979). m is
    `tried`: hypotheses whose p value is not given count as the largest ones. Raises ValueError if m is too small."""
    count = len(p_values) if tried is None else tried
    if count < len(p_values):
        raise ValueError(f"{len(p_values)} p values of {count} hypotheses")
    order = np.argsort(np.asarray(p_values), kind="stable")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def detectable_gain(sums: BlockSums) -> float:
    """(t_0.95 + t_0.8) · s: a true gain of this size is found with 80 % power by a one-sided test at 5 %, t by Student
    with as many degrees of freedom as blocks less one."""
    freedom = sums.numerators.shape[1] - 1
    return float(special.stdtrit(freedom, 1.0 - ERROR) + special.stdtrit(freedom, POWER)) * standard_error(sums)


def _gain(log: LoggedDecisions) -> float:
    forecast = cross_fitted(log)
    return doubly_robust(log, forecast).value - doubly_robust(log.of_incumbent(), forecast).value


def _judged(name: str, log: LoggedDecisions, reward_bound: float, seed: int, workers: Workers) -> Judgement:
    support = Support.of(log)
    if support.refusals:
        return Judgement(name, support, support.refusals)
    forecast = cross_fitted(log)
    pairs = list(zip(estimates(log, forecast), estimates(log.of_incumbent(), forecast), strict=True))
    rows = tuple(workers.mapped(partial(_row, log.block, reward_bound, seed), pairs))
    ours, theirs = doubly_robust(log, forecast), doubly_robust(log.of_incumbent(), forecast)
    return Judgement(name, support, (), rows, None, detectable_gain(BlockSums.of(ours, log.block, theirs)))


def _row(block: IntArray, reward_bound: float, seed: int, pair: tuple[Estimated, Estimated]) -> EstimatorRow:
    """Of one estimator, for the candidate and for the policy in force. All estimators take the same draws."""
    ours, theirs = pair
    counts = drawn_blocks(len(np.unique(block)), RESAMPLES, seed)
    value, gain = BlockSums.of(ours, block), BlockSums.of(ours, block, theirs)
    bernstein = None
    if ours.span is not None and theirs.span is not None:
        bernstein = empirical_bernstein(ours.rounds - theirs.rounds, (ours.span + theirs.span) * reward_bound)
    return EstimatorRow(
        ours.name,
        ours.value,
        studentised(value, counts),
        ours.value - theirs.value,
        studentised(gain, counts),
        studentised(gain, counts, 1.0 - 2.0 * ERROR).low,
        bernstein,
        p_value(gain, counts),
    )
