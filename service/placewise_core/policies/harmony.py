"""Harmony's policy net as a placement policy: encode once, then place task by task (Harmony, section V).

A net looks at the cluster as tokens of its nodes and running jobs (inputs/cluster.py), reads a job with that encoding,
and then scores, for each task, a worker or a parameter server on every candidate node (actions.py) from features
refreshed in between (inputs/steps.py). The encoding serves until the cluster changes, by a job of the same request too.
`prepare` renews it before the next request. The net is injected: this module knows no runtime and trains nothing. After
any error, the heuristic answers, flagged.
"""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices, ask_net
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.decision import Candidate
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.actions import decode_action
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.policy import NetRead, PlacementPolicy, Proposal
from placewise_core.inputs.cluster import Encoder, Observation
from placewise_core.inputs.shortlist import MOST_NODES, shortlist
from placewise_core.inputs.steps import StepTokens, free_of
from placewise_core.speed.linear_speed import linear_minutes, shortest_first, stretched
from placewise_core.view.view import ClusterView

CHUNK = 16  # jobs of a request that share a shortlist of nodes, and are read together for their order
MOST_JOBS = 48  # tokens of running jobs
_LEAST_LEFT_S = 0.002
_EXPLAINED_CANDIDATES = 8
_LOWEST = np.array(-np.inf, dtype=np.float32)  # as an array: a float would be converted at every task


@frozen
class ClusterState:
    """A net's encoding of a cluster. nodes (C, D) · memory: arrays that new jobs attend to."""

    nodes: Float32
    memory: Sequence[Float32]


@frozen
class PolicyState:
    """Inputs of the decoder. nodes (C, D) · jobs (J, D) · stretch (J, 1): predicted over declared run time of each job
    (linear_speed.stretched); float32. `beside`: by job, (C, D) sums of its state
    and each node's, for the net to keep."""

    nodes: Float32
    jobs: Float32
    stretch: Float32 | None = None
    beside: dict[int, Float32] = field(default_factory=dict, compare=False, repr=False)


class PolicyNet(Protocol):
    """Harmony's net in three parts. Any exception makes the heuristic answer."""

    def look(self, seen: Observation) -> ClusterState:
        """At a cluster: all jobs of the observation run."""
        ...

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        """States of new jobs (J, JOB_FEATURES), of which nothing is placed, and of the cluster's nodes."""
        ...

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        """(2C,) logits in the order of actions.py for the next task of job `job`. `step` is (C, STEP_FEATURES)."""
        ...


class PolicyNetError(Exception):
    """The net answered, but with something that is not a logit per action."""


# Chooses an action: (logits, mask, task number) → (action, probability of that choice).
Choose = Callable[[Float32, BoolArray, int], tuple[int, float]]


class _ClusterEncoding:
    """A cluster as the net saw it, over the nodes `rows` (C,) with the jobs `running`, and the stamps by which a change
    shows."""

    def __init__(self, view: ClusterView, rows: IntArray, now_s: float, running: list[RunningJob]) -> None:
        self.rows, self.running = rows, running
        self.seen: Observation  # never written to
        self.state: ClusterState
        self.free: Float32  # what encode_free gives
        self._usable = view.usable(now_s).tobytes()  # compared as bytes: an array takes ten times as long
        self._inventory = (view.nodes.layout_stamp, view.nodes.telemetry_stamp)
        self._usage_stamp = view.usage.stamp
        self._usage = _usage_of(view, rows)

    def is_layout(self, view: ClusterView) -> bool:
        """True while the view's nodes are the same."""
        return self._inventory[0] == view.nodes.layout_stamp

    def is_still(self, view: ClusterView, rows: IntArray, now_s: float, running: list[RunningJob]) -> bool:
        """True while nothing has changed. A claim that was given back is no change."""
        return (
            self._inventory == (view.nodes.layout_stamp, view.nodes.telemetry_stamp)
            and self.rows.tobytes() == rows.tobytes()
            and self.running == running
            and self._is_used_alike(view)
            and self._usable == view.usable(now_s).tobytes()
        )

    def _is_used_alike(self, view: ClusterView) -> bool:
        if self._usage_stamp != view.usage.stamp:
            if not all(map(np.array_equal, self._usage, _usage_of(view, self.rows))):
                return False
            self._usage_stamp = view.usage.stamp
        return True


def _usage_of(view: ClusterView, rows: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Copies."""
    usage = view.usage
    if len(rows) == view.nodes.size:
        return usage.free.copy(), usage.free_gpus.copy(), usage.task_count.copy()
    return usage.free.take(rows, axis=1), usage.free_gpus.take(rows), usage.task_count.take(rows)


@frozen
class _Shortlist:
    """The nodes `rows` (C,) that some jobs of a request may take."""

    lineage: object  # of the view: a gang that is decided on a fork of it has the same nodes
    layout_stamp: int
    jobs: Sequence[Job]
    rows: IntArray

    def is_of(self, job: Job, view: ClusterView) -> bool:
        """Also False for a job that got its shape after the shortlist was made."""
        is_here = self.lineage is view.lineage and self.layout_stamp == view.nodes.layout_stamp
        return is_here and any(other is job for other in self.jobs)


@frozen
class _Encoded:
    """A job as the net read its `token` (1, JOB_FEATURES) beside a cluster as it saw that. The job is the first of the
    state."""

    job: Job
    looked: _ClusterEncoding
    token: Float32
    state: PolicyState

    def note(self, context: PlaceContext) -> NetRead | None:
        """The arrays, without a task yet; None unless the context asks for them: the log draws few decisions."""
        if not context.is_recording:
            return None
        seen, looked = self.looked.seen.beside(self.token), self.looked
        tokens = {"nodes": seen.nodes, "jobs": seen.jobs, "placement": seen.placement}
        return NetRead(looked.rows, tokens, [running.id for running in looked.running])


@dataclass(slots=True)
class _Request:
    """One request: its jobs in the order they are placed, the last shortlist, and the job that was read last."""

    now_s: float
    jobs: Sequence[Job] = ()
    shortlist: _Shortlist | None = None
    encoded: _Encoded | None = None


class Harmony(PlacementPolicy):
    """The most likely action each time. `fallback` answers if the net fails."""

    name = "harmony"

    def __init__(
        self,
        net: PolicyNet,
        fallback: PlacementPolicy,
        most_nodes: int = MOST_NODES,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._net = net
        self._fallback = fallback
        self._most_nodes = most_nodes
        self._monotonic_s = monotonic_s
        self._encoder = Encoder(MOST_JOBS)

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """Looks at a view that was asked about before, so that the next request finds that done. Never raises."""
        looked: _ClusterEncoding | None = view.notes.get(self)
        if looked is not None and looked.is_layout(view):
            with contextlib.suppress(Exception):  # a broken net: the next request reports it
                self._look(looked.rows, view, now_s, ONE_SLICE)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        """Shortest first, by the net's guess of how long each runs and by how many GPUs it keeps from the others."""
        request = context.notes[self] = _Request(context.now_s)
        if len(jobs) > 1:
            try:
                minutes = self._minutes(jobs, view, context)
            except Exception:  # a broken net never fails a call: what jobs declare orders them as well
                minutes = [linear_minutes(job) for job in jobs]
            jobs = shortest_first(jobs, minutes)
        request.jobs = jobs
        return jobs

    def _minutes(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> list[float]:
        """Predicted run time of each job; the declared one if the net predicts none."""
        found: dict[JobId, float] = {}
        for first in range(0, len(jobs), CHUNK):
            batch = [job for job in jobs[first : first + CHUNK] if job.groups]
            rows = self._shortlist(batch, view, context)
            if not batch or not len(rows):
                continue
            looked = self._look(rows, view, context.now_s, context.slices)
            stretch = self._net.read(looked.state, self._encoder.encode_new(batch)).stretch
            if stretch is not None:
                by = stretch[:, 0].tolist()
                found |= {job.id: stretched(linear_minutes(job), by[i]) for i, job in enumerate(batch)}
        return [found[job.id] if job.id in found else linear_minutes(job) for job in jobs]

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S:
            return self._fall_back("deadline", job, view, context)
        try:
            proposal = self.decode(job, view, context, most_likely)
        except Exception as error:  # of any kind: a broken net never fails a call
            return self._fall_back(type(error).__name__, job, view, context)
        return proposal or self._fall_back("dead end", job, view, context)

    def decode(self, job: Job, view: ClusterView, context: PlaceContext, choose: Choose) -> Proposal | None:
        """The gang placed action by action; None for a dead end. Raises the net's own errors."""
        known = self._request(context).shortlist
        if known is not None and known.is_of(job, view):
            proposal = self._decode_on(known.rows, job, view, context, choose)
            if proposal is not None or len(known.rows) == view.nodes.size:
                return proposal  # else jobs placed since may have filled the shortlist
        rows = self._shortlist(_chunk(job, self._request(context).jobs), view, context)
        return self._decode_on(rows, job, view, context, choose)

    def _shortlist(self, batch: Sequence[Job], view: ClusterView, context: PlaceContext) -> IntArray:
        rows = shortlist(batch, view, context, self._most_nodes)
        self._request(context).shortlist = _Shortlist(view.lineage, view.nodes.layout_stamp, batch, rows)
        return rows

    def _decode_on(
        self, rows: IntArray, job: Job, view: ClusterView, context: PlaceContext, choose: Choose
    ) -> Proposal | None:
        """The gang on some of the nodes `rows`."""
        candidates = Candidates(Gang(job, view, context), rows)
        if candidates.lacks_slots():
            return None
        encoded = self._encode(job, rows, view, context)
        return _Decoding(self._net, encoded, candidates, choose).run()

    def _encode(self, job: Job, rows: IntArray, view: ClusterView, context: PlaceContext) -> _Encoded:
        looked, request = self._look(rows, view, context.now_s, context.slices), self._request(context)
        if request.encoded is None or request.encoded.looked is not looked or request.encoded.job is not job:
            request.encoded = self._read(job, looked)
        return request.encoded

    def _read(self, job: Job, looked: _ClusterEncoding) -> _Encoded:
        token = self._encoder.encode_new([job])
        return _Encoded(job, looked, token, self._net.read(looked.state, token))

    def steps(self, job: Job, view: ClusterView, context: PlaceContext) -> "NetSteps":
        """The gang before its first task, on an encoding of its own: the same for equal states, whatever was asked
        before. Raises the net's own errors."""
        rows = shortlist(_chunk(job, self._request(context).jobs), view, context, self._most_nodes)
        encoded = self._read(job, self._look(rows, view, context.now_s, context.slices))
        return NetSteps(self._net, encoded, Candidates(Gang(job, view, context), rows))

    def _request(self, context: PlaceContext) -> _Request:
        request: _Request | None = context.notes.get(self)
        if request is None or request.now_s != context.now_s:
            request = context.notes[self] = _Request(context.now_s)
        return request

    def _look(self, rows: IntArray, view: ClusterView, now_s: float, slices: Slices) -> _ClusterEncoding:
        """Encodes the nodes `rows` and their jobs; the last encoding if nothing has changed since."""
        chosen = None if len(rows) == view.nodes.size else rows
        running = self._encoder.running(view, chosen)
        looked: _ClusterEncoding | None = view.notes.get(self)
        if looked is None or not looked.is_still(view, rows, now_s, running):
            looked = _ClusterEncoding(view, rows, now_s, running)
            seen = looked.seen = self._encoder.encode(view, (), now_s, rows=chosen, running=running)
            tokens = len(seen.nodes) + len(seen.jobs)
            looked.state, looked.free = ask_net(lambda: self._net.look(seen), tokens, slices), free_of(seen.nodes)
            view.notes[self] = looked
        return looked

    def _fall_back(self, reason: str, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._fallback.propose(job, view, context)
        if proposal is None:
            return None
        return replace(proposal, is_fallback=True, fallback_reason=f"{self.name}: {reason}")


class NetSteps:
    """One gang, decoded task by task: the caller chooses each action.

    `read`: the inputs and answers of the net; None unless the context asks for them. For one use.
    """

    def __init__(self, net: PolicyNet, encoded: _Encoded, candidates: Candidates) -> None:
        self.candidates, self.read = candidates, encoded.note(candidates.gang.context)
        self._net, self._state, free = net, encoded.state, encoded.looked.free
        self._tokens: StepTokens | None = None if candidates.is_stuck() else StepTokens(candidates, free)
        self._logits: Float32  # of the next task

    @property
    def features(self) -> Float32:
        """(C, STEP_FEATURES) tokens of the candidates for the next task."""
        assert self._tokens is not None
        return self._tokens.features

    def odds(self) -> tuple[int, FloatArray] | None:
        """As `node_odds` for the next task; None if no action is possible. Raises PolicyNetError."""
        if self._tokens is None or self.candidates.is_stuck():
            return None
        logits = self._logits = self._net.decode(self._state, 0, self._tokens.features)
        mask = self.candidates.mask
        if logits.shape != mask.shape or not np.isfinite(logits[mask]).all():
            raise PolicyNetError(f"no logits of shape {mask.shape}, or some that are no numbers")
        return node_odds(logits, mask)

    def take(self, action: int) -> None:
        """Places the next task, on a node that takes it."""
        assert self._tokens is not None
        gang = self.candidates.gang
        if self.read is not None:
            note_action(self.read, self.candidates, self._tokens.features, self._logits, action)
        self.candidates.take(action)
        if gang.remaining:
            self._tokens.update(action % len(self.candidates.rows))


def note_action(read: NetRead, candidates: Candidates, tokens: Float32, logits: Float32, action: int) -> None:
    """Before a task is placed: copies the arrays that change with it. An action that turned out closed is replaced."""
    task = len(candidates.gang.placed)
    read.tokens[task:], read.logits[task:] = [tokens.copy()], [logits]
    read.masks[task:], read.actions[task:] = [candidates.mask.copy()], [action]


def node_odds(logits: Float32, mask: BoolArray) -> tuple[int, FloatArray]:
    """The first action of the likelier role, and (C,) the probability of each candidate for it."""
    size = len(mask) // 2
    first = size * (int(np.where(mask, logits, -np.inf).argmax()) // size)
    half = slice(first, first + size)
    odds = np.where(mask[half], np.exp(logits[half] - logits[half][mask[half]].max()), 0.0).astype(np.float64)
    return first, odds / odds.sum()


def drawn_from(odds: FloatArray, uniform: float) -> int:
    """The candidate that a number in [0, 1) stands for."""
    drawn = np.searchsorted(np.cumsum(odds), uniform, side="right")
    return min(int(drawn), int(np.flatnonzero(odds)[-1]))


class HarmonySample(PlacementPolicy):
    """Another placement by the same net: drawn from its distribution with numbers that `seed` fixes.

    Proposes to a search; shares the encoding of the policy it is made of. The role to place next is the likelier one
    and only the node is drawn, so that a placement comes about in one way and the product of the nodes' probabilities
    is its propensity. Proposes nothing if the net fails, or if the draw leads into a dead end.
    """

    def __init__(self, harmony: Harmony, seed: int) -> None:
        self.name = f"{harmony.name}-sample-{seed}"
        self._harmony = harmony
        self._uniform: list[float] = np.random.default_rng(seed).random(64).tolist()

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        try:
            return self._harmony.decode(job, view, context, self._draw)
        except Exception:  # the greedy proposal, which comes before it, reports a broken net
            return None

    def _draw(self, logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
        first, odds = node_odds(logits, mask)
        c = drawn_from(odds, self._uniform[task % len(self._uniform)])
        return first + c, float(odds[c])


def most_likely(logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
    """Of the actions that are possible; its probability counts as 1."""
    action = int(logits.argmax())  # allowed, as a rule
    return (action if mask[action] else int(np.where(mask, logits, _LOWEST).argmax())), 1.0


def chosen_action(logits: Float32, mask: BoolArray, placed: int, choose: Choose) -> tuple[int, float]:
    """An action for the next task, and its probability. Raises PolicyNetError unless there is one logit per action."""
    if logits.shape != mask.shape:
        raise PolicyNetError(f"logits of shape {logits.shape} for {len(mask)} actions")
    action, probability = choose(logits, mask, placed)
    if not math.isfinite(logits[action]):  # argmax takes a NaN before any number
        raise PolicyNetError(f"{logits[action]} is not a logit")
    return action, probability


def _chunk(job: Job, jobs: Sequence[Job]) -> Sequence[Job]:
    """The job and those of the request that come after it. A job whose shape is not settled yet has no token."""
    after = itertools.dropwhile(lambda other: other.id != job.id, jobs)
    next(after, None)
    return [job, *(other for other in itertools.islice(after, CHUNK - 1) if other.groups)]


class _Decoding:
    """One gang. For one use."""

    def __init__(self, net: PolicyNet, encoded: _Encoded, candidates: Candidates, choose: Choose) -> None:
        self._net, self._encoded, self._candidates, self._choose = net, encoded, candidates, choose
        self._gang = candidates.gang
        self._tokens = StepTokens(candidates, encoded.looked.free)
        self._read = encoded.note(self._gang.context)
        self._is_explaining = self._gang.context.is_explaining
        self._explained: list[Candidate] = []
        self._propensity = 1.0

    def run(self) -> Proposal | None:
        """None if the net's choices lead into a dead end."""
        gang, tokens, state = self._gang, self._tokens, self._encoded.state
        while (c := self._place(self._net.decode(state, 0, tokens.features))) >= 0:
            if not gang.remaining:
                return Proposal(gang.assignments(), self._propensity, tuple(self._explained), read=self._read)
            tokens.update(c)
            gang.context.slices.pause()
        return None

    def _place(self, logits: Float32) -> int:
        """Places the next task by these logits; its candidate, or −1 if nothing is open. An action whose GPUs turn out
        too slow to share is masked, and the choice is made again."""
        candidates = self._candidates
        while not candidates.is_stuck():
            action, probability = chosen_action(logits, candidates.mask, len(self._gang.placed), self._choose)
            explained = self._explain(logits, action) if self._is_explaining else []
            if self._read is not None:
                note_action(self._read, candidates, self._tokens.features, logits, action)
            if candidates.take(action):
                self._propensity *= probability
                self._explained += explained
                return action % len(candidates.rows)
        return -1

    def _explain(self, logits: Float32, chosen: int) -> list[Candidate]:
        """The likeliest actions with their logits."""
        candidates, gang, size = self._candidates, self._gang, len(self._candidates.rows)
        task = gang.next_name(candidates.turns[decode_action(chosen, size)[0]].group)
        masked = np.where(candidates.mask, logits, -np.inf)
        top = [int(a) for a in np.argsort(-masked, kind="stable")[:_EXPLAINED_CANDIDATES] if candidates.mask[a]]
        return [
            Candidate(
                task=task,
                node=gang.view.nodes.records[int(candidates.rows[decode_action(action, size)[1]])].id,
                score=float(logits[action]),
                terms=((decode_action(action, size)[0].value.lower(), 1.0),),
                is_chosen=action == chosen,
            )
            for action in (top if chosen in top else [*top, chosen])
        ]
