"""How many tasks of a group each node has room for. Counts only; never claims."""

import math

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
) -> FloatArray:
    """(M,) whole number of tasks of `group` that fit at once, by resources, GPUs, labels and max_per_node; at most
    `group.count`, 0 outside `usable`.

    `promised` (R, M): amounts that other tasks are to take first; GPUs counted whole.
    Slowdown limits of shared GPUs are not looked at, and a GPU counts for one task of the job, as two never share one.
    """
    most = min(group.count, group.max_per_node) if group.max_per_node else group.count
    if view.is_plain(demand, group, sharing):
        found = view.plain_rooms(demand) if promised is None else view.count_slots(view.plain_free - promised, demand)
        rooms = np.minimum(found, float(most))
    else:
        rooms = _rooms(view, demand, group, sharing, most, promised)
    rooms *= usable if not group.node_selector else usable & view.selected(group)
    return rooms


def _rooms(
    view: ClusterView,
    demand: FloatArray,
    group: TaskGroup,
    sharing: GpuSharing,
    most: int,
    promised: FloatArray | None,
) -> FloatArray:
    rooms = np.full(view.size, float(most))
    for row, wanted in enumerate(demand.tolist()):
        if not wanted:
            continue
        amount: FloatArray | IntArray = view.free[row] if row != GPUS else gpu_slots(view, demand, group, sharing)
        if promised is not None:
            amount = amount - promised[row]
        np.minimum(rooms, amount // (wanted if row != GPUS else math.ceil(wanted)), out=rooms)
    np.maximum(rooms, 0.0, out=rooms)
    return rooms


def per_task(demand: FloatArray, row: int) -> float:
    """What one task takes of a resource; GPUs counted whole."""
    return float(demand[row]) if row != GPUS else float(np.ceil(demand[GPUS]))


def gpu_slots(view: ClusterView, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> IntArray:
    """(M,) GPUs that can each serve one task of the group, or one GPU's part of it."""
    if view.wants_plain_gpus(demand, group, sharing):
        return view.free_gpus()
    empty, shared = view.gpu_open(demand, group, sharing)
    return np.asarray((empty | shared).sum(axis=1))
