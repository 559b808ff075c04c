"""How many tasks of a group each node has room for. Counts only; never claims."""

import numpy as np

from placewise_core.job import GpuSharing, TaskGroup
from placewise_core.view import GPUS, BoolArray, ClusterView, FloatArray, IntArray


def task_capacity(
    view: ClusterView,
    demand: FloatArray,
    group: TaskGroup,
    sharing: GpuSharing,
    usable: BoolArray,
    promised: FloatArray | None = None,
) -> IntArray:
    """(M,) tasks of `group` that fit at once, by resources, GPUs and max_per_node; at most `group.count`.

    `promised` (R, M) is what other tasks are to take first; its GPU row counts GPUs. Slowdown limits of shared GPUs are
    not looked at, and a GPU counts for one task of the job, as two of them never share one.
    """
    most = min(group.count, group.max_per_node) if group.max_per_node else group.count
    rooms = np.where(view.feasible(demand, group, sharing, usable), float(most), 0.0)
    for row in np.flatnonzero(demand).tolist():
        amount = view.free[row] if row != GPUS else gpu_slots(view, demand, group, sharing)
        if promised is not None:
            amount = amount - promised[row]
        rooms = np.minimum(rooms, np.floor(amount / (demand[row] if row != GPUS else np.ceil(demand[GPUS]))))
    return np.maximum(rooms, 0.0).astype(np.int64)


def gpu_slots(view: ClusterView, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> IntArray:
    """(M,) GPUs that can each serve one task of the group, or one GPU's part of it."""
    if view.wants_plain_gpus(demand, group, sharing):
        return view.free_gpus()
    empty, shared = view.gpu_open(demand, group, sharing)
    return np.asarray((empty | shared).sum(axis=1))
