"""Best of K: the heuristics propose, the reward model judges the new job *and its neighbours*, the best one is taken.

Harmony's reward (1), Σ c_n/e_n over the jobs concerned, for K whole placements in one batched call. The net is
injected: this module knows no runtime. K shrinks with the deadline, and whatever goes wrong the first heuristic's
placement answers, flagged. Proposers draw nothing, so that the propensity of the choice is 1.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from placewise_core.features import Float32
from placewise_core.job import Job, Role
from placewise_core.part_tokens import PADDING, PartEncoder, PartTokens
from placewise_core.place.policy import PlaceContext, PlacementPolicy, Proposal
from placewise_core.view import ClusterView, FloatArray

# Of the time left, this much is for scoring and for what the engine does afterwards.
_RESERVED_SHARE = 0.5
_LEAST_LEFT_S = 0.002


class SpeedScorer(Protocol):
    """Predicts how fast every job runs under each candidate. Any exception makes the heuristic answer."""

    def speeds(self, tokens: PartTokens) -> Float32:
        """(K, P) speed of each token's job over its linear speed (part_tokens.linear_speed); padding is ignored."""
        ...


class ScoreError(Exception):
    """The scorer answered, but with something that is not a speed."""


class BestOfK:
    """`proposers` in order of trust: the first one answers where nothing can be scored."""

    name = "search"

    def __init__(
        self,
        proposers: Sequence[PlacementPolicy],
        scorer: SpeedScorer,
        most: int = 8,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not proposers:
            raise ValueError("a search needs a policy that proposes")
        self._proposers = tuple(proposers)
        self._scorer = scorer
        self._most = most
        self._monotonic_s = monotonic_s
        self._encoder = PartEncoder()

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposals, is_late = self._proposals(job, view, context)
        if not proposals:
            return None
        if is_late:
            return _fallback(proposals[0][1], "deadline")
        if len(proposals) == 1:
            return replace(proposals[0][1], info={"k": 1.0})
        try:
            scores = self._scores(job, [proposal for _, proposal in proposals], view)
        except Exception as error:  # whatever the runtime raises: a broken model never fails a call
            return _fallback(proposals[0][1], type(error).__name__)
        named = {f"score_{name}": float(score) for (name, _), score in zip(proposals, scores, strict=True)}
        return replace(proposals[int(scores.argmax())][1], info={"k": float(len(proposals)), **named})

    def _proposals(self, job: Job, view: ClusterView, context: PlaceContext) -> tuple[list[tuple[str, Proposal]], bool]:
        """Distinct placements with who proposed them; True if there is no time left to score any."""
        began_s = self._monotonic_s()
        stop_s = began_s + _RESERVED_SHARE * (context.deadline_s - began_s)
        found: dict[tuple[tuple[str, str], ...], tuple[str, Proposal]] = {}
        for policy in self._proposers:
            if found and (len(found) == self._most or self._monotonic_s() >= stop_s):
                break
            proposal = policy.propose(job, view, context)
            if proposal is not None:
                found.setdefault(_key(proposal), (policy.name, proposal))
        is_late = context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S
        return list(found.values()), is_late

    def _scores(self, job: Job, proposals: Sequence[Proposal], view: ClusterView) -> FloatArray:
        """(K,) Σ c_n/e_n per second."""
        tokens = self._encoder.encode(job, [proposal.assignments for proposal in proposals], view)
        speeds = np.asarray(self._speeds(job, proposals, tokens), dtype=np.float64)
        if speeds.shape != tokens.job.shape or not np.isfinite(speeds).all():
            raise ScoreError(f"speeds of shape {speeds.shape} for tokens of shape {tokens.job.shape}")
        return progress(speeds, job, tokens)

    def _speeds(self, job: Job, proposals: Sequence[Proposal], tokens: PartTokens) -> Float32:
        """(K, P) as SpeedScorer.speeds: where a subclass may know better than any model."""
        return self._scorer.speeds(tokens)


def progress(speeds: FloatArray, job: Job, tokens: PartTokens) -> FloatArray:
    """(K,) Σ_n c_n/e_n per second, (1) of the Harmony paper, with c_n = speed × linear speed: then c_n/e_n is
    speed × workers / (time on one GPU). A job that does not say how long it takes counts as one of middling length."""
    jobs = (job, *(held.job for held in tokens.neighbours))
    known = [other.single_gpu_s for other in jobs if other.single_gpu_s > 0]
    middling_s = float(np.median(known)) if known else 1.0
    weight = np.array([_workers(other) / (other.single_gpu_s or middling_s) for other in jobs])
    is_token = tokens.job != PADDING
    per_token = np.where(is_token, weight[tokens.job], 0.0)
    for k in range(len(speeds)):  # a job has as many tokens as nodes, all with one speed: it counts once
        counts = np.bincount(tokens.job[k][is_token[k]], minlength=len(jobs))
        per_token[k] /= np.maximum(1, counts)[tokens.job[k]]
    return np.asarray((speeds * per_token).sum(axis=1))


def _workers(job: Job) -> int:
    return max(1, sum(group.count for group in job.groups if group.role is Role.WORKER))


def _key(proposal: Proposal) -> tuple[tuple[str, str], ...]:
    """Equal for placements that put the same tasks on the same nodes."""
    return tuple(sorted((a.node, a.role.value) for a in proposal.assignments))


def _fallback(proposal: Proposal, reason: str) -> Proposal:
    return replace(proposal, is_fallback=True, fallback_reason=f"search: {reason}")
