"""The shortage of one task on each node, resource by resource. Looks at amounts only, not at a node's state."""

from collections.abc import Iterator

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.decision import Reason
from placewise_core.gang.offer import Offer
from placewise_core.view.slots import may_share
from placewise_core.view.view import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK

_REASONS = {
    CPU: Reason.INSUFFICIENT_CPU,
    MEMORY: Reason.INSUFFICIENT_MEMORY,
    GPU_MEMORY: Reason.INSUFFICIENT_GPU_MEMORY,
    NETWORK: Reason.INSUFFICIENT_NETWORK,
}


@frozen
class Shortage:
    """`free` (M,) against `wanted` of one resource; `is_short` (M,): too little for one task."""

    reason: Reason
    resource: str
    wanted: float
    free: FloatArray
    is_short: BoolArray

    def least(self, nodes: BoolArray) -> float:
        """Least that is missing on any of the nodes that are short; 0 if none is."""
        short = self.is_short & nodes
        return float((self.wanted - self.free[short]).min()) if short.any() else 0.0


def shortages(task: Offer) -> list[Shortage]:
    """One entry per resource the task asks for, on what earlier tasks of the gang leave."""
    found = []
    for row in np.flatnonzero(task.demand).tolist():
        if row != GPUS:
            free = task.free[row, 0]
            reason = _REASONS.get(row, Reason.INSUFFICIENT_EXTENDED)
            found.append(_shortage(reason, task.view.nodes.columns[row], float(task.demand[row]), free))
    if task.demand[GPUS] > 0:
        found.extend(_gpu_shortages(task))
    return found


def _shortage(reason: Reason, resource: str, wanted: float, free: FloatArray) -> Shortage:
    return Shortage(reason, resource, wanted, free, free < wanted)


def _gpu_shortages(task: Offer) -> Iterator[Shortage]:
    """GPUs, and memory on enough of them. A node whose GPUs are of another model is judged by all its GPUs."""
    view, demand, usage = task.view, task.demand, task.gpu_usage()
    empty = view.nodes.gpu_exists & (usage.tenant_count == 0)
    shareable = np.zeros_like(empty)
    if may_share(demand, task.job.gpu_sharing):
        shareable = view.nodes.gpu_exists & ~empty & ~usage.is_exclusive
        shareable &= usage.tenant_count < view.nodes.max_jobs_per_gpu[:, None]
    if task.group.gpu_model:
        of_model = view.nodes.gpu_model == view.nodes.gpu_model_id(task.group.gpu_model)
        of_model |= ~of_model.any(axis=1)[:, None]
        empty, shareable = empty & of_model, shareable & of_model
    if demand[GPUS] < 1:
        best = np.where(empty, 1.0, np.where(shareable, usage.fraction_free, 0.0)).max(axis=1, initial=0.0)
        yield _shortage(Reason.INSUFFICIENT_GPU, "gpus", float(demand[GPUS]), best)
        is_open = empty | (shareable & (usage.fraction_free >= demand[GPUS]))
    else:
        is_open = empty | shareable
        free = is_open.sum(axis=1).astype(np.float64)
        yield _shortage(Reason.INSUFFICIENT_GPU, "gpus", float(np.ceil(demand[GPUS])), free)
    need = int(np.ceil(demand[GPUS]))
    memory = float(demand[GPU_MEMORY]) / need
    if memory > 0:
        # The need-th largest free memory decides; a node with too few open GPUs is short of GPUs, not of memory.
        amounts = np.sort(np.where(is_open, usage.memory_free, -1.0), axis=1)[:, ::-1]
        nth = amounts[:, need - 1] if amounts.shape[1] >= need else np.full(view.nodes.size, -1.0)
        yield Shortage(
            Reason.INSUFFICIENT_GPU_MEMORY, "gpu_memory_gib", memory, nth, np.asarray((nth >= 0) & (nth < memory))
        )
