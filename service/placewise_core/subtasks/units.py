"""The computing units of one node and what runs on them, for node scope. Never assigns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import Assignment, Gpu, RunningJob
from placewise_core.domain.job import Job, JobId, Subtask, SubtaskState
from placewise_core.subtasks.metrics import SubtaskMetrics, gpu_vector
from placewise_core.view.view import CPU, ClusterView

SM, DRAM = 0, 4  # rows of gpu_vector
_Running = tuple[JobId, Subtask, str]  # of which job, and on which unit


@dataclass(slots=True)
class GpuUnit:
    """One GPU: utilisation and memory as shares, metric vectors of the subtasks on it, the jobs they are of.

    `measured` (utilisation, memory) as in the telemetry, 0 if missing; `util` and `memory_util` also count
    subtasks put there since.
    """

    index: int
    util: float
    memory_util: float
    max_jobs: int
    measured: tuple[float, float] = (0.0, 0.0)
    running: list[FloatArray] = field(default_factory=list)
    jobs: set[JobId] = field(default_factory=set)

    def is_below(self, util_limit: float, memory_limit: float) -> bool:
        return self.util < util_limit and self.memory_util < memory_limit

    def admits(self, job_id: JobId) -> bool:
        """Within the number of jobs the node allows per GPU; subtasks of one job count once."""
        return job_id in self.jobs or len(self.jobs) < self.max_jobs

    def take(self, job_id: JobId, vector: FloatArray, default_util: float) -> None:
        """Adds the expected use of the subtask, until telemetry shows it: its SM and DRAM shares, or if they
        are unknown an even part of the GPU."""
        self.running.append(vector)
        self.jobs.add(job_id)
        self.util += default_util if math.isnan(vector[SM]) else float(vector[SM])
        self.memory_util += 0.0 if math.isnan(vector[DRAM]) else float(vector[DRAM])


@dataclass(slots=True)
class NodeUnits:
    """`cores` of the node in all; `idle_cores` by name, lowest first."""

    cores: int
    idle_cores: list[str]
    gpus: list[GpuUnit]


def units_of(view: ClusterView, m: int, jobs: Sequence[Job], metrics: SubtaskMetrics) -> NodeUnits:
    """Units of node m with their load, by the view and the request's running subtasks."""
    cores = int(view.capacity[CPU, m])
    held = _held(view, m)
    running = _running(held, jobs)
    busy = {unit for _, _, unit in running if unit.startswith("cpu")}
    idle = [name for name in (f"cpu{i}" for i in range(cores)) if name not in busy]
    # Cores held by whole jobs have no names: they are taken from the end.
    unnamed = math.ceil(sum(a.demand.cpu_cores for _, a in held if not a.cpu_unit))
    idle = idle[: max(0, min(len(idle), cores - unnamed))]
    gpus = {gpu.index: _unit(view, m, gpu) for gpu in view.nodes[m].gpus if not view.gpu_is_exclusive[m, gpu.index]}
    _add_running(view, m, running, metrics, gpus)
    return NodeUnits(cores, idle, [gpus[g] for g in sorted(gpus)])


def _unit(view: ClusterView, m: int, gpu: Gpu) -> GpuUnit:
    util = gpu.util if gpu.util > 0 else 0.0  # NaN without a report
    memory = gpu.memory_util if gpu.memory_util > 0 else 0.0
    unit = GpuUnit(gpu.index, util, memory, max(1, view.nodes[m].max_jobs_per_gpu), (util, memory))
    unit.jobs.update(t.job_id for t in view.tenants(m, gpu.index))
    return unit


def _add_running(
    view: ClusterView, m: int, running: Sequence[_Running], metrics: SubtaskMetrics, gpus: dict[int, GpuUnit]
) -> None:
    """Running subtasks on their GPUs. Telemetry already counts them; if it is missing, their own metrics do."""
    silent = {g.index for g in view.nodes[m].gpus if math.isnan(g.util)}
    for job_id, subtask, unit in running:
        gpu = gpus.get(int(unit[3:])) if unit.startswith("gpu") and unit[3:].isdigit() else None
        if gpu is None:
            continue
        util, memory = gpu.util, gpu.memory_util
        gpu.take(job_id, gpu_vector(subtask, metrics), 0.0)
        if gpu.index not in silent:
            gpu.util, gpu.memory_util = util, memory


def _running(held: Sequence[tuple[RunningJob, Assignment]], jobs: Sequence[Job]) -> list[_Running]:
    """Every running subtask: as the request says for its jobs, as the view says for others."""
    state_running = SubtaskState.RUNNING
    found = [
        (job.id, subtask, subtask.unit.rpartition("/")[2])
        for job in jobs
        for subtask in job.subtasks
        if subtask.state is state_running and subtask.unit
    ]
    asked = {job.id for job in jobs}
    for running, assignment in held:
        if not assignment.cpu_unit or running.id in asked:
            continue
        subtask = next((s for s in running.job.subtasks if s.id == assignment.subtask), None)
        if subtask is not None:
            found.append((running.id, subtask, assignment.cpu_unit))
    return found


def _held(view: ClusterView, m: int) -> list[tuple[RunningJob, Assignment]]:
    """What running jobs hold on node m, of cores: a pipeline that only waits there holds nothing."""
    node, known = view.node_id(m), view.jobs
    return [
        (running, assignment)
        for job_id in view.jobs_on(m)
        if (running := known.get(job_id)) is not None
        for assignment in running.assignments
        if (assignment.cpu_unit or assignment.demand.cpu_cores) and assignment.node == node
    ]
