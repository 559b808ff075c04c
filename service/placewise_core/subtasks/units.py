"""The computing units of one node and what runs on them, for node scope. Never assigns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import Assignment, Gpu, RunningJob
from placewise_core.domain.job import Job, JobId, Subtask, SubtaskState
from placewise_core.subtasks.metrics import GPU_MEMORY_GIB, GPU_METRICS, SubtaskMetrics, gpu_vector
from placewise_core.view.view import CPU, ClusterView

SM, DRAM = 0, 4  # rows of gpu_vector
# Pipelines on one GPU of a node that does not say how many jobs it may serve.
PIPELINES_PER_GPU = 8
# Share of each resource that a subtask is taken to want where its metric is unknown.
_UNKNOWN_SHARE = 0.5
_Running = tuple[JobId, Subtask, str]  # of which job, and on which unit


@dataclass(slots=True)
class GpuUnit:
    """One GPU: utilisation and memory as shares, metric vectors of the subtasks on it, the jobs they are of.

    `measured` (utilisation, memory) as in the telemetry, 0 if missing; `util` and `memory_util` also count
    subtasks put there since. `free_gib` of its memory, infinite if its size is unknown. Whole jobs beside them are
    taken to want `shared` of each resource, and the strictest allows a slowdown of `most_slowdown`.
    """

    index: int
    util: float
    memory_util: float
    max_jobs: int
    measured: tuple[float, float] = (0.0, 0.0)
    running: list[FloatArray] = field(default_factory=list)
    jobs: set[JobId] = field(default_factory=set)
    free_gib: float = math.inf
    shared: float = 0.0
    most_slowdown: float = math.inf

    def is_below(self, util_limit: float, memory_limit: float) -> bool:
        return self.util < util_limit and self.memory_util < memory_limit

    def admits(self, job_id: JobId, vector: FloatArray, memory_gib: float) -> bool:
        """Memory first; then the number of jobs that the node allows per GPU, subtasks of one job counting once; then
        the slowdowns that the jobs beside it allow."""
        if memory_gib > self.free_gib or (job_id not in self.jobs and len(self.jobs) >= self.max_jobs):
            return False
        if math.isinf(self.most_slowdown):
            return True
        return float((self.totals() + wanted(vector)).max()) <= self.most_slowdown

    def totals(self) -> FloatArray:
        """(7,) what is wanted of each resource there, at least the measured use of multiprocessors and memory."""
        totals = np.full(len(GPU_METRICS), self.shared)
        for vector in self.running:
            totals += wanted(vector)
        totals[SM] = max(totals[SM], self.measured[0])
        totals[DRAM] = max(totals[DRAM], self.measured[1])
        return totals

    def take(self, job_id: JobId, vector: FloatArray, memory_gib: float, default_util: float) -> None:
        """Adds the expected use of the subtask, until telemetry shows it: its SM and DRAM shares, or if they
        are unknown an even part of the GPU."""
        self.running.append(vector)
        self.free_gib -= memory_gib
        self.jobs.add(job_id)
        self.util += default_util if math.isnan(vector[SM]) else float(vector[SM])
        self.memory_util += 0.0 if math.isnan(vector[DRAM]) else float(vector[DRAM])


def wanted(vector: FloatArray) -> FloatArray:
    """(7,) demand of a subtask for each resource of a GPU."""
    shares = vector[: len(GPU_METRICS)]
    return np.asarray(np.where(np.isnan(shares), _UNKNOWN_SHARE, shares))


@dataclass(slots=True)
class NodeUnits:
    """`cores` of the node in all; `idle_cores` by name, lowest first."""

    cores: int
    idle_cores: list[str]
    gpus: list[GpuUnit]


def units_of(view: ClusterView, m: int, jobs: Sequence[Job], metrics: SubtaskMetrics) -> NodeUnits:
    """Units of node m with their load, by the view and the request's running subtasks."""
    cores = int(view.nodes.capacity[CPU, m])
    held = _held(view, m)
    running = _running(held, jobs)
    busy = {unit for _, _, unit in running if unit.startswith("cpu")}
    idle = [name for name in (f"cpu{i}" for i in range(cores)) if name not in busy]
    # Cores held by whole jobs have no names: they are taken from the end.
    unnamed = math.ceil(sum(a.demand.cpu_cores for _, a in held if not a.cpu_unit))
    idle = idle[: max(0, min(len(idle), cores - unnamed))]
    guests = {(running.id, g) for running, a in held if a.cpu_unit for g in a.gpu_indices}
    units = [_unit(view, m, gpu, guests) for gpu in view.nodes.records[m].gpus]
    gpus = {unit.index: unit for unit in units if unit is not None}
    _add_running(view, m, running, metrics, gpus)
    return NodeUnits(cores, idle, [gpus[g] for g in sorted(gpus)])


def _unit(view: ClusterView, m: int, gpu: Gpu, guests: set[tuple[JobId, int]]) -> GpuUnit | None:
    """None for a GPU that a whole job has to itself. `guests` are the pipelines with subtasks there."""
    tenants = view.usage.tenants(m, gpu.index)
    whole = [t for t in tenants if (t.job_id, gpu.index) not in guests]
    if not all(t.is_sharing for t in whole):
        return None
    util = gpu.util if gpu.util > 0 else 0.0  # NaN without a report
    memory = gpu.memory_util if gpu.memory_util > 0 else 0.0
    free_gib = min(gpu.memory_gib * (1.0 - memory), float(view.usage.gpu_memory_free[m, gpu.index]))
    return GpuUnit(
        gpu.index,
        util,
        memory,
        view.nodes.records[m].max_jobs_per_gpu or PIPELINES_PER_GPU,
        (util, memory),
        jobs={t.job_id for t in tenants},
        free_gib=free_gib if gpu.memory_gib > 0 else math.inf,
        shared=sum((t.fraction for t in whole), 0.0) if math.isnan(gpu.util) else 0.0,
        most_slowdown=min((t.max_slowdown for t in tenants if t.is_sharing), default=math.inf),
    )


def _add_running(
    view: ClusterView, m: int, running: Sequence[_Running], metrics: SubtaskMetrics, gpus: dict[int, GpuUnit]
) -> None:
    """Running subtasks on their GPUs. Telemetry already counts them; if it is missing, their own metrics do."""
    silent = {g.index for g in view.nodes.records[m].gpus if math.isnan(g.util)}
    for job_id, subtask, unit in running:
        gpu = gpus.get(int(unit[3:])) if unit.startswith("gpu") and unit[3:].isdigit() else None
        if gpu is None:
            continue
        util, memory, free_gib = gpu.util, gpu.memory_util, gpu.free_gib
        gpu.take(job_id, gpu_vector(subtask, metrics.on(gpu.index)), metrics.of(subtask).get(GPU_MEMORY_GIB, 0.0), 0.0)
        if gpu.index not in silent:
            gpu.util, gpu.memory_util, gpu.free_gib = util, memory, free_gib


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
    node, known = view.nodes.records[m].id, view.jobs
    return [
        (running, assignment)
        for job_id in view.usage.jobs_on(m)
        if (running := known.get(job_id)) is not None
        for assignment in running.assignments
        if (assignment.cpu_unit or assignment.demand.cpu_cores) and assignment.node == node
    ]
