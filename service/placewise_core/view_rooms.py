"""Where on the arrays of a view a task would fit. Only reads and counts; what is taken is view.py's affair."""

import math

import numpy as np

from placewise_core.job import GpuSharing, TaskGroup
from placewise_core.view_arrays import GPU_MEMORY, GPUS, BoolArray, FloatArray, IntArray, Need, NodeArrays

_KEPT_ROOMS = 64  # demands whose rooms are kept: few, as each is as long as the cluster
_KEPT_NEEDS = 4096  # as view_arrays keeps demands
_COUNTED_SINGLY = 3  # changed nodes up to which counting one by one is faster than all at once, on few nodes


class RoomArrays(NodeArrays):
    """The arrays, and which nodes and GPUs have room for a task."""

    def feasible(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, usable: BoolArray) -> BoolArray:
        """(M,) nodes with room for one task of `group`. A shared GPU's slowdown limits are not looked at here."""
        if self.is_plain(demand, group, sharing):
            mask = self.plain_feasible(demand)
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
        if self.is_plain(demand, group, sharing):
            return self.plain_feasible_on(m, demand)
        rows = demand > 0
        rows[GPUS] = False  # counted per GPU, not in the pool: a shared one may be promised more than once
        if (self.free[rows, m] < demand[rows]).any():
            return False
        return bool(self._gpu_feasible(demand, group, sharing, slice(m, m + 1))[0])

    def free_gpus(self) -> IntArray:
        """(M,) GPUs that serve no job at all."""
        return self._free_gpus

    def is_plain(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True where counting amounts and free GPUs says all about the room for a task: `plain_rooms` is then right."""
        return bool(demand[GPUS] == 0) or self.wants_plain_gpus(demand, group, sharing)

    def plain_feasible(self, demand: FloatArray) -> BoolArray:
        """(M,) nodes with room for one task of a plain demand, usable or not."""
        return np.asarray(np.logical_and.reduce(self.plain_free >= self._need(demand).least, axis=0))

    def plain_feasible_on(self, m: int, demand: FloatArray) -> bool:
        """`plain_feasible` for the one node m."""
        free: list[float] = self.plain_free[:, m].tolist()
        for row, amount in self._need(demand).pairs:  # noqa: SIM110 - a generator costs more
            if free[row] < amount:
                return False
        return True

    def _need(self, demand: FloatArray) -> Need:
        key = demand.tobytes()
        found = self._needs.get(key)
        if found is None:
            if len(self._needs) >= _KEPT_NEEDS:
                self._needs.clear()
            amounts = self.amounts(demand)
            rows = np.flatnonzero(amounts)
            least = np.where(amounts > 0, amounts, -np.inf)
            pairs = tuple(zip(rows.tolist(), amounts[rows].tolist(), strict=True))
            found = self._needs[key] = Need(rows, amounts[rows, None], least[:, None], pairs)
        return found

    def plain_rooms(self, demand: FloatArray) -> FloatArray:
        """(M,) whole number of tasks of a plain demand that each node has room for at once; inf for one that asks for
        nothing. Do not write: it is kept, and only nodes that changed since are counted again."""
        key = demand.tobytes()
        kept = self._rooms.get(key)
        if kept is None:
            if len(self._rooms) >= _KEPT_ROOMS:
                self._rooms.clear()
            rooms = self._count_rooms(demand)
        else:
            rooms, stamp = kept
            if stamp == self.usage_stamp:
                return rooms
            changed = (self.node_stamp > stamp).nonzero()[0].tolist()
            if len(changed) <= _COUNTED_SINGLY + self.size // 100:
                for m in changed:
                    rooms[m] = self.plain_rooms_on(m, demand)
            else:
                rooms = self._count_rooms(demand)
        self._rooms[key] = (rooms, self.usage_stamp)
        return rooms

    def _count_rooms(self, demand: FloatArray) -> FloatArray:
        return self._rooms_in(self.plain_free, demand)

    def plain_rooms_beside(self, demand: FloatArray, promised: FloatArray) -> FloatArray:
        """`plain_rooms` where so much, (R, M), is taken first; GPUs counted whole."""
        return self._rooms_in(self.plain_free - promised, demand)

    def amounts(self, demand: FloatArray) -> FloatArray:
        """(R,) what one task of a plain demand takes; GPUs counted whole."""
        amounts = demand.copy()
        amounts[GPUS] = math.ceil(demand[GPUS])
        return amounts

    def _rooms_in(self, free: FloatArray, demand: FloatArray) -> FloatArray:
        need = self._need(demand)
        rooms: FloatArray = np.minimum.reduce(free.take(need.rows, axis=0) // need.amounts, axis=0, initial=np.inf)
        np.maximum(rooms, 0.0, out=rooms)  # a host may have reported more than there is
        return rooms

    def plain_rooms_on(self, m: int, demand: FloatArray) -> float:
        """`plain_rooms` of the one node m, counted now."""
        free: list[float] = self.plain_free[:, m].tolist()
        rooms = min([free[row] // amount for row, amount in self._need(demand).pairs], default=math.inf)
        return rooms if rooms > 0.0 else 0.0

    def first_free_gpus(self, m: int, count: int) -> tuple[int, ...]:
        """The `count` lowest indices of GPUs of node m that serve no job; fewer if there are fewer."""
        return tuple(self._idle_gpus[m][:count])

    def wants_plain_gpus(self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing) -> bool:
        """True for whole exclusive GPUs where every GPU there is has the model and the memory: the common case,
        answered by counting."""
        if group.gpu_model or may_share(demand, sharing):
            return False
        memory = float(demand[GPU_MEMORY])
        return memory == 0 or memory <= self._least_gpu_memory * max(1.0, float(demand[GPUS]))

    def gpu_open(
        self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, rows: slice = slice(None)
    ) -> tuple[BoolArray, BoolArray]:
        """Two (M, G) masks: GPUs free for a task of this group, and GPUs in use that it might share."""
        fits = self.gpu_exists[rows]
        if group.gpu_model:
            fits = fits & (self.gpu_model[rows] == self._gpu_model_ids.get(group.gpu_model, -1))
        memory = demand[GPU_MEMORY] / max(1.0, float(np.ceil(demand[GPUS])))
        if memory > 0:
            fits = fits & (self.gpu_memory_free[rows] >= memory)
        empty = fits & (self.gpu_tenant_count[rows] == 0)
        if not may_share(demand, sharing):
            return empty, np.zeros_like(empty)
        shared = fits & (self.gpu_tenant_count[rows] > 0) & ~self.gpu_is_exclusive[rows]
        shared &= self.gpu_tenant_count[rows] < self.max_jobs_per_gpu[rows][:, None]
        if demand[GPUS] < 1:
            shared &= self.gpu_fraction_free[rows] >= demand[GPUS]
        return empty, shared

    def _gpu_feasible(
        self, demand: FloatArray, group: TaskGroup, sharing: GpuSharing, rows: slice = slice(None)
    ) -> BoolArray:
        need = int(np.ceil(demand[GPUS]))
        if self.wants_plain_gpus(demand, group, sharing):
            return np.asarray(self._free_gpus[rows] >= need)
        empty, shared = self.gpu_open(demand, group, sharing, rows)
        return np.asarray((empty | shared).sum(axis=1) >= need)


def may_share(demand: FloatArray, sharing: GpuSharing) -> bool:
    """True for a fraction of a GPU, and for whole GPUs of a job that allows sharing."""
    return bool(0 < demand[GPUS] < 1) or (sharing.allowed and demand[GPUS] >= 1)
