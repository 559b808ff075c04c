"""Counts where a task would fit, on the arrays of a view. Reads only; view.py takes and gives back."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.domain.job import GpuSharing, TaskGroup
from placewise_core.view.nodes import GPU_MEMORY, GPUS, Need, NodeArrays

_COUNTED_SINGLY = 3  # changed nodes up to which counting one by one is faster than all at once, on few nodes


class GpuUsage(NamedTuple):
    """Use of the GPUs of N nodes, (N, G) each, as the arrays of a view of the same names."""

    tenant_count: IntArray
    is_exclusive: BoolArray
    fraction_free: FloatArray
    memory_free: FloatArray

    def copy(self) -> "GpuUsage":
        return GpuUsage(
            self.tenant_count.copy(), self.is_exclusive.copy(), self.fraction_free.copy(), self.memory_free.copy()
        )


class SlotArrays(NodeArrays):
    """The arrays, and which nodes and GPUs have room for a task."""

    def feasible(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, usable: BoolArray) -> BoolArray:
        """(M,) nodes with room for one task of `group`. A shared GPU's slowdown limits are not looked at here."""
        if self.is_countable(demand, group, sharing):
            mask = self.countable_feasible(demand)
            mask &= usable
            return mask if not group.node_selector else mask & self.selected(group)
        mask = usable & self._gpu_feasible(demand, group, sharing)
        for row, amount in enumerate(demand.tolist()):
            if amount and row != GPUS:
                mask &= self.free[row] >= amount
        if group.node_selector:
            mask &= self.selected(group)
        return mask

    def selected(self, group: TaskGroup) -> BoolArray:
        """(M,) nodes that carry the labels the group asks for."""
        wanted = group.node_selector.items()
        return np.fromiter((wanted <= node.labels.items() for node in self.nodes), dtype=np.bool_, count=self.size)

    def feasible_on(self, m: int, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """`feasible` for the one node m, usability and labels aside: cheap, for after a claim."""
        if self.is_countable(demand, group, sharing):
            return self.countable_feasible_on(m, demand)
        rows = demand > 0
        rows[GPUS] = False  # counted per GPU, not in the pool: a shared one may be promised more than once
        if (self.free[rows, m] < demand[rows]).any():
            return False
        return bool(self._gpu_feasible(demand, group, sharing, slice(m, m + 1))[0])

    def free_gpus(self) -> IntArray:
        """(M,) GPUs that serve no job at all."""
        return self._free_gpus

    def is_countable(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True if counting amounts and free GPUs is enough to know the slots of each node: `countable_slots`."""
        return demand.item(GPUS) == 0.0 or self.wants_whole_gpus(demand, group, sharing)

    def countable_feasible(self, demand: FloatArray) -> BoolArray:
        """(M,) nodes with room for one task of a countable demand, usable or not."""
        slots = self._kept_slots(demand)
        if slots is not None:
            return slots >= 1.0
        return np.asarray(np.logical_and.reduce(self.countable_free >= self.need(demand).least, axis=0))

    def countable_feasible_on(self, m: int, demand: FloatArray) -> bool:
        """`countable_feasible` for the one node m."""
        free: list[float] = self.countable_free[:, m].tolist()
        for row, amount in self.need(demand).pairs:  # noqa: SIM110 - a generator costs more
            if free[row] < amount:
                return False
        return True

    def need(self, demand: FloatArray) -> Need:
        """Amounts that one task of the demand takes, GPUs counted whole."""
        key = demand.tobytes()
        found = self._needs.get(key)
        if found is None:
            amounts = self.amounts(demand)
            rows = np.flatnonzero(amounts)
            least = np.where(amounts > 0, amounts, -np.inf)
            pairs = tuple(zip(rows.tolist(), amounts[rows].tolist(), strict=True))
            exact = tuple(zip(rows.tolist(), demand[rows].tolist(), strict=True))
            found = self._needs[key] = Need(rows, amounts[rows, None], least[:, None], pairs, exact)
        return found

    def countable_slots(self, demand: FloatArray) -> FloatArray:
        """(M,) whole number of tasks of a countable demand that fit on each node at once; inf for one that asks for
        nothing. Do not write: it is kept, and only nodes that changed since are counted again."""
        slots = self._kept_slots(demand)
        if slots is None:
            slots = self.count_slots(self.countable_free, demand)
            self._slots[demand.tobytes()] = (slots, self.usage_stamp)
        return slots

    def count_ahead(self) -> None:
        """Counts the slots of the last demand again, if they are kept: most requests ask for the same."""
        if self._counted_ahead != self.usage_stamp:  # several policies ask for one view
            self._counted_ahead = self.usage_stamp
            _, demand = self._last_demand
            if demand is not None:
                self._kept_slots(demand)

    def _kept_slots(self, demand: FloatArray) -> FloatArray | None:
        """`countable_slots` if they are kept and only few nodes have changed since; else None."""
        key = demand.tobytes()
        kept = self._slots.get(key)
        if kept is None:
            return None
        slots, stamp = kept
        if stamp != self.usage_stamp:
            changed = self.touched_since(stamp)
            if len(changed) > _COUNTED_SINGLY + self.size // 100:
                return None
            for m in changed:
                slots[m] = self.countable_slots_on(m, demand)
            self._slots[key] = (slots, self.usage_stamp)
        return slots

    def amounts(self, demand: FloatArray) -> FloatArray:
        """(R,) amounts that one task of a countable demand takes, GPUs counted whole."""
        amounts = demand.copy()
        amounts[GPUS] = math.ceil(demand[GPUS])
        return amounts

    def count_slots(self, free: FloatArray, demand: FloatArray, open_gpus: IntArray | None = None) -> FloatArray:
        """(N,) whole number of tasks that fit at once on nodes with so much free (R, N), GPUs counted whole; inf for a
        task that asks for nothing. `open_gpus` (N,), with the memory that it needs, count in place of the free GPUs."""
        need = self.need(demand if open_gpus is None else _beside_gpus(demand))
        slots: FloatArray = np.minimum.reduce(free.take(need.rows, axis=0) // need.amounts, axis=0, initial=np.inf)
        np.maximum(slots, 0.0, out=slots)  # a host may have reported more than there is
        if open_gpus is not None and (gpus := math.ceil(demand[GPUS])):
            np.minimum(slots, open_gpus // gpus, out=slots)
        return slots

    def countable_slots_on(self, m: int, demand: FloatArray) -> float:
        """`countable_slots` of the one node m, counted now."""
        free: list[float] = self.countable_free[:, m].tolist()
        return whole_tasks(free, self.need(demand).pairs)

    def first_free_gpus(self, m: int, count: int) -> tuple[int, ...]:
        """The `count` lowest indices of GPUs of node m that serve no job; fewer if there are fewer."""
        return tuple(self._idle_gpus[m][:count])

    def wants_whole_gpus(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True for whole exclusive GPUs where every GPU there is has the model and the memory: the common case,
        answered by counting."""
        if group.gpu_model or may_share(demand, sharing):
            return False
        memory = demand.item(GPU_MEMORY)
        return memory == 0.0 or memory <= self._least_gpu_memory * max(1.0, demand.item(GPUS))

    def idle_gpus(self, m: int) -> list[int]:
        """GPUs of node m that serve no job, ascending. Do not write."""
        return self._idle_gpus[m]

    def gpu_usage(self, rows: slice = slice(None)) -> GpuUsage:
        """Of the GPUs of these nodes. Do not write."""
        return GpuUsage(
            self.gpu_tenant_count[rows],
            self.gpu_is_exclusive[rows],
            self.gpu_fraction_free[rows],
            self.gpu_memory_free[rows],
        )

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
        now = usage or self.gpu_usage(rows)
        fits = self.gpu_exists[rows]
        if group.gpu_model:
            fits = fits & (self.gpu_model[rows] == self._gpu_model_ids.get(group.gpu_model, -1))
        memory = demand[GPU_MEMORY] / max(1.0, float(np.ceil(demand[GPUS])))
        if memory > 0:
            fits = fits & (now.memory_free >= memory)
        empty = fits & (now.tenant_count == 0)
        if not may_share(demand, sharing):
            return empty, np.zeros_like(empty)
        shared = fits & (now.tenant_count > 0) & ~now.is_exclusive
        shared &= now.tenant_count < self.max_jobs_per_gpu[rows][:, None]
        if demand[GPUS] < 1:
            shared &= now.fraction_free >= demand[GPUS]
        return empty, shared

    def _gpu_feasible(
        self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, rows: slice = slice(None)
    ) -> BoolArray:
        need = int(np.ceil(demand[GPUS]))
        if self.wants_whole_gpus(demand, group, sharing):
            return np.asarray(self._free_gpus[rows] >= need)
        empty, shared = self.gpu_open(demand, group, sharing, rows)
        return np.asarray((empty | shared).sum(axis=1) >= need)


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
