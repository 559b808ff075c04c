"""Proteus as printed (Xiang, Shi): a fixed batch per GPU, 0 ≤ n ≤ N, and a head that waits while S(n) ≥ 0, also beside
idle GPUs. One decision a slot: the head of the queue starts with the n of least S(n) < 0, or waits.

The first question in a slot moves the queues and decides; every further one is answered the same and moves nothing.
As in equation (7), what arrives in a slot is in the queue from the next slot on. A job is in the queue while the host
lists it, it has not started (holds nothing in the view), and it could fit the empty cluster. An admitted job keeps its
answer, and its GPUs stay promised, until it starts or is no longer listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from placewise_core.admit import blockers
from placewise_core.admit.facts import FactsCache, PlatformFacts
from placewise_core.admit.policies.lyapunov import advanced, drift_plus_penalty, joined, without
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.admit.pool import Pool, take_promised
from placewise_core.admit.seen import MOST_SHAPES, Seen
from placewise_core.admit.shapes import Options
from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import spaced
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, Blocker, DriftPlusPenalty, Reason, Verdict
from placewise_core.domain.job import Job, JobId, Shape
from placewise_core.speed.proteus_cost import FixedBatchCost, ProteusCost
from placewise_core.speed.throughput import Match, ThroughputModel
from placewise_core.view.speeds import match_on
from placewise_core.view.view import ClusterView

_SLOT_TAKEN = Blocker(Reason.SLOT_TAKEN, message="this slot's decision was made; the next slot decides again")


@frozen
class _Scores:
    """S(n) and C(n) of every shape the head could start with now."""

    options: Options
    values: FloatArray
    costs_s: FloatArray

    @property
    def best(self) -> int:
        return int(self.values.argmin())  # ties go to the fewest GPUs: options are sorted by them

    def explained(self) -> tuple[DriftPlusPenalty, ...]:
        first = [each[:MOST_SHAPES].tolist() for each in (self.options.gpus, self.values, self.costs_s)]
        return (DriftPlusPenalty(0, 0.0, 0.0), *[DriftPlusPenalty(*row) for row in zip(*first, strict=True)])


_KEPT_COSTS = 256  # kinds of heads whose costs are remembered
_Costs = Bounded[tuple[object, ...], tuple[FloatArray, float]]
_Decided = dict[JobId, tuple[_Scores, Pool]]  # each job with its scores and pool


class ProteusPaper(AdmissionPolicy):
    """Equations (1)–(8), (14), (15). Three corrections of the print: times over τ, one decision a slot, no Comm on one
    GPU."""

    name = "proteus-paper"

    def __init__(self, throughput: ThroughputModel) -> None:
        self._throughput = throughput
        self._facts = FactsCache()
        self._costs: _Costs = Bounded(_KEPT_COSTS)

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        started = {job.id for job in jobs if job.id in view.jobs}
        state = advanced(queue, context.slot, context.settings)
        is_new_slot = state is not queue
        if is_new_slot:
            state = _without_departed(state, jobs, started)
        taken = _taken_in_slot(jobs, started, state)
        pool = _open_pool([job for job in jobs if job.id not in started and job is not taken], state, view, context)
        head = taken or _first_waiting(jobs, started, state)
        scores = self._scores(head, pool, state, view, context) if head is not None else None
        arrived = self._arrived(jobs, started, view, state, context)
        if is_new_slot:
            state = _decided(head, scores, arrived, state)
        elif arrived:
            state = joined(state, arrived, state.admitted, state.decided_slot)
        if head is None:  # so that the reasons for arrivals of this slot stay the same within the slot
            head = _first_waiting(jobs, started, state)
            scores = self._scores(head, pool, state, view, context) if head is not None else None
        decided: _Decided = {}
        if head is not None and scores is not None:
            decided[head.id] = scores, pool
            if context.noted is not None:
                context.noted.work_out = partial(_seen, head, scores)
        return self._answer(jobs, started, view, state, context, decided)

    def _arrived(
        self, jobs: Sequence[Job], started: set[JobId], view: ClusterView, state: QueueState, context: AdmitContext
    ) -> dict[str, float]:
        """Cost_i(1) of every job that is new: it counts as an arrival of this slot.

        Jobs that no shape of this cluster could ever take are left out: work that cannot be served is no backlog.
        """
        waiting, admitted = state.waiting, state.admitted
        new = [job for job in jobs if job.id not in waiting and job.id not in admitted and job.id not in started]
        if not new:
            return {}
        whole, gpu_model, tau_s = self._facts.whole(view), self._facts.of(view).gpu_model, context.settings.tau_s
        arrived: dict[str, float] = {}
        for job in spaced(new, context.slices, 4):
            if len(whole.options(job)):
                arrived[job.id] = self._throughput.single_gpu_s(
                    job, match_on(self._throughput, job, gpu_model, view), tau_s
                )
        return arrived

    def _scores(self, job: Job, pool: Pool, state: QueueState, view: ClusterView, context: AdmitContext) -> _Scores:
        """Equation (14) for every n that fits now, each in its most consolidated shape."""
        options = pool.options(job).consolidated
        match = self._match(job, view)
        costs_s, single_s = self._cost_of(job, match, options, self._facts.of(view), context.settings.tau_s)
        return _Scores(options, drift_plus_penalty(costs_s, single_s, state, context.settings), costs_s)

    def _match(self, job: Job, view: ClusterView) -> Match:
        return match_on(self._throughput, job, self._facts.of(view).gpu_model, view)

    def _cost_of(
        self, job: Job, match: Match, options: Options, facts: PlatformFacts, tau_s: float
    ) -> tuple[FloatArray, float]:
        """(K,) C(n) of every shape, and Cost(1). Remembered: the head is asked about again in every slot it waits."""
        key = (
            (job.model, job.params_millions, job.batch_size, job.single_gpu_s),
            (job.iterations, job.total_epochs, job.dataset_size),
            (facts.gpu_model, facts.bandwidth.node_gbps, facts.bandwidth.network_gbps, tau_s),
            (options.key, match.factors),
        )
        found = self._costs.get(key)
        if found is None:
            cost = self._cost(job, match, facts, tau_s)
            found = self._costs[key] = (cost.total_s(np.maximum(options.gpus, 1), options.nodes), cost.single_s)
        return found

    def _cost(self, job: Job, match: Match, facts: PlatformFacts, tau_s: float) -> ProteusCost:
        return FixedBatchCost(self._throughput, job, match, facts.bandwidth, tau_s)

    def _answer(
        self,
        jobs: Sequence[Job],
        started: set[JobId],
        view: ClusterView,
        state: QueueState,
        context: AdmitContext,
        decided: _Decided,
    ) -> AdmitPlan:
        admissions = []
        before = 0
        for rank, job in enumerate(spaced(jobs, context.slices, 4), start=1):
            if job.id in started or job.id in state.admitted:
                admission = self._admitted(job, rank, view, state, context, decided)
            elif job.id not in state.waiting:
                admission = Admission(
                    job.id, Verdict.WAIT, rank=rank, blockers=blockers.no_shape(job, self._facts.whole(view))
                )
            else:
                admission = self._waiting(job, rank, before, context, decided)
                before += 1
            admissions.append(admission)
        return AdmitPlan(tuple(admissions), state)

    def _admitted(
        self,
        job: Job,
        rank: int,
        view: ClusterView,
        state: QueueState,
        context: AdmitContext,
        decided: _Decided,
    ) -> Admission:
        nodes, per_node, _ = state.admitted.get(job.id, (0, 0, 0))
        gpus = int(np.ceil(job.gpus)) if job.is_rigid else nodes * per_node
        if job.id in view.jobs and job.id not in state.admitted:
            held = [len(a.gpu_indices) for a in view.jobs[job.id].assignments]
            nodes, gpus = len({a.node for a in view.jobs[job.id].assignments}), sum(held)
            per_node = max(held, default=0)
        facts = self._facts.of(view)
        match = self._match(job, view)
        seconds = float(self._cost(job, match, facts, context.settings.tau_s).total_s(max(gpus, 1), max(nodes, 1)))
        scores = decided.get(job.id)
        return Admission(
            job.id,
            Verdict.ADMIT,
            gpus=gpus,
            nodes=nodes,
            gpus_per_node=per_node,
            rank=rank,
            expected_finish_time_s=context.now_s + seconds,
            drift_plus_penalty=scores[0].explained() if scores and context.is_explaining else (),
            profile_model=match.label,
        )

    def _waiting(self, job: Job, rank: int, before: int, context: AdmitContext, decided: _Decided) -> Admission:
        if before:
            return Admission(job.id, Verdict.WAIT, rank=rank, blockers=blockers.behind(before))
        if job.id not in decided:
            return Admission(job.id, Verdict.WAIT, rank=rank, blockers=(_SLOT_TAKEN,))
        scores, pool = decided[job.id]
        explained = scores.explained() if context.is_explaining else ()
        why = _why_waiting(job, scores, pool, context)
        return Admission(job.id, Verdict.WAIT, rank=rank, blockers=why, drift_plus_penalty=explained)


def _seen(job: Job, scores: _Scores) -> Seen:
    """The scores of the job that the slot's decision is about."""
    return Seen(scores={str(job.id): scores.explained()})


def _without_departed(state: QueueState, jobs: Sequence[Job], started: set[JobId]) -> QueueState:
    """Without the work of jobs that are no longer listed, or that the host started of its own will."""
    listed = {job.id for job in jobs}
    state = without(state, {job for job in state.waiting if job not in listed or job in started})
    if listed.issuperset(state.admitted):
        return state
    return replace(state, admitted={job: answer for job, answer in state.admitted.items() if job in listed})


def _first_waiting(jobs: Sequence[Job], started: set[JobId], state: QueueState) -> Job | None:
    for job in jobs:
        if job.id in state.waiting and job.id not in state.admitted and job.id not in started:
            return job
    return None


def _taken_in_slot(jobs: Sequence[Job], started: set[JobId], state: QueueState) -> Job | None:
    """The job this slot's decision admitted, if it is still to start."""
    for job in jobs:
        if job.id in state.admitted and state.admitted[job.id][2] == state.slot and job.id not in started:
            return job
    return None


def _open_pool(jobs: Sequence[Job], state: QueueState, view: ClusterView, context: AdmitContext) -> Pool:
    """The free resources, without those promised to admitted ones among `jobs`."""
    pool = Pool.free(view, context.now_s)
    if state.admitted:
        shapes = {job: Shape(nodes, per_node) for job, (nodes, per_node, _) in state.admitted.items()}
        take_promised([job for job in jobs if job.id in shapes], pool, shapes, context.slices)
    return pool


def _decided(head: Job | None, scores: _Scores | None, arrived: Mapping[str, float], state: QueueState) -> QueueState:
    """The state with this slot's decision, by equation (15): the n of least S(n), if that is below S(0) = 0; and with
    what arrived."""
    admitted = state.admitted
    if head is not None and scores is not None and len(scores.options) and scores.values[scores.best] < 0:
        shape = scores.options.shape(scores.best)
        admitted = {**admitted, head.id: (shape.nodes, shape.gpus_per_node, state.slot)}
    return joined(state, arrived, admitted, decided_slot=state.slot)


def _why_waiting(job: Job, scores: _Scores, pool: Pool, context: AdmitContext) -> tuple[Blocker, ...]:
    if len(scores.options) == 0:
        return blockers.does_not_fit(job, pool, blockers.left_out(pool.view, context.now_s))
    least = float(scores.values[scores.best])
    if least < 0:  # it would start, but this slot's decision was made
        return (_SLOT_TAKEN,)
    message = f"starting now costs more than waiting: least S(n) = {least:.4g}"
    return (Blocker(Reason.DRIFT_PLUS_PENALTY, shortfall=least, message=message),)
