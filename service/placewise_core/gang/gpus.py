"""Which GPUs of a node a task gets. Respects exclusivity, fractions, memory and every tenant's slowdown limit."""

import math
from collections.abc import Mapping

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.gang.offer import NOTHING_LEFT, NodeLeft
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.slots import may_share
from placewise_core.view.usage import CoTenants
from placewise_core.view.view import GPUS, ClusterView

_CO_TENANTS_SPAN = 2**32  # GPU model and co-tenants of a GPU in one number


def pick_gpus(
    view: ClusterView,
    m: int,
    job: Job,
    group: TaskGroup,
    demand: FloatArray,
    interference: GpuInterference,
    left: NodeLeft | None = None,
) -> tuple[int, ...] | None:
    """GPU indices for one task on node m, or None if there are too few or the slowdown limits leave too few. `left`:
    the node as earlier tasks of the gang leave it.

    Fractions go to the fullest GPU that takes them (best fit: whole GPUs stay whole); whole GPUs to empty ones first,
    and beside others only if the job allows it.
    """
    need = math.ceil(demand[GPUS])
    if need == 0:
        return ()
    if view.slots.wants_whole_gpus(demand, group, job.gpu_sharing):
        idle = tuple((view.usage.idle_gpus(m) if left is None else left.idle)[:need])
        return idle if len(idle) == need else None
    own = left.taken if left is not None else ()  # two tasks of one job on one GPU would wait for each other
    empty, shared = view.slots.gpu_open(
        demand, group, job.gpu_sharing, slice(m, m + 1), None if left is None else left.usage
    )
    free = np.flatnonzero(empty[0]).tolist()
    beside = [
        g for g in np.flatnonzero(shared[0]).tolist() if g not in own and is_tolerated(view, m, g, job, interference)
    ]
    if demand[GPUS] < 1:
        beside.sort(key=lambda g: (view.usage.gpu_fraction_free[m, g], g))
        chosen = [*beside, *free]
    else:
        chosen = [*free, *beside]
    return tuple(sorted(chosen[:need])) if len(chosen) >= need else None


def takers(
    view: ClusterView,
    mask: BoolArray,
    job: Job,
    group: TaskGroup,
    demand: FloatArray,
    interference: GpuInterference,
    left: Mapping[int, NodeLeft] = NOTHING_LEFT,
) -> BoolArray:
    """(M,) the nodes of `mask` that really take one task, slowdown limits included.

    Asks once per combination of tenants and GPU model, not once per GPU. Nodes that have tasks of the job already
    (`left`: those of the gang) are looked at one by one.
    """
    if not may_share(demand, job.gpu_sharing):
        return mask
    open_gpus = tolerant_gpus(view, mask, job, group, demand, interference)
    found: BoolArray = mask & (open_gpus >= np.ceil(demand[GPUS]))
    known = view.jobs.get(job.id)
    for m in {
        *left,
        *(view.nodes.index[a.node] for a in (known.assignments if known else ()) if a.node in view.nodes.index),
    }:
        if mask[m]:
            found[m] = pick_gpus(view, m, job, group, demand, interference, left.get(m)) is not None
    return found


def tolerant_gpus(
    view: ClusterView,
    mask: BoolArray,
    job: Job,
    group: TaskGroup,
    demand: FloatArray,
    interference: GpuInterference,
) -> IntArray:
    """(M,) GPUs of the nodes of `mask` that can each serve a task of the group, slowdown limits included, as long as
    the job has no task there."""
    empty, shared = view.slots.gpu_open(demand, group, job.gpu_sharing)
    shared &= mask[:, None]
    kinds = view.nodes.gpu_model.astype(np.int64) * _CO_TENANTS_SPAN + view.usage.gpu_co_tenants
    asked, where = np.unique(kinds[shared], return_inverse=True)
    co_tenants, names = view.usage.co_tenants(), view.nodes.gpu_model_names()
    answers = [
        _are_tolerated(co_tenants[kind % _CO_TENANTS_SPAN], names[kind // _CO_TENANTS_SPAN], job, interference)
        for kind in asked.tolist()
    ]
    shared[shared] = np.array(answers, dtype=np.bool_)[where]
    return np.asarray((empty | shared).sum(axis=1))


def is_tolerated(view: ClusterView, m: int, g: int, job: Job, interference: GpuInterference) -> bool:
    """True if the job and every tenant of GPU g stay within their own slowdown limits together."""
    tenants = view.usage.tenants(m, g)
    if any(t.job_id == job.id for t in tenants):
        return False  # two tasks of one job on one GPU would wait for each other
    co_tenants = tuple((t.model, t.max_slowdown) for t in tenants)
    return _are_tolerated(co_tenants, gpu_model_of(view, m, g), job, interference)


def _are_tolerated(co_tenants: CoTenants, gpu_model: str, job: Job, interference: GpuInterference) -> bool:
    models = [model for model, _ in co_tenants]
    if not _within(interference.careful_speed(job.model, models, gpu_model), job.gpu_sharing.max_slowdown):
        return False
    for i, (model, limit) in enumerate(co_tenants):
        others = [job.model, *models[:i], *models[i + 1 :]]
        if not _within(interference.careful_speed(model, others, gpu_model), limit):
            return False
    return True


def gpu_model_of(view: ClusterView, m: int, g: int) -> str:
    """Model name of GPU g of node m; "" if there is no such GPU."""
    return next((gpu.model for gpu in view.nodes.records[m].gpus if gpu.index == g), "")


def _within(relative_speed: float, max_slowdown: float) -> bool:
    return relative_speed > 0 and 1.0 / relative_speed <= max_slowdown + 1e-9
