"""Node scope: ready subtasks of pipelines to the CPU cores and GPUs of one node (IAWP, Algorithm 2).

Needs of each subtask its speedup and, for those on GPUs, the metrics of equation (6). Assigns and says why not; never
holds anything, and never moves a subtask that runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from placewise_core.cluster import Assignment, NodeState
from placewise_core.decision import Blocker, JobDecision, Outcome, Reason
from placewise_core.job import Job, JobId, NodeId, Resources, Role, Subtask, SubtaskState
from placewise_core.place.node_units import GpuUnit, NodeUnits, units_of
from placewise_core.place.subtask_graph import check_pipeline, split
from placewise_core.place.subtask_metrics import (
    SPEEDUP,
    KnownMetrics,
    SubtaskMetrics,
    column_scales,
    cosine,
    gpu_vector,
)
from placewise_core.view import ClusterView


@dataclass(frozen=True, slots=True)
class IawpSettings:
    """`queue_length`: places in the GPU queue per GPU; the paper fixes a length and does not give it. A GPU takes
    further subtasks while its utilisation and its memory are below the limits and it runs fewer than `max_per_gpu`."""

    queue_length: int = 8
    gpu_util_limit: float = 0.9
    gpu_memory_limit: float = 0.9
    max_per_gpu: int = 8


# Of a subtask with a GPU version of which no speedup is known: neither end of the order of speedups wants it first.
UNKNOWN_SPEEDUP = 1.0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A ready subtask with its speedup; CPU-only ones have none."""

    job: Job
    subtask: Subtask
    speedup: float


class SubtaskScheduler:
    """IAWP under the name it is logged with."""

    name = "iawp"

    def __init__(self, settings: IawpSettings | None = None) -> None:
        self._settings = settings or IawpSettings()
        # Where metrics come from that the caller does not give: known ones, or those a bundle completes.
        self.metrics_of: Callable[[ClusterView], SubtaskMetrics] = KnownMetrics.from_view

    def assign(
        self, jobs: Sequence[Job], node_id: str, view: ClusterView, now_s: float, metrics: SubtaskMetrics | None = None
    ) -> list[JobDecision]:
        """One decision per job. Raises InvalidRequestError for subtasks that form no DAG, KeyError for an unknown
        node."""
        return assign_subtasks(jobs, node_id, view, metrics or self.metrics_of(view), self._settings, now_s)


def assign_subtasks(
    jobs: Sequence[Job],
    node: str,
    view: ClusterView,
    metrics: SubtaskMetrics,
    settings: IawpSettings,
    now_s: float = 0.0,
) -> list[JobDecision]:
    """Assignments of ready subtasks, in the order they were made, and blockers for the others.

    Subtasks are ranked by speedup. In turns the GPU queue, while it has a place, takes the one with the largest and an
    idle core the one with the least, until the two ends meet; a subtask slower on a GPU than on a core stays with the
    cores. Then the GPU with most room takes from the queue the subtask least like what it runs: priority = 1 / mean
    cosine (6), and on an empty GPU the largest speedup.
    """
    for i, job in enumerate(jobs):
        check_pipeline(job, f"jobs[{i}].subtasks")
    m = view.index[node]
    if not view.usable(now_s)[m]:
        return [_unusable(job, view, m, now_s) for job in jobs]
    run = _Run(view, m, jobs, metrics, settings)
    run.share_out()
    run.dispatch()
    return [run.decision(job) for job in jobs]


class _Run:
    """State of one assignment round."""

    def __init__(
        self, view: ClusterView, m: int, jobs: Sequence[Job], metrics: SubtaskMetrics, settings: IawpSettings
    ) -> None:
        self.node = NodeId(view.node_id(m))
        self.metrics, self.settings = metrics, settings
        self.units: NodeUnits = units_of(view, m, jobs, metrics)
        self.queue: list[_Ready] = []
        self.assigned: dict[JobId, list[Assignment]] = {job.id: [] for job in jobs}
        self.blocked: dict[JobId, list[tuple[Reason, int]]] = {job.id: [] for job in jobs}
        self.ready: list[_Ready] = []
        for job in jobs:
            ready, pending = split(job.subtasks)
            self.ready.extend(_Ready(job, s, self._speedup(s)) for s in ready)
            self.blocked[job.id].extend((Reason.PREDECESSOR_PENDING, missing) for _, missing in pending)
        # Stable: equal speedups keep the order of the request.
        self.ready.sort(key=lambda r: r.speedup)

    def _speedup(self, subtask: Subtask) -> float:
        """0 for a CPU-only subtask: it is the last any GPU would take."""
        return self.metrics.of(subtask).get(SPEEDUP, UNKNOWN_SPEEDUP) if subtask.has_gpu_version else 0.0

    # -- Algorithm 2, lines 7–12 --------------------------------------------------------------------------------

    def share_out(self) -> None:
        """Both ends of the order of speedups, in turns: the GPU queue takes the largest, an idle core the least."""
        places = self.settings.queue_length * len(self.units.gpus)
        while self.ready:
            before = len(self.ready)
            if len(self.queue) < places and self._wants_gpu(self.ready[-1]):
                self.queue.append(self.ready.pop())
            if self.ready and self.units.idle_cores:
                self._to_core(self.ready.pop(0), self.units.idle_cores.pop(0))
            if len(self.ready) == before:
                break
        for left in self.ready:
            reason = Reason.UNIT_BUSY if left.subtask.has_gpu_version else Reason.CPU_ONLY
            self.blocked[left.job.id].append((reason, 1))

    def _wants_gpu(self, candidate: _Ready) -> bool:
        if not candidate.subtask.has_gpu_version:
            return False
        return candidate.speedup >= 1.0 or not self.units.cores

    def _to_core(self, chosen: _Ready, unit: str) -> None:
        self._assign(chosen, unit, (), Resources(cpu_cores=1.0))

    # -- Algorithm 2, lines 13–20 -------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Queue to GPUs, one subtask at a time: each one changes what the next is compared with."""
        vectors = {id(r): gpu_vector(r.subtask, self.metrics) for r in self.queue}
        scales = column_scales([*vectors.values(), *(v for gpu in self.units.gpus for v in gpu.running)])
        while self.queue:
            open_gpus = [(gpu, takers) for gpu in self.units.gpus if (takers := self._takers(gpu))]
            if not open_gpus:
                break
            gpu, takers = min(open_gpus, key=lambda entry: (entry[0].util, len(entry[0].running), entry[0].index))
            running = [v / scales for v in gpu.running]
            chosen = max(takers, key=lambda r: _priority(r, [cosine(vectors[id(r)] / scales, v) for v in running]))
            self.queue.remove(chosen)
            gpu.take(chosen.job.id, vectors[id(chosen)], 1.0 / self.settings.max_per_gpu)
            self._assign(chosen, f"gpu{gpu.index}", (gpu.index,), Resources())
        for left in self.queue:
            is_room = any(
                gpu.is_below(self.settings.gpu_util_limit, self.settings.gpu_memory_limit) for gpu in self.units.gpus
            )
            self.blocked[left.job.id].append((Reason.UNIT_BUSY if is_room else Reason.UTILISATION_LIMIT, 1))

    def _takers(self, gpu: GpuUnit) -> list[_Ready]:
        limits = self.settings
        if not gpu.is_below(limits.gpu_util_limit, limits.gpu_memory_limit) or len(gpu.running) >= limits.max_per_gpu:
            return []
        return [r for r in self.queue if gpu.admits(r.job.id)]

    # -- the answer ---------------------------------------------------------------------------------------------

    def _assign(self, chosen: _Ready, unit: str, gpus: tuple[int, ...], demand: Resources) -> None:
        self.assigned[chosen.job.id].append(
            Assignment(
                task=chosen.subtask.id,
                role=Role.WORKER,
                node=self.node,
                gpu_indices=gpus,
                demand=demand,
                cpu_unit=unit,
                subtask=chosen.subtask.id,
            )
        )

    def decision(self, job: Job) -> JobDecision:
        assignments = tuple(self.assigned[job.id])
        blockers = tuple(self._blockers(job))
        is_idle = not assignments and any(s.state is SubtaskState.PENDING for s in job.subtasks)
        return JobDecision(
            job_id=job.id,
            outcome=self._waiting(job) if is_idle else Outcome.PLACED,
            assignments=assignments,
            blockers=blockers,
        )

    def _waiting(self, job: Job) -> Outcome:
        """NO_FIT where a ready subtask needs a kind of unit that the node does not have."""
        ready, _ = split(job.subtasks)
        has_unit = self.units.cores or (self.units.gpus and any(s.has_gpu_version for s in ready))
        return Outcome.NO_FIT if ready and not has_unit else Outcome.WAIT

    def _blockers(self, job: Job) -> list[Blocker]:
        """Units first, then predecessors: a freed unit lets the pipeline go on, predecessors come by themselves."""
        found = self.blocked[job.id]
        return [
            Blocker(reason, nodes=len(missing), shortfall=float(min(missing)), message=message)
            for reason, message in _MESSAGES.items()
            if (missing := [count for r, count in found if r is reason])
        ]


_MESSAGES = {
    Reason.CPU_ONLY: "subtasks without a GPU version find no idle core",
    Reason.UTILISATION_LIMIT: "subtasks wait in the GPU queue: every GPU is at its utilisation or memory limit",
    Reason.UNIT_BUSY: "subtasks find no idle core and no GPU that may take them",
    Reason.PREDECESSOR_PENDING: "subtasks whose predecessors are not done",
}


def _priority(candidate: _Ready, similarities: Sequence[float]) -> tuple[float, float]:
    """1 / mean cosine, then speedup; infinite on an empty GPU or beside nothing alike."""
    mean = sum(similarities) / len(similarities) if similarities else 0.0
    return (1.0 / mean if mean > 0 else float("inf"), candidate.speedup)


def _unusable(job: Job, view: ClusterView, m: int, now_s: float) -> JobDecision:
    state = view.nodes[m].state
    if state is not NodeState.READY:
        reason = Reason.NODE_DRAINING if state is NodeState.DRAINING else Reason.NODE_DOWN
    else:
        reason = Reason.STALE_TELEMETRY if view.is_stale(now_s)[m] else Reason.THERMAL_LIMIT
    blocker = Blocker(reason, nodes=1, message=f"node {view.node_id(m)} is not used now")
    return JobDecision(job_id=job.id, outcome=Outcome.WAIT, blockers=(blocker,))
