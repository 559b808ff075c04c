"""Proteus, work-conserving: every job that fits starts at once, in the shape of least S(n). The paper's method as
printed is `proteus-paper`.

The first job that does not fit reserves its nodes and others may pass it, as behind `fifo`. Waiting is no choice here,
so S(n) says only how many GPUs a job gets. By (14), S(n) depends on n through C(n) alone, and C(n) falls with every
GPU: jobs that come together would run one after the other on all GPUs. So S(n) has one term more, the delay of those
that wait: n GPUs for C(n) seconds are n·C(n)/N seconds of the whole platform. And only shapes on the fewest nodes that
fit are compared: the profiles predict speeds inside a node well, and over several nodes they err by factors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from placewise_core.admit.greedy import GreedyAdmission, Round, RoundNotes, WaitingJob
from placewise_core.admit.policies.lyapunov import drift_plus_penalties, followed, joined
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.seen import ShapeTable
from placewise_core.admit.shapes import Options
from placewise_core.basics.slices import spaced
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, DriftPlusPenalty
from placewise_core.domain.job import Job
from placewise_core.view.view import ClusterView


class Proteus(GreedyAdmission):
    """S(n) = V·C(n)/τ + (c/τ)² − (c/τ)·(Z + Q)/τ + (W + Z/τ)·n·C(n)/(N·τ), with W the number of other jobs that wait.

    C(n) is Lat(t, s) of the fitted profiles (4), c = C(1). Q holds the work of jobs that wait at the start of the slot;
    Z moves once per slot by (8), and what started since the last slot counts as served.
    """

    name = "proteus"
    keeps_order = True
    backfills = True

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        state = queue
        if context.slot > queue.slot:
            state = followed(queue, context.slot, context.settings, {job.id for job in jobs}, view.jobs.keys())
        return super().admit(jobs, view, state, context)

    def begin(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> Round:
        state = super().begin(jobs, view, queue, context)
        if arrived := self._arrived(jobs, state):
            state.queue = joined(queue, arrived, queue.admitted, queue.decided_slot)
        waiting = state.queue.waiting
        state.waiting = sum([job.id in waiting and job.id not in view.jobs for job in jobs])
        return state

    def _arrived(self, jobs: Sequence[Job], state: Round) -> dict[str, float]:
        """Cost(1) of every new job. Work that no shape of this cluster could ever serve is no backlog."""
        known, running = state.queue.waiting, state.view.jobs
        new = [job for job in jobs if job.id not in known and job.id not in running]
        servable = [job for job in spaced(new, state.context.slices, 4) if len(state.whole.options(job))]
        return {job.id: self._waiting(job, state).single_s for job in servable}

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        if len(options) == 1:
            return 0
        return self.least_of(options.few, state.few_latencies_s(waiting, options), state)

    def least_of(self, shapes: Iterable[tuple[int, int]], latencies_s: Iterable[float], state: Round) -> int:
        """Index of the shape of least S(n), of equals the first, among shapes given by index and GPUs, with their
        latencies. Compared is (V + (W + Z/τ)·n/N)·C(n): S(n) times τ without the terms that are the same for every n.
        """
        each = self._weight(state.queue, state.context.settings, state.waiting - 1) / max(1, state.facts.total_gpus)
        v = state.context.settings.v
        rows = zip(shapes, latencies_s, strict=True)
        return min([(latency_s * (v + each * gpus), i) for (i, gpus), latency_s in rows])[1]

    def _weight(self, queue: QueueState, settings: QueueSettings, others: int) -> float:
        """W + Z/τ while so many other jobs wait."""
        return max(0, others) + queue.delay_s / settings.tau_s

    def scores(self, single_s: float, table: ShapeTable, others: int, notes: RoundNotes) -> tuple[float, ...]:
        queue, settings, total = notes.queue, notes.settings, notes.total_gpus
        weight, tau_s = self._weight(queue, settings, others), settings.tau_s
        costs_s = self._throughput.latencies_at(single_s, table.few_speedups)
        printed = drift_plus_penalties(costs_s, single_s, queue, settings)
        rows = zip(printed, table.few_gpus, costs_s, strict=True)
        return tuple([value + weight * ((gpus or 1) / total) * cost_s / tau_s for value, gpus, cost_s in rows])

    def _start(self, waiting: WaitingJob, rank: int, options: Options, i: int, state: Round) -> Admission:
        admission = super()._start(waiting, rank, options, i, state)
        if not state.context.is_explaining:
            return admission
        return replace(admission, drift_plus_penalty=self._explained(waiting, options, state))

    def _explained(self, waiting: WaitingJob, options: Options, state: Round) -> tuple[DriftPlusPenalty, ...]:
        """S(n) of the shapes that were compared. The job itself waits no more."""
        table = state.rated(waiting, options).table
        scores = self.scores(waiting.single_s, table, state.waiting, state.no_notes())
        costs_s = state.throughput.latencies_at(waiting.single_s, table.few_speedups)
        rows = zip(table.few_gpus, scores, costs_s, strict=True)
        return (DriftPlusPenalty(0, 0.0, 0.0), *[DriftPlusPenalty(*row) for row in rows])
