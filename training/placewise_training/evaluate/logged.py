"""Decisions of an exported log as arrays, with a candidate's probabilities. The candidate is a policy that was asked
for its placement when the decision's alternatives were worked out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_training.evaluate.decisions import LoggedDecisions, Options
from placewise_training.evaluate.stretches import blocks_of
from placewise_training.log.placed import OUTSIDE, PlacedJob, features_of

_WHOLE = 1.0 - 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Usable:
    """Placed jobs whose reward and mixture are known, in the order of time, and why the others are left out."""

    jobs: tuple[PlacedJob, ...]
    features: tuple[FloatArray, ...]  # (K, F) of each job's options
    before: FloatArray  # (N, B) of each job, known before its decision
    block: IntArray  # (N,)
    left_out: Mapping[str, int]
    has_parts: bool  # whether the features are also of the reward model's inputs

    @classmethod
    def of(cls, jobs: Sequence[PlacedJob], block_s: float, before: FloatArray | None = None) -> Self:
        """`before` (N, B), of the same jobs, is for the forecast. Raises ValueError if no job is left."""
        reasons = [_reason(one) for one in jobs]
        rows = sorted((i for i, reason in enumerate(reasons) if not reason), key=lambda i: jobs[i].time_s)
        kept = [jobs[i] for i in rows]
        counts = Counter(reason for reason in reasons if reason)
        if not kept:
            found = (
                ", ".join(f"{count} {reason}" for reason, count in counts.items())
                or "no Place decision has alternatives"
            )
            raise ValueError(f"no decision can be used: {found}")
        has_parts = all(one.parts for one in kept)
        known = np.zeros((len(jobs), 0)) if before is None else before
        features = tuple(
            _with(known[i], features_of(one, has_parts=has_parts)) for i, one in zip(rows, kept, strict=True)
        )
        block = blocks_of(np.array([one.time_s for one in kept]), block_s)
        return cls(tuple(kept), features, known[rows], block, counts, has_parts)

    @property
    def in_force(self) -> str:
        """The policy that was in force at most decisions."""
        return Counter(one.policy for one in self.jobs).most_common(1)[0][0]

    def replaced(self, changed: Mapping[int, PlacedJob]) -> Self:
        """The same log with other options for the jobs of these rows."""
        jobs, features = list(self.jobs), list(self.features)
        for i, placed in changed.items():
            jobs[i], features[i] = placed, _with(self.before[i], features_of(placed, has_parts=self.has_parts))
        return replace(self, jobs=tuple(jobs), features=tuple(features))

    def decisions(self, candidate: str) -> tuple[LoggedDecisions | None, BoolArray]:
        """The candidate's batch, and an (N,) mask of the jobs in it: those for which it was asked. None if it never
        was."""
        is_known = np.array([_mass(one, candidate) >= _WHOLE for one in self.jobs])
        if not is_known.any():
            return None, is_known
        jobs = [one for one, known in zip(self.jobs, is_known, strict=True) if known]
        features = [one for one, known in zip(self.features, is_known, strict=True) if known]
        counts = np.array([len(one.options) for one in jobs])
        chosen = np.concatenate([[0], counts.cumsum()[:-1]]) + [_chosen(one) for one in jobs]
        every = [option for one in jobs for option in one.options]
        options = Options(
            np.repeat(np.arange(len(jobs)), counts),
            np.array([option.policies.get(candidate, 0.0) for option in every]),
            np.array([option.own for option in every], dtype=np.float64),
            np.array([option.propensity for option in every], dtype=np.float64),
            np.concatenate(features),
        )
        log = LoggedDecisions(
            np.array([one.reward for one in jobs], dtype=np.float64),
            options.propensity[chosen],
            options.candidate[chosen],
            options.own[chosen],
            self.block[is_known],
            options.features[chosen],
            options,
        )
        return log, is_known


def _with(before: FloatArray, features: FloatArray) -> FloatArray:
    """(K, B + F) of one job."""
    return np.hstack([np.tile(before, (len(features), 1)), features])


def _reason(placed: PlacedJob) -> str:
    """Why a job cannot be used; "" if it can."""
    if placed.reward is None:
        return f"without a reward ({placed.status})"
    if any(option.propensity is None or option.own is None for option in placed.options):
        return "of unknown mixture"
    if not all(option.is_probable for option in placed.options):
        return OUTSIDE
    if sum(option.is_chosen for option in placed.options) != 1:
        return "without its own placement"
    if sum(option.own or 0.0 for option in placed.options) < _WHOLE:
        return "of a policy in force whose other placements are not known"
    return ""


def _mass(placed: PlacedJob, candidate: str) -> float:
    return sum(option.policies.get(candidate, 0.0) for option in placed.options)


def _chosen(placed: PlacedJob) -> int:
    return next(k for k, option in enumerate(placed.options) if option.is_chosen)
