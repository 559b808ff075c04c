"""What the policy net reads of each candidate node before the next task of a gang (feature_tables.STEP_COLUMNS).

Tokens of nodes and jobs are encoded once per request (features.py); here is what changes from task to task: the gang so
far, what of it would still fit, and what is free. Changes nothing and decides nothing.
"""

import math
from collections import Counter

import numpy as np

from placewise_core.features import STEP_COLUMNS, STEP_FEATURES, Float32
from placewise_core.frozen import frozen
from placewise_core.job import Role, TaskGroup
from placewise_core.place.capacity import gpu_slots, per_task
from placewise_core.place.gang_builder import GangBuilder
from placewise_core.view import CPU, GPUS, MEMORY, NETWORK, BoolArray, FloatArray, IntArray

_AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
_SCALE = {column.name: column.scale for column in STEP_COLUMNS}
_HERE = {Role.WORKER: _AT["workers_here"], Role.PARAMETER_SERVER: _AT["servers_here"]}
_FIT = {Role.WORKER: _AT["workers_fit"], Role.PARAMETER_SERVER: _AT["servers_fit"]}
_GANG = slice(_AT["nodes_used"], _AT["servers_left"] + 1)
_IS_USED, _FITS_ALL, _IN_RACK = _AT["is_used_by_gang"], _AT["fits_all_left"], _AT["is_in_rack_of_gang"]
_TASKS_SCALE, _FEW_SCALE = _SCALE["workers_here"], _SCALE["workers_left"]
_USAGE = slice(_AT["free_cpu_share"], _AT["tasks"] + 1)
_GPU_SCALE, _LOAD_SCALE, _COUNT_SCALE = _SCALE["free_gpus"], _SCALE["load"], _SCALE["tasks"]


def encode_step(builder: GangBuilder) -> Float32:
    """(C, STEP_FEATURES) for the C candidate nodes of the builder, before its next task."""
    return StepTokens(builder).features


@frozen
class _Wanted:
    """One task of a group. `amounts`: (resource row, how much of it), GPUs counted whole; empty where no node has what
    it asks for. `is_plain`: its GPUs are counted, not looked at one by one."""

    group: TaskGroup
    amounts: tuple[tuple[int, float], ...]
    is_plain: bool


class StepTokens:
    """`features` (C, STEP_FEATURES), kept up task by task. Equal at any time to what `encode_step` gives."""

    def __init__(self, builder: GangBuilder) -> None:
        view, rows, at = builder.view, builder.rows, builder.at
        self._builder = builder
        self._wanted = {id(group): self._wants(group) for group in builder.job.groups}
        self._left = {role: builder.remaining_of(role) for role in _HERE}
        self._kinds_left = Counter(id(group) for group in builder.groups_left())
        self._nodes = {m for _, m in builder.placed}
        self._rooms: dict[Role, tuple[_Wanted, FloatArray]] = {}
        self._rack: IntArray = view.rack[at]
        self._free: FloatArray = view.free[:, at].copy()
        self._free[GPUS] = view.free_gpus()[at]
        self._inverse: FloatArray = view.inverse_capacity[:, at]
        self._gpus: FloatArray = np.maximum(view.gpu_exists[at].sum(axis=1), 1.0)
        self.features: Float32 = np.zeros((len(rows), STEP_FEATURES), dtype=np.float32)
        self._write_usage()
        for group, m in builder.placed:
            self._write_here(int(np.searchsorted(rows, m)), group)
        self._write_room()

    def update(self, c: int) -> None:
        """After the builder placed a task on candidate c: only that node has changed, and what is left of the gang."""
        view = self._builder.view
        group, m = self._builder.placed[-1]
        self._write_here(c, group)
        free: list[float] = view.free[:, m].tolist()
        inverse: list[float] = self._inverse[:, c].tolist()
        free[GPUS] = float(view.free_gpus()[m])
        self.features[c, _USAGE] = (
            free[CPU] * inverse[CPU],
            free[MEMORY] * inverse[MEMORY],
            free[NETWORK] * inverse[NETWORK],
            free[GPUS] * _GPU_SCALE,
            free[GPUS] / self._gpus[c],
            view.load()[m] * _LOAD_SCALE,
            view.task_count[m] * _COUNT_SCALE,
        )
        self._nodes.add(m)
        self._left[group.role] -= 1
        self._kinds_left[id(group)] -= 1
        if len(self._wanted) > 1:
            self._free[:, c] = free
            if not self._left[group.role]:
                self.features[:, _FIT[group.role]] = 0.0
        for wanted, rooms in self._rooms.values():
            if rooms[c]:  # a gang only takes: where there was no room there is none now
                rooms[c] = self._room_on(wanted, m, free)
        self._write_room()

    def _write_usage(self) -> None:
        view, at, out = self._builder.view, self._builder.at, self.features[:, _USAGE]
        for column, row in enumerate((CPU, MEMORY, NETWORK)):
            out[:, column] = self._free[row] * self._inverse[row]
        out[:, 3] = self._free[GPUS] * _GPU_SCALE
        out[:, 4] = self._free[GPUS] / self._gpus
        out[:, 5] = view.load()[at] * _LOAD_SCALE
        out[:, 6] = view.task_count[at] * _COUNT_SCALE

    def _write_here(self, c: int, group: TaskGroup) -> None:
        """One more task of the gang on candidate c."""
        self.features[c, _HERE[group.role]] += _TASKS_SCALE
        self.features[c, _IS_USED] = 1.0
        if self._rack[c] >= 0:
            self.features[self._rack == self._rack[c], _IN_RACK] = 1.0

    def _write_room(self) -> None:
        """What is left of the gang, and how much of it each node could still take."""
        out = self.features
        out[:, _GANG] = (_FEW_SCALE * len(self._nodes), *(_FEW_SCALE * count for count in self._left.values()))
        fits_all: BoolArray | None = None
        for role, count in self._left.items():
            if count:
                rooms = self._rooms_of(role)
                out[:, _FIT[role]] = np.minimum(rooms, count) * _FEW_SCALE
                fits = rooms >= count
                fits_all = fits if fits_all is None else fits_all & fits
        if fits_all is not None:
            out[:, _FITS_ALL] = fits_all & self._fits_together() if len(self._wanted) > 1 else fits_all

    def _fits_together(self) -> BoolArray:
        """(C,) True where what is left of all groups fits at once."""
        need = np.zeros(len(self._free))
        for kind, count in self._kinds_left.items():
            wanted = self._wanted[kind]
            for row, amount in wanted.amounts:
                need[row] += count * amount if row != GPUS or wanted.is_plain else 0.0
        needed = need.nonzero()[0]
        return np.asarray((self._free[needed] >= need[needed, None]).all(axis=0))

    def _rooms_of(self, role: Role) -> FloatArray:
        """(C,) tasks like the role's next one that each candidate has room for."""
        wanted = self._wanted[id(self._builder.next_group(role))]
        found = self._rooms.get(role)
        if found is None or found[0] is not wanted:
            found = self._rooms[role] = (wanted, self._room(wanted))
        return found[1]

    def _room(self, wanted: _Wanted) -> FloatArray:
        """(C,) by resources, whole GPUs, labels, and the most tasks of the group allowed on one node."""
        builder, group = self._builder, wanted.group
        if not wanted.amounts and builder.demand_of(group) is None:
            return np.zeros(len(builder.rows))
        rooms = np.full(len(builder.rows), float(group.max_per_node or builder.job.task_count))
        if group.max_per_node:
            rooms -= [builder.count(group, m) for m in builder.rows.tolist()]
        for row, amount in wanted.amounts:
            free = self._free[row] if row != GPUS or wanted.is_plain else self._slots(group)
            np.minimum(rooms, free / amount, out=rooms)
        np.floor(rooms, out=rooms)
        rooms *= builder.is_open(group)
        return np.asarray(np.maximum(rooms, 0.0))

    def _room_on(self, wanted: _Wanted, m: int, free: list[float]) -> float:
        """As `_room`, on node m, which is open."""
        builder, group = self._builder, wanted.group
        room = float(group.max_per_node or builder.job.task_count)
        if group.max_per_node:
            room -= builder.count(group, m)
        for row, amount in wanted.amounts:
            there = free[row] if row != GPUS or wanted.is_plain else float(self._slots_on(group, m))
            room = min(room, there / amount)
        return max(0.0, math.floor(room))

    def _slots(self, group: TaskGroup) -> IntArray:
        builder = self._builder
        demand = builder.demand_of(group)
        assert demand is not None
        return gpu_slots(builder.view, demand, group, builder.job.gpu_sharing)[builder.at]

    def _slots_on(self, group: TaskGroup, m: int) -> int:
        builder = self._builder
        demand = builder.demand_of(group)
        assert demand is not None
        empty, shared = builder.view.gpu_open(demand, group, builder.job.gpu_sharing, slice(m, m + 1))
        return int((empty | shared).sum())

    def _wants(self, group: TaskGroup) -> _Wanted:
        demand = self._builder.demand_of(group)
        if demand is None:
            return _Wanted(group, (), is_plain=True)
        amounts = tuple((row, per_task(demand, row)) for row, amount in enumerate(demand.tolist()) if amount)
        plain = self._builder.view.wants_plain_gpus(demand, group, self._builder.job.gpu_sharing)
        return _Wanted(group, amounts, is_plain=plain)
