"""Which GPUs of a node a task gets. Respects exclusivity, fractions, memory and every tenant's slowdown limit."""

import numpy as np

from placewise_core.job import Job, TaskGroup
from placewise_core.speed.interference import GpuInterference
from placewise_core.view import GPUS, ClusterView, FloatArray


def pick_gpus(
    view: ClusterView, m: int, job: Job, group: TaskGroup, demand: FloatArray, interference: GpuInterference
) -> tuple[int, ...] | None:
    """GPU indices for one task on node m, or None if the slowdown limits leave too few.

    Fractions go to the fullest GPU that takes them (best fit: whole GPUs stay whole); whole GPUs to empty ones first,
    and beside others only where the job allows it.
    """
    need = int(np.ceil(demand[GPUS]))
    if need == 0:
        return ()
    empty, shared = view.gpu_open(demand, group, job.gpu_sharing, slice(m, m + 1))
    free = np.flatnonzero(empty[0])
    beside = [int(g) for g in np.flatnonzero(shared[0]) if is_tolerated(view, m, int(g), job, interference)]
    if demand[GPUS] < 1:
        beside.sort(key=lambda g: (view.gpu_fraction_free[m, g], g))
        chosen = [*beside, *free]
    else:
        chosen = [*free, *beside]
    return tuple(int(g) for g in sorted(chosen[:need])) if len(chosen) >= need else None


def is_tolerated(view: ClusterView, m: int, g: int, job: Job, interference: GpuInterference) -> bool:
    """True if the job and every tenant of GPU g stay within their own slowdown limits together."""
    tenants = view.tenants(m, g)
    if any(t.job_id == job.id for t in tenants):
        return False  # two tasks of one job on one GPU would wait for each other
    gpu_model = _gpu_model(view, m, g)
    models = [t.model for t in tenants]
    if not _within(interference.relative_speed(job.model, models, gpu_model), job.gpu_sharing.max_slowdown):
        return False
    for i, tenant in enumerate(tenants):
        others = [job.model, *models[:i], *models[i + 1 :]]
        limit = view.jobs[tenant.job_id].job.gpu_sharing.max_slowdown if tenant.job_id in view.jobs else 2.0
        if not _within(interference.relative_speed(tenant.model, others, gpu_model), limit):
            return False
    return True


def _within(relative_speed: float, max_slowdown: float) -> bool:
    return relative_speed > 0 and 1.0 / relative_speed <= max_slowdown + 1e-9


def _gpu_model(view: ClusterView, m: int, g: int) -> str:
    return next((gpu.model for gpu in view.nodes[m].gpus if gpu.index == g), "")
