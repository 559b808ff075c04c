"""Proteus (Lyapunov admission): the head of the queue starts with the n of least S(n) < 0, or waits. One per slot.

The first question in a slot moves the queues and decides; every further one is answered the same and moves nothing.
As in equation (7), what arrives in a slot is in the queue from the next slot on. A job is in the queue while the host
lists it, it has not started (holds nothing in the view), and it could fit the empty cluster. An admitted job keeps its
answer, and its GPUs stay promised, until it starts or is no longer listed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.admit import blockers
from placewise_core.admit.facts import FactsCache
from placewise_core.admit.lyapunov import advanced, drift_plus_penalty, without
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Options, Pool, promised
from placewise_core.cluster import QueueState
from placewise_core.decision import Admission, AdmitPlan, Blocker, DriftPlusPenalty, Reason, Verdict
from placewise_core.job import Job, JobId, Shape
from placewise_core.speed.proteus_cost import ProteusCost
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view import ClusterView, FloatArray

_EXPLAINED_COUNTS = 64
_SLOT_TAKEN = Blocker(Reason.SLOT_TAKEN, message="this slot's decision was made; the next slot decides again")


@dataclass(frozen=True, slots=True)
class _Scores:
    """S(n) and C(n) of every shape the head could start with now."""

    options: Options
    values: FloatArray
    costs_s: FloatArray

    @property
    def best(self) -> int:
        return int(np.argmin(self.values))  # ties go to the fewest GPUs: options are sorted by them

    def explained(self) -> tuple[DriftPlusPenalty, ...]:
        nothing = DriftPlusPenalty(0, 0.0, 0.0)
        rows = zip(self.options.gpus, self.values, self.costs_s, strict=True)
        return (nothing, *(DriftPlusPenalty(int(n), float(s), float(c)) for n, s, c in list(rows)[:_EXPLAINED_COUNTS]))


_Decided = dict[JobId, tuple[_Scores, Pool]]  # the job looked at, with what was seen


class Proteus:
    """Equations (1)–(8), (14)–(15) with the corrections of PAPERS.md: slot-exact, scaled by τ, no Comm on one GPU."""

    name = "proteus"

    def __init__(self, throughput: ThroughputModel) -> None:
        self._throughput = throughput
        self._facts = FactsCache()

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        started = {job.id for job in jobs if job.id in view.jobs}
        state = advanced(queue, max(context.slot, queue.slot), context.settings)
        is_new_slot = state is not queue
        if is_new_slot:
            state = _without_departed(state, jobs, started)
        taken = _taken_in_slot(jobs, started, state)
        pool = _open_pool([job for job in jobs if job.id not in started and job is not taken], state, view, context)
        head = taken or next((job for job in jobs if _is_waiting(job, started, state)), None)
        scores = self._scores(head, pool, state, view, context) if head is not None else None
        if is_new_slot:
            state = _decided(head, scores, state)
        state = self._with_arrivals(jobs, started, view, state, context)
        if head is None:  # who came in this slot is told why it waits in the same words now and later in the slot
            head = next((job for job in jobs if _is_waiting(job, started, state)), None)
            scores = self._scores(head, pool, state, view, context) if head is not None else None
        decided: _Decided = {head.id: (scores, pool)} if head is not None and scores is not None else {}
        return self._answer(jobs, started, view, state, context, decided)

    # -- the queue ----------------------------------------------------------------------------------------------

    def _with_arrivals(
        self, jobs: Sequence[Job], started: set[JobId], view: ClusterView, state: QueueState, context: AdmitContext
    ) -> QueueState:
        """The state with every job noted that is new: it counts as an arrival of this slot."""
        arrived: dict[str, float] = {
            job.id: self._single_s(job, view, context)
            for job in jobs
            if job.id not in state.waiting and job.id not in state.admitted and job.id not in started
        }
        arrived = self._servable(jobs, arrived, view)
        if not arrived:
            return state
        came_s = state.arrivals_s + sum(arrived.values())
        return replace(state, waiting={**state.waiting, **arrived}, arrivals_s=came_s)

    def _servable(self, jobs: Sequence[Job], arrived: dict[str, float], view: ClusterView) -> dict[str, float]:
        """Without the jobs that no shape of this cluster could ever take: work that cannot be served is no backlog."""
        if not arrived:
            return arrived
        whole = self._facts.whole(view)
        fits = {job.id for job in jobs if job.id in arrived and len(whole.options(job))}
        return {job: cost for job, cost in arrived.items() if job in fits}

    def _single_s(self, job: Job, view: ClusterView, context: AdmitContext) -> float:
        match = self._throughput.match(job, self._facts.of(view).gpu_model)
        return self._throughput.single_gpu_s(job, match, context.settings.tau_s)

    # -- the decision -------------------------------------------------------------------------------------------

    def _scores(self, job: Job, pool: Pool, state: QueueState, view: ClusterView, context: AdmitContext) -> _Scores:
        """Equation (14) for every n that fits now, each in its most consolidated shape."""
        facts = self._facts.of(view)
        match = self._throughput.match(job, facts.gpu_model)
        cost = ProteusCost(self._throughput, job, match, facts.bandwidth, context.settings.tau_s)
        options = pool.options(job).consolidated
        costs = cost.total_s(np.maximum(options.gpus, 1), options.nodes)
        return _Scores(options, drift_plus_penalty(costs, cost.single_s, state, context.settings), costs)

    # -- the answer ---------------------------------------------------------------------------------------------

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
        for rank, job in enumerate(jobs, start=1):
            if job.id in started or job.id in state.admitted:
                admission = self._admitted(job, rank, view, state, context, decided)
            elif job.id not in state.waiting:
                admission = Admission(job.id, Verdict.WAIT, rank=rank, blockers=blockers.no_shape(view))
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
        match = self._throughput.match(job, facts.gpu_model)
        cost = ProteusCost(self._throughput, job, match, facts.bandwidth, context.settings.tau_s)
        seconds = float(cost.total_s(max(gpus, 1), max(nodes, 1)))
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


def _without_departed(state: QueueState, jobs: Sequence[Job], started: set[JobId]) -> QueueState:
    """Without the work of jobs that are no longer listed, or that the host started of its own will."""
    listed = {job.id for job in jobs}
    state = without(state, {job for job in state.waiting if job not in listed or job in started})
    if listed.issuperset(state.admitted):
        return state
    return replace(state, admitted={job: answer for job, answer in state.admitted.items() if job in listed})


def _is_waiting(job: Job, started: set[JobId], state: QueueState) -> bool:
    return job.id in state.waiting and job.id not in state.admitted and job.id not in started


def _taken_in_slot(jobs: Sequence[Job], started: set[JobId], state: QueueState) -> Job | None:
    """The job this slot's decision admitted, if it is still to start."""
    for job in jobs:
        if job.id in state.admitted and state.admitted[job.id][2] == state.slot and job.id not in started:
            return job
    return None


def _open_pool(jobs: Sequence[Job], state: QueueState, view: ClusterView, context: AdmitContext) -> Pool:
    """What is free, without what is promised to admitted ones among `jobs`."""
    pool = Pool.free(view, context.now_s)
    shapes = {job: Shape(nodes, per_node) for job, (nodes, per_node, _) in state.admitted.items()}
    promised([job for job in jobs if job.id in shapes], pool, shapes)
    return pool


def _decided(head: Job | None, scores: _Scores | None, state: QueueState) -> QueueState:
    """The state with this slot's decision, by equation (15): the n of least S(n), if that is below S(0) = 0."""
    admitted = state.admitted
    if head is not None and scores is not None and len(scores.options) and scores.values[scores.best] < 0:
        shape = scores.options.shape(scores.best)
        admitted = {**admitted, head.id: (shape.nodes, shape.gpus_per_node, state.slot)}
    return replace(state, decided_slot=state.slot, admitted=admitted)


def _why_waiting(job: Job, scores: _Scores, pool: Pool, context: AdmitContext) -> tuple[Blocker, ...]:
    if len(scores.options) == 0:
        return blockers.does_not_fit(job, pool, context.now_s)
    least = float(scores.values[scores.best])
    if least < 0:  # it would start, but this slot's decision was made
        return (_SLOT_TAKEN,)
    message = f"starting now costs more than waiting: least S(n) = {least:.4g}"
    return (Blocker(Reason.DRIFT_PLUS_PENALTY, shortfall=least, message=message),)
