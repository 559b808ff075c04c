"""Best of K: policies propose, the reward model judges the new job *and its neighbours*, the best one is taken.

Harmony's reward (1), Σ c_n/e_n over the jobs concerned, for K whole placements in one batched call. The net is
injected: this module knows no runtime. K shrinks with the deadline. After any error, and if the model itself
reports that it is uncertain, the first heuristic's placement answers, flagged. Proposers draw nothing that their
seed does not fix, so that the propensity of the choice is 1 *given how many proposers were asked*. The clock decides
that, before any placement is compared; `info` has it as "asked", and "cut" is 1 if the clock ended the search.
"""

import contextlib
import copy
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices, ask_net
from placewise_core.domain.job import Job, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import WITNESSES, PartEncoder, PartTokens
from placewise_core.policies.explore import asked_once
from placewise_core.speed.linear_speed import workers_of
from placewise_core.view.view import ClusterView

# Share of the time left that is reserved for scoring and for the engine's later work.
_RESERVED_SHARE = 0.5
_LEAST_LEFT_S = 0.002
# Tokens of neighbours: the cost of scoring grows with their number, and with its square beyond some fifty.
_MOST_PARTS = 40

_Key = tuple[tuple[int, bool], ...]


class SpeedScorer(Protocol):
    """Predicts how fast every job runs under each candidate. Any exception makes the heuristic answer.

    It may know how sure it is: by the spread of the logarithm of its speeds, over the nets of an ensemble.
    """

    @property
    def spread_limit(self) -> float:
        """Spread of the new job above which its score must not decide; infinite without a spread."""
        return math.inf

    @abstractmethod
    def speeds(self, tokens: PartTokens) -> Float32:
        """(K, P) speed of each token's job over its linear speed (part_tokens.linear_speed); padding is ignored."""

    def speeds_and_spread(self, tokens: PartTokens) -> tuple[Float32, Float32]:
        """(K, P) each: as `speeds`, and the spread. Called only if `spread_limit` is finite."""
        raise NotImplementedError


@frozen
class Scores:
    """Of K placements: (K,) Σ c_n/e_n per second, (K,) the spread of the new job's log-speed, 0 if unknown, and (K, P)
    the speed of each token's job over its linear speed."""

    progress: FloatArray
    spread: FloatArray
    speeds: FloatArray


@frozen
class PlacementScores:
    """Scores of K placements of a job, and the tokens that the model read, a row for each."""

    job: Job
    tokens: PartTokens
    scores: Scores

    @property
    def own(self) -> FloatArray:
        """(K,) c/e per second of the job alone."""
        alone = np.where(self.tokens.job == 0, self.scores.speeds, 0.0)
        return progress(alone, self.job, self.tokens)

    def under(self, rows: Sequence[int]) -> "PlacementScores":
        """Of these placements alone: the sums are over the jobs near one of them."""
        tokens, speeds = self.tokens.under(rows), self.scores.speeds[rows]
        return PlacementScores(
            self.job, tokens, Scores(progress(speeds, self.job, tokens), self.scores.spread[rows], speeds)
        )


@frozen
class Judgement:
    """A search's forecasts of the placements proposed to it; `rows` are those of `judged`, by placement."""

    rows: Mapping[_Key, int]
    judged: PlacementScores

    def of(self, proposals: Sequence[Proposal], view: ClusterView) -> PlacementScores | None:
        """Of these placements; None unless the search compared each of them."""
        rows = [self.rows.get(_key(proposal, view), -1) for proposal in proposals]
        return self.judged.under(rows) if min(rows) >= 0 else None


class ScoreError(Exception):
    """The scorer answered, but with something that is not a speed."""


class BestOfK(PlacementPolicy):
    """`proposers` in order of trust: the first one, a heuristic, answers if nothing can be scored."""

    name = "search"

    def __init__(
        self,
        proposers: Sequence[PlacementPolicy],
        scorer: SpeedScorer,
        most: int = 8,
        monotonic_s: Callable[[], float] = time.monotonic,
        arranger: PlacementPolicy | None = None,
    ) -> None:
        """`arranger` says in which order the jobs of a request are placed; without one they stay in theirs."""
        if not proposers:
            raise ValueError("a search needs a policy that proposes")
        self._proposers = tuple(proposers)
        self._scorer = scorer
        self._most = most
        self._arranger = arranger
        self._most_asked = len(self._proposers)
        self._monotonic_s = monotonic_s
        self._encoder = PartEncoder(_MOST_PARTS, most_witnesses=WITNESSES)

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """What its proposers can do about a view before anybody asks. Never raises."""
        for policy in self._proposers:
            policy.prepare(view, now_s)
        with contextlib.suppress(Exception):  # the next request reports it
            self._encoder.prepare(view)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs if self._arranger is None else self._arranger.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        found = self._proposals(job, view, context)
        proposals = list(found.by_placement.values())
        if not proposals:
            return None
        first = proposals[0][1]
        if found.is_late:
            return self._fallback(first, "deadline", found.info)
        if len(proposals) == 1:
            return found.taken(first, found.info)
        try:
            judged = self.judge(job, [proposal for _, proposal in proposals], view, context.slices)
        except Exception as error:  # no error of the runtime fails a call
            return self._fallback(first, type(error).__name__, found.info)
        scores = self._foreseen(judged, [proposal for _, proposal in proposals], view)
        answer = self._best(found, proposals, scores)
        return replace(answer, judgement=found.judgement(judged)) if context.is_recording else answer

    def _best(self, found: "_Proposals", proposals: Sequence[tuple[str, Proposal]], scores: Scores) -> Proposal:
        k = int(scores.progress.argmax())
        named = {f"score_{name}": float(score) for (name, _), score in zip(proposals, scores.progress, strict=True)}
        info = {**found.info, **named}
        if scores.spread[k] > self._scorer.spread_limit:
            return self._fallback(proposals[0][1], "uncertain", info)
        return found.taken(proposals[k][1], info)

    def _fallback(self, proposal: Proposal, reason: str, info: Mapping[str, float]) -> Proposal:
        return replace(proposal, propensity=1.0, info=info, is_fallback=True, fallback_reason=f"{self.name}: {reason}")

    def stopped_after(self, asked: int) -> "BestOfK":
        other = copy.copy(self)
        other._most_asked = asked
        return other

    @property
    def has_spread(self) -> bool:
        """True if the reward model says how sure it is."""
        return math.isfinite(self._scorer.spread_limit)

    def judge(self, job: Job, proposals: Sequence[Proposal], view: ClusterView, slices: Slices) -> "PlacementScores":
        """The reward model's inputs and forecasts of these placements. Raises ScoreError and the runtime's errors."""
        tokens = self._encoder.encode(job, [proposal.assignments for proposal in proposals], view, slices)
        return PlacementScores(job, tokens, self._predicted(job, proposals, tokens, slices))

    def _asked_on(self, view: ClusterView) -> Sequence[PlacementPolicy]:
        return self._proposers[: self._most_asked]

    def _info_of(self, view: ClusterView) -> dict[str, float]:
        """Other numbers behind the choice, by name."""
        return {}

    def _foreseen(self, judged: PlacementScores, proposals: Sequence[Proposal], view: ClusterView) -> Scores:
        """The scores by which one of the proposals is chosen."""
        return judged.scores

    def _proposals(self, job: Job, view: ClusterView, context: PlaceContext) -> "_Proposals":
        """Distinct placements with who proposed them. A proposer's own fallback is not a proposal of its own."""
        began_s = self._monotonic_s()
        stop_s = began_s + _RESERVED_SHARE * (context.deadline_s - began_s)
        found = _Proposals(rests_on=self._info_of(view))
        for policy in self._asked_on(view):
            if len(found.by_placement) == self._most:
                break
            if found.by_placement and self._monotonic_s() >= stop_s:
                found.is_cut = True
                break
            found.asked += 1
            proposal = asked_once(policy, job, view, context)
            context.slices.pause()
            if proposal is None:
                continue
            if proposal.is_fallback and found.by_placement:
                found.failure = found.failure or proposal.fallback_reason
                continue
            found.add(policy.name, proposal, view)
        found.is_late = context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S
        return found

    def _predicted(self, job: Job, proposals: Sequence[Proposal], tokens: PartTokens, slices: Slices) -> Scores:
        spread: FloatArray
        if self.has_spread:
            forecast = partial(self._scorer.speeds_and_spread, tokens)
            predicted, spreads = ask_net(forecast, tokens.job.size, slices)
            spread = np.maximum.reduce(spreads, axis=1, where=tokens.job == 0, initial=0.0)
        else:
            speeds_alone = partial(self._speeds, job, proposals, tokens)
            predicted, spread = ask_net(speeds_alone, tokens.job.size, slices), np.zeros(len(proposals))
        speeds = np.asarray(predicted, dtype=np.float64)
        if speeds.shape != tokens.job.shape or not np.isfinite(speeds).all():
            raise ScoreError(f"speeds of shape {speeds.shape} for tokens of shape {tokens.job.shape}")
        return Scores(progress(speeds, job, tokens), spread, speeds)

    def _speeds(self, job: Job, proposals: Sequence[Proposal], tokens: PartTokens) -> Float32:
        """(K, P) as SpeedScorer.speeds: a subclass may know better than any model."""
        return self._scorer.speeds(tokens)


@dataclass(slots=True)
class _Proposals:
    """The proposals of the `asked` first proposers; `is_cut` if the clock kept the others from being asked. `failure`:
    the error that kept one from proposing, "" without one."""

    by_placement: dict[_Key, tuple[str, Proposal]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)  # ids of the assignments of these proposals, which gangs keep
    failure: str = ""
    is_late: bool = False
    asked: int = 0
    is_cut: bool = False
    rests_on: Mapping[str, float] = field(default_factory=dict)

    def add(self, name: str, proposal: Proposal, view: ClusterView) -> None:
        """Unless its tasks are on the same nodes as those of an earlier one."""
        tasks = id(proposal.assignments)
        if tasks in self.seen:
            return
        if self.by_placement.setdefault(_key(proposal, view), (name, proposal))[1] is proposal:
            self.seen.add(tasks)

    def judgement(self, judged: PlacementScores) -> Judgement:
        """Of these placements, in this order."""
        return Judgement({key: k for k, key in enumerate(self.by_placement)}, judged)

    @property
    def info(self) -> dict[str, float]:
        found = {"k": float(len(self.by_placement)), "asked": float(self.asked), "cut": float(self.is_cut)}
        return {**found, **self.rests_on}

    def taken(self, proposal: Proposal, info: Mapping[str, float]) -> Proposal:
        """The search's own answer. Its proposers' draws are fixed, so of those that were asked it gives no other."""
        reason = self.failure or proposal.fallback_reason
        return replace(proposal, propensity=1.0, info=info, is_fallback=bool(reason), fallback_reason=reason)


def _key(proposal: Proposal, view: ClusterView) -> _Key:
    index, worker = view.nodes.index, Role.WORKER
    return tuple(sorted([(index[task.node], task.role is worker) for task in proposal.assignments]))


def progress(speeds: FloatArray, job: Job, tokens: PartTokens) -> FloatArray:
    """(K,) progress of all jobs per second: Σ_n c_n/e_n, equation (1) of the Harmony paper. c_n is speed ×
    linear speed, so c_n/e_n is speed × workers / (time on one GPU). A job of unknown length counts as one of
    median length."""
    jobs = [job, *[held.job for held in tokens.neighbours]]
    known = [other.single_gpu_s for other in jobs if other.single_gpu_s > 0]
    middling_s = median(known) if known else 1.0
    # Of witnesses none, as they go on as they are; nor of padding, which is the last.
    weight = np.array([*[workers_of(other) / (other.single_gpu_s or middling_s) for other in jobs], 0.0])
    of = np.minimum(tokens.job, len(jobs))
    # A job has as many tokens as nodes, all with one speed: it counts once.
    kind = of + (1 + (len(jobs) + 2) * np.arange(len(speeds))[:, None])
    counts = np.bincount(kind.ravel()).take(kind)
    return np.asarray(np.add.reduce(speeds * (weight.take(of) / counts), axis=1))
