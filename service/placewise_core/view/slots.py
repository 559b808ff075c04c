"""Slots: where a task would fit, and how often. Counts on the arrays of Nodes and Usage, and writes neither."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.domain.job import GpuSharing, TaskGroup
from placewise_core.view.nodes import GPU_MEMORY, GPUS, Nodes
from placewise_core.view.usage import GpuUsage, Usage

_KEPT_SLOTS = 64  # demands whose slots are kept: few, as each is as long as the cluster
_COUNTED_SINGLY = 3  # changed nodes up to which counting one by one is faster than all at once, on few nodes

Counts = TypeVar("Counts", int, IntArray)


class Slots:
    """Which nodes and GPUs have room for a task."""

    def __init__(self, nodes: Nodes, usage: Usage) -> None:
        self._nodes, self._usage = nodes, usage
        # By demand: slots, and the usage's stamp at which they were counted.
        self._kept: Bounded[bytes, tuple[FloatArray, int]] = Bounded(_KEPT_SLOTS)
        self._counted_ahead = -1  # the usage's stamp when slots were last counted ahead

    def feasible(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, usable: BoolArray) -> BoolArray:
        """(M,) nodes with room for one task of `group`. Slowdown limits on shared GPUs are not checked here."""
        if self.is_countable(demand, group, sharing):
            mask = self.countable_feasible(demand)
            mask &= usable
            return mask if not group.node_selector else mask & self._nodes.selected(group)
        mask = usable & self._gpu_feasible(demand, group, sharing)
        for row, amount in enumerate(demand.tolist()):
            if amount and row != GPUS:
                mask &= self._usage.free[row] >= amount
        if group.node_selector:
            mask &= self._nodes.selected(group)
        return mask

    def feasible_on(self, m: int, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """`feasible` for node m alone, without usability and labels: a cheap check after a claim."""
        if self.is_countable(demand, group, sharing):
            return self._countable_feasible_on(m, demand)
        rows = demand > 0
        rows[GPUS] = False  # counted per GPU, not in the pool: a shared one may be promised more than once
        if (self._usage.free[rows, m] < demand[rows]).any():
            return False
        return bool(self._gpu_feasible(demand, group, sharing, slice(m, m + 1))[0])

    def is_countable(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True if counting amounts and free GPUs is enough to know the slots of each node: `countable_slots`."""
        return demand.item(GPUS) == 0.0 or self.wants_whole_gpus(demand, group, sharing)

    def countable_feasible(self, demand: FloatArray) -> BoolArray:
        """(M,) nodes with room for one task of a demand that `is_countable`, also those that are not usable."""
        slots = self._kept_slots(demand)
        if slots is not None:
            return slots >= 1.0
        least = self._nodes.need(demand).least
        return np.asarray(np.logical_and.reduce(self._usage.countable_free >= least, axis=0))

    def _countable_feasible_on(self, m: int, demand: FloatArray) -> bool:
        free: list[float] = self._usage.countable_free[:, m].tolist()
        for row, amount in self._nodes.need(demand).pairs:  # noqa: SIM110 - a generator costs more
            if free[row] < amount:
                return False
        return True

    def countable_slots(self, demand: FloatArray) -> FloatArray:
        """(M,) whole number of tasks of a countable demand that fit on each node at once; inf for one that asks for
        nothing. Do not write: it is kept, and only nodes that changed since are counted again."""
        slots = self._kept_slots(demand)
        if slots is None:
            slots = self.count_slots(self._usage.countable_free, demand)
            self._kept[demand.tobytes()] = (slots, self._usage.stamp)
        return slots

    def count_ahead(self) -> None:
        """Counts the slots of the last demand again, if they are kept: most requests ask for the same."""
        if self._counted_ahead != self._usage.stamp:  # several policies ask for one view
            self._counted_ahead = self._usage.stamp
            demand = self._nodes.last_demand
            if demand is not None:
                self._kept_slots(demand)

    def _kept_slots(self, demand: FloatArray) -> FloatArray | None:
        """`countable_slots` if they are kept and only few nodes have changed since; else None."""
        key = demand.tobytes()
        kept = self._kept.get(key)
        if kept is None:
            return None
        slots, stamp = kept
        usage = self._usage
        if stamp != usage.stamp:
            changed = usage.touched_since(stamp)
            if len(changed) > _COUNTED_SINGLY + self._nodes.size // 100:
                return None
            for m in changed:
                slots[m] = self.countable_slots_on(m, demand)
            self._kept[key] = (slots, usage.stamp)
        return slots

    def count_slots(self, free: FloatArray, demand: FloatArray, open_gpus: IntArray | None = None) -> FloatArray:
        """(N,) whole number of tasks that fit at once on nodes with so much free (R, N), GPUs counted whole; inf for a
        task that asks for nothing. `open_gpus` (N,), with the memory that it needs, count in place of the free GPUs."""
        need = self._nodes.need(demand if open_gpus is None else _beside_gpus(demand))
        slots: FloatArray = np.minimum.reduce(free.take(need.rows, axis=0) // need.amounts, axis=0, initial=np.inf)
        np.maximum(slots, 0.0, out=slots)  # a host may have reported more than there is
        if open_gpus is not None and (gpus := math.ceil(demand[GPUS])):
            np.minimum(slots, tasks_on_gpus(open_gpus, gpus), out=slots)
        return slots

    def countable_slots_on(self, m: int, demand: FloatArray) -> float:
        """`countable_slots` of the one node m, counted now."""
        free: list[float] = self._usage.countable_free[:, m].tolist()
        return whole_tasks(free, self._nodes.need(demand).pairs)

    def wants_whole_gpus(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True for whole exclusive GPUs where every GPU there is has the model and the memory: the common case,
        answered by counting."""
        if group.gpu_model or may_share(demand, sharing):
            return False
        memory = demand.item(GPU_MEMORY)
        return memory == 0.0 or memory <= self._nodes.least_gpu_memory * max(1.0, demand.item(GPUS))

    def gpu_open(
        self,
        demand: FloatArray,
        group: TaskGroup,
        sharing: GpuSharing,
        rows: slice = slice(None),
        usage: GpuUsage | None = None,
    ) -> tuple[BoolArray, BoolArray]:
        """Two (M, G) masks: GPUs free for a task of this group, and GPUs in use that it might share. `usage`
        replaces the view's."""
        now, nodes = usage or self._usage.of_gpus(rows), self._nodes
        fits = nodes.gpu_exists[rows]
        if group.gpu_model:
            fits = fits & (nodes.gpu_model[rows] == nodes.gpu_model_id(group.gpu_model))
        memory = demand[GPU_MEMORY] / max(1.0, float(np.ceil(demand[GPUS])))
        if memory > 0:
            fits = fits & (now.memory_free >= memory)
        empty = fits & (now.tenant_count == 0)
        if not may_share(demand, sharing):
            return empty, np.zeros_like(empty)
        shared = fits & (now.tenant_count > 0) & ~now.is_exclusive
        shared &= now.tenant_count < nodes.max_jobs_per_gpu[rows][:, None]
        if demand[GPUS] < 1:
            shared &= now.fraction_free >= demand[GPUS]
        return empty, shared

    def _gpu_feasible(
        self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, rows: slice = slice(None)
    ) -> BoolArray:
        need = int(np.ceil(demand[GPUS]))
        if self.wants_whole_gpus(demand, group, sharing):
            return np.asarray(self._usage.free_gpus[rows] >= need)
        empty, shared = self.gpu_open(demand, group, sharing, rows)
        return np.asarray((empty | shared).sum(axis=1) >= need)


def tasks_on_gpus(open_gpus: Counts, gpus: int) -> Counts:
    """Tasks that fit at once on so many open GPUs, each task on `gpus` of them, at least one: (M,) of M nodes, or a
    number of one."""
    return open_gpus // gpus


def whole_tasks(free: Sequence[float], amounts: Iterable[tuple[int, float]]) -> float:
    """Tasks that fit at once into `free` (R,), each taking the (row, amount) pairs; inf if it takes nothing."""
    return max(0.0, min([free[row] // amount for row, amount in amounts], default=math.inf))


def _beside_gpus(demand: FloatArray) -> FloatArray:
    """(R,) the demand without its GPUs and their memory."""
    beside = demand.copy()
    beside[[GPUS, GPU_MEMORY]] = 0.0
    return beside


def may_share(demand: FloatArray, sharing: GpuSharing) -> bool:
    """True for a fraction of a GPU, and for whole GPUs of a job that allows sharing."""
    gpus: float = demand.item(GPUS)
    return 0.0 < gpus < 1.0 or (sharing.allowed and gpus >= 1.0)
