"""One round of giving ready subtasks to the units of a node: the ready ones, their units, and the reasons of the rest.

The rules on top choose (iawp.py as the paper writes them, contention.py ours).
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import Blocker, JobDecision, Outcome, Reason
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, Subtask, SubtaskState
from placewise_core.subtasks.graph import split
from placewise_core.subtasks.metrics import GPU_MEMORY_GIB, SPEEDUP, SubtaskMetrics
from placewise_core.subtasks.units import GpuUnit, NodeUnits, units_of
from placewise_core.view.view import ClusterView

# Of a subtask with a GPU version of which no speedup is known: neither end of the order of speedups wants it first.
UNKNOWN_SPEEDUP = 1.0


@frozen
class IawpSettings:
    """`queue_length`: places in the GPU queue per GPU; the paper fixes a length and does not give it. A GPU takes
    further subtasks while its utilisation and its memory are below the limits and it runs fewer than `max_per_gpu`."""

    queue_length: int = 8
    gpu_util_limit: float = 0.9
    gpu_memory_limit: float = 0.9
    max_per_gpu: int = 8


@dataclass(slots=True, eq=False)  # not frozen: that triples its cost, and a round makes dozens
class Ready:
    """A ready subtask with its speedup; CPU-only ones have none."""

    job: Job
    subtask: Subtask
    speedup: float


class SubtaskRound(ABC):
    """State of one round. Rules move subtasks from `ready` (by rising speedup) to units, or through `queue` to GPUs, in
    which the largest speedup comes first. Of equal speedups both ends take the oldest."""

    def __init__(
        self,
        view: ClusterView,
        m: int,
        jobs: Sequence[Job],
        metrics: SubtaskMetrics,
        settings: IawpSettings,
        seed: int = 0,
    ) -> None:
        self.view, self.jobs, self.seed = view, jobs, seed
        self.node = NodeId(view.nodes.records[m].id)
        self.metrics, self.settings = metrics, settings
        self.units: NodeUnits = units_of(view, m, jobs, metrics)
        self.queue: list[Ready] = []
        self.made: list[tuple[Ready, str]] = []
        self.propensity: dict[JobId, float] = {}  # of jobs whose units were drawn
        self.blocked: dict[JobId, list[tuple[Reason, int]]] = {job.id: [] for job in jobs}
        self.ready: list[Ready] = []
        self._memory_gib: dict[int, float] = {}  # by subtask
        for job in jobs:
            ready, pending = split(job.subtasks)
            if ready:
                self.ready += [Ready(job, s, self._speedup(s)) for s in ready]
            if pending:
                self.blocked[job.id] += [(Reason.PREDECESSOR_PENDING, missing) for _, missing in pending]
        # Stable: of equal speedups and submit times, the order of the request.
        self.ready.sort(key=lambda r: (r.speedup, r.job.submit_time_s))

    @abstractmethod
    def share_out(self) -> None:
        """Gives ready subtasks to idle cores and to the GPU queue; the rest of `ready` waits."""

    @abstractmethod
    def dispatch(self) -> None:
        """Gives the queue to GPUs; the rest of `queue` waits."""

    def play(self) -> None:
        """Both parts, and why the rest waits."""
        self.share_out()
        self.dispatch()
        for left in self.ready:
            reason = Reason.UNIT_BUSY if left.subtask.has_gpu_version else Reason.CPU_ONLY
            self.blocked[left.job.id].append((reason, 1))
        limits = self.settings
        is_room = any(gpu.is_below(limits.gpu_util_limit, limits.gpu_memory_limit) for gpu in self.units.gpus)
        most_gib = max((gpu.free_gib for gpu in self.units.gpus), default=0.0)
        for left in self.queue:
            reason = Reason.UNIT_BUSY if is_room else Reason.UTILISATION_LIMIT
            if self.memory_gib(left) > most_gib:
                reason = Reason.INSUFFICIENT_GPU_MEMORY
            self.blocked[left.job.id].append((reason, 1))

    def largest(self) -> int:
        """Place in `ready` of the largest speedup: of equal ones the oldest."""
        return bisect_left(self.ready, self.ready[-1].speedup, key=lambda r: r.speedup)

    def wants_gpu(self, candidate: Ready) -> bool:
        """Has a GPU version that is no slower than a core, or there are no cores. Nothing waits for a GPU that the node
        does not have or that one job holds alone."""
        if not candidate.subtask.has_gpu_version or not self.units.gpus:
            return False
        return candidate.speedup >= 1.0 or not self.units.cores

    def memory_gib(self, candidate: Ready) -> float:
        """GPU memory that the subtask takes; 0 if nobody says."""
        key = id(candidate.subtask)
        if key not in self._memory_gib:
            self._memory_gib[key] = self.metrics.of(candidate.subtask).get(GPU_MEMORY_GIB, 0.0)
        return self._memory_gib[key]

    def to_core(self, chosen: Ready) -> None:
        """To the idle core of the lowest number."""
        self.made.append((chosen, self.units.idle_cores.pop(0)))

    def to_gpu(self, chosen: Ready, gpu: GpuUnit) -> None:
        """Takes it from the queue; the caller adds it to the unit."""
        self.queue.remove(chosen)
        self.made.append((chosen, f"gpu{gpu.index}"))

    def _speedup(self, subtask: Subtask) -> float:
        """0 for a CPU-only subtask: it is the last any GPU would take."""
        if not subtask.has_gpu_version:
            return 0.0
        given = subtask.profile.get(SPEEDUP)  # the request's own value is never overruled
        return self.metrics.of(subtask).get(SPEEDUP, UNKNOWN_SPEEDUP) if given is None else given

    # -- the answer ---------------------------------------------------------------------------------------------

    def decisions(self, jobs: Sequence[Job]) -> list[JobDecision]:
        """One per job, assignments in the order they were made."""
        assigned: dict[JobId, list[Assignment]] = {job.id: [] for job in jobs}
        for chosen, unit in self.made:
            assigned[chosen.job.id].append(self._assignment(chosen, unit))
        return [self._decision(job, tuple(assigned[job.id])) for job in jobs]

    def _assignment(self, chosen: Ready, unit: str) -> Assignment:
        is_core = unit.startswith("cpu")
        return Assignment(
            task=chosen.subtask.id,
            role=Role.WORKER,
            node=self.node,
            gpu_indices=() if is_core else (int(unit[3:]),),
            demand=Resources(cpu_cores=1.0) if is_core else Resources(),
            cpu_unit=unit,
            subtask=chosen.subtask.id,
        )

    def _decision(self, job: Job, assignments: tuple[Assignment, ...]) -> JobDecision:
        is_idle = not assignments and any(s.state is SubtaskState.PENDING for s in job.subtasks)
        return JobDecision(
            job_id=job.id,
            outcome=self._waiting(job) if is_idle else Outcome.PLACED,
            assignments=assignments,
            blockers=tuple(self._blockers(job)),
            propensity=self.propensity.get(job.id, 1.0),
        )

    def _waiting(self, job: Job) -> Outcome:
        """NO_FIT if a ready subtask needs a kind of unit that the node does not have."""
        ready, _ = split(job.subtasks)
        has_unit = self.units.cores or (self.units.gpus and any(s.has_gpu_version for s in ready))
        return Outcome.NO_FIT if ready and not has_unit else Outcome.WAIT

    def _blockers(self, job: Job) -> list[Blocker]:
        """Units first, then predecessors: a freed unit lets the pipeline go on, predecessors come by themselves."""
        found = self.blocked[job.id]
        return [
            Blocker(reason, nodes=len(missing), shortfall=float(min(missing)), message=self._message(reason))
            for reason in _MESSAGES
            if (missing := [count for r, count in found if r is reason])
        ]

    def _message(self, reason: Reason) -> str:
        is_by_choice = reason is Reason.UNIT_BUSY and self.units.idle_cores
        return _NO_GPU if is_by_choice else _MESSAGES[reason]


_NO_GPU = "subtasks find no GPU that may take them, and would take longer on an idle core"
_MESSAGES = {
    Reason.CPU_ONLY: "subtasks without a GPU version find no idle core",
    Reason.INSUFFICIENT_GPU_MEMORY: "subtasks wait in the GPU queue: no GPU has as much memory free",
    Reason.UTILISATION_LIMIT: "subtasks wait in the GPU queue: every GPU is at its utilisation or memory limit",
    Reason.UNIT_BUSY: "subtasks find no idle core and no GPU that may take them",
    Reason.PREDECESSOR_PENDING: "subtasks whose predecessors are not done",
}
