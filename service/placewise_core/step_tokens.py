"""Inputs of the policy net for each candidate node before the next task of a gang (feature_tables.STEP_COLUMNS).

Tokens of nodes and jobs are encoded once per request (features.py). This module encodes the changes from task to task:
the gang so far, the room for the rest of it, and the free resources. Changes nothing and decides nothing.
"""

import math
from collections.abc import Sequence

import numpy as np

from placewise_core.features import NODE_COLUMNS, STEP_COLUMNS, STEP_FEATURES, Float32
from placewise_core.frozen import frozen
from placewise_core.job import Role, TaskGroup
from placewise_core.place.capacity import gpu_slots, per_task
from placewise_core.place.gang_builder import GangBuilder
from placewise_core.place.offer import load_of
from placewise_core.place.plain_gang import PlainGang
from placewise_core.view import CPU, GPUS, MEMORY, NETWORK, BoolArray, ClusterView, FloatArray, IntArray

_AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
_SCALE = {column.name: column.scale for column in STEP_COLUMNS}
_HERE = {Role.WORKER: _AT["workers_here"], Role.PARAMETER_SERVER: _AT["servers_here"]}
_FIT = {Role.WORKER: _AT["workers_fit"], Role.PARAMETER_SERVER: _AT["servers_fit"]}
_GANG = slice(_AT["nodes_used"], _AT["servers_left"] + 1)
_IS_USED, _FITS_ALL, _IN_RACK = _AT["is_used_by_gang"], _AT["fits_all_left"], _AT["is_in_rack_of_gang"]
_TASKS_SCALE, _FEW_SCALE = _SCALE["workers_here"], _SCALE["workers_left"]
_SHARES = [CPU, MEMORY, NETWORK]
_USAGE = slice(_AT["free_cpu_share"], _AT["tasks"] + 1)
# The same columns, scaled alike, as tokens of nodes have them.
_NODE_AT = {column.name: i for i, column in enumerate(NODE_COLUMNS)}
_USAGE_OF_NODES = [_NODE_AT[name] for name in list(_AT)[_USAGE]]
_GPU_SCALE, _LOAD_SCALE, _COUNT_SCALE = _SCALE["free_gpus"], _SCALE["load"], _SCALE["tasks"]


def encode_step(builder: GangBuilder) -> Float32:
    """(C, STEP_FEATURES) for the C candidate nodes of the builder, before its next task."""
    return StepTokens(builder).features


class PlainSteps:
    """`features` (C, STEP_FEATURES) as StepTokens has them and `mask` (2C,) as GangBuilder.mask, while a PlainGang is
    placed on the candidates `rows`: nothing is claimed, as the rest can be counted.

    `nodes`: where its tasks went, as indices into the view; `left`: tasks still to place.
    """

    def __init__(self, gang: PlainGang, rows: IntArray) -> None:
        view, size = gang.view, len(rows)
        self._at: slice | IntArray = slice(None) if size == view.size else rows
        self.gang = gang
        self.nodes: list[int] = []
        self.left = gang.group.count
        self.features: Float32
        self.mask: BoolArray = np.zeros(2 * size, dtype=np.bool_)
        self._rows, self._role = rows, gang.group.role
        self._open = self.mask[:size] if self._role is Role.WORKER else self.mask[size:]
        self._rooms: FloatArray = gang.rooms[self._at].copy()
        self._rack: IntArray | None = view.rack[self._at] if view.has_racks() else None
        np.greater_equal(self._rooms, 1.0, out=self._open)

    def begin(self, free: Float32 | None = None) -> None:
        """Writes `features` for the first task. `free` as for StepTokens."""
        self.features = encode_free(self.gang.view, self._rows) if free is None else free.copy()
        self._write_room()

    def is_stuck(self) -> bool:
        """True if the candidates do not take the gang."""
        return bool(self._rooms.sum() < self.left)

    def take(self, c: int) -> None:
        """Places a task on candidate c, which has room for it."""
        m = int(self._rows[c])
        self.nodes.append(m)
        self.left -= 1
        if not self.left:
            return
        self._rooms[c] -= 1.0
        self._open[c] = self._rooms[c] >= 1.0
        self._write_usage(c, m)
        self._write_room()

    def _write_usage(self, c: int, m: int) -> None:
        """The gang's tasks on node m, and the resources left there."""
        out, view, here = self.features, self.gang.view, self.nodes.count(m)
        out[c, _HERE[self._role]] = here * _TASKS_SCALE
        out[c, _IS_USED] = 1.0
        if self._rack is not None and self._rack[c] >= 0:
            out[self._rack == self._rack[c], _IN_RACK] = 1.0
        inverse: list[float] = view.inverse_capacity[:, m].tolist()
        free: list[float] = (view.free[:, m] - here * self.gang.demand).tolist()
        free_gpus = float(view.free_gpus()[m]) - here * self.gang.gpus
        out[c, _USAGE] = (
            free[CPU] * inverse[CPU],
            free[MEMORY] * inverse[MEMORY],
            free[NETWORK] * inverse[NETWORK],
            free_gpus * _GPU_SCALE,
            free_gpus / max(1, view.gpu_exists[m].tolist().count(True)),
            load_of(view.capacity[:, m].tolist(), free, inverse) * _LOAD_SCALE,
            (view.tasks_on(m) + here) * _COUNT_SCALE,
        )

    def _write_room(self) -> None:
        """The rest of the gang, and the number of its tasks that each node could still take."""
        out, left = self.features, self.left
        is_worker = self._role is Role.WORKER
        out[:, _GANG] = (
            _FEW_SCALE * len(set(self.nodes)),
            _FEW_SCALE * left if is_worker else 0.0,
            0.0 if is_worker else _FEW_SCALE * left,
        )
        out[:, _FIT[self._role]] = np.minimum(self._rooms, left) * _FEW_SCALE
        out[:, _FITS_ALL] = self._rooms >= left


def encode_free(view: ClusterView, rows: IntArray) -> Float32:
    """(C, STEP_FEATURES): free resources on the nodes `rows`, without a gang."""
    at: slice | IntArray = slice(None) if len(rows) == view.size else rows
    features: Float32 = np.zeros((len(rows), STEP_FEATURES), dtype=np.float32)
    out, free_gpus = features[:, _USAGE], view.free_gpus()[at]
    out[:, :3] = (view.free[:, at][_SHARES] * view.inverse_capacity[:, at][_SHARES]).T
    out[:, 3] = free_gpus * _GPU_SCALE
    out[:, 4] = free_gpus / np.maximum(view.gpu_exists[at].sum(axis=1), 1.0)
    out[:, 5] = view.load()[at] * _LOAD_SCALE
    out[:, 6] = view.task_count[at] * _COUNT_SCALE
    return features


def free_of(nodes: Float32) -> Float32:
    """As `encode_free`, from what Encoder.encode_nodes gave of the same nodes."""
    features: Float32 = np.zeros((len(nodes), STEP_FEATURES), dtype=np.float32)
    features[:, _USAGE] = nodes[:, _USAGE_OF_NODES]
    return features


@frozen
class _Wanted:
    """One task of a group. `demand`: None if no node has a resource that it asks for. `amounts`: (resource row, how
    much of it), GPUs counted whole; left out where `plain_rooms` says it all. `is_plain`: its GPUs are counted, not
    looked at one by one."""

    group: TaskGroup
    demand: FloatArray | None
    amounts: Sequence[tuple[int, float]]
    is_plain: bool


class StepTokens:
    """`features` (C, STEP_FEATURES), kept up task by task. Equal at any time to what `encode_step` gives.

    `free`: the result of `encode_free` for the builder's view and nodes, if the caller has it already.
    """

    def __init__(self, builder: GangBuilder, free: Float32 | None = None) -> None:
        view, at = builder.view, builder.at
        self._builder = builder
        self._wanted = {id(group): self._wants(group) for group in builder.job.groups}
        self._left = {role: builder.remaining_of(role) for role in _HERE}
        self._nodes = {m for _, m in builder.placed}
        self._rooms: dict[Role, tuple[_Wanted, FloatArray]] = {}
        self._rack: IntArray | None = view.rack[at] if view.has_racks() else None
        self.features: Float32 = encode_free(view, builder.rows) if free is None else free.copy()
        for group, m in builder.placed:
            self._write_here(int(np.searchsorted(builder.rows, m)), group)
        self._write_room()

    def update(self, c: int) -> None:
        """After the builder placed a task on candidate c: only that node and the rest of the gang have changed."""
        view = self._builder.view
        group, m = self._builder.placed[-1]
        self._write_here(c, group)
        free: list[float] = view.free[:, m].tolist()
        inverse: list[float] = view.inverse_capacity[:, m].tolist()
        free_gpus = float(view.free_gpus()[m])
        self.features[c, _USAGE] = (
            free[CPU] * inverse[CPU],
            free[MEMORY] * inverse[MEMORY],
            free[NETWORK] * inverse[NETWORK],
            free_gpus * _GPU_SCALE,
            free_gpus / max(1, int(np.count_nonzero(view.gpu_exists[m]))),
            view.load()[m] * _LOAD_SCALE,
            view.task_count[m] * _COUNT_SCALE,
        )
        self._nodes.add(m)
        self._left[group.role] -= 1
        if not self._left[group.role]:
            self.features[:, _FIT[group.role]] = 0.0
        for wanted, rooms in self._rooms.values():
            if rooms[c]:  # a gang only takes: a full node stays full
                rooms[c] = self._room_on(wanted, m)
        self._write_room()

    def _write_here(self, c: int, group: TaskGroup) -> None:
        """One more task of the gang on candidate c."""
        self.features[c, _HERE[group.role]] += _TASKS_SCALE
        self.features[c, _IS_USED] = 1.0
        if self._rack is not None and self._rack[c] >= 0:
            self.features[self._rack == self._rack[c], _IN_RACK] = 1.0

    def _write_room(self) -> None:
        """The rest of the gang, and the number of its tasks that each node could still take."""
        out, left = self.features, self._left
        out[:, _GANG] = (_FEW_SCALE * len(self._nodes), *[_FEW_SCALE * count for count in left.values()])
        fits_all: BoolArray | None = None
        for role, count in left.items():
            if count:
                rooms = self._rooms_of(role)
                out[:, _FIT[role]] = np.minimum(rooms, count) * _FEW_SCALE
                fits = rooms >= count
                fits_all = fits if fits_all is None else fits_all & fits
        if fits_all is not None:
            out[:, _FITS_ALL] = fits_all & self._fits_together() if len(self._wanted) > 1 else fits_all

    def _fits_together(self) -> BoolArray:
        """(C,) True if the rest of all groups fits at once."""
        view, at = self._builder.view, self._builder.at
        need = np.zeros(len(view.free))
        for group in self._builder.groups_left():
            wanted = self._wanted[id(group)]
            for row, amount in wanted.amounts:
                need[row] += amount if row != GPUS or wanted.is_plain else 0.0
        free: FloatArray = view.free[:, at].copy()
        free[GPUS] = view.free_gpus()[at]
        needed = need.nonzero()[0]
        return np.asarray((free[needed] >= need[needed, None]).all(axis=0))

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
        if wanted.demand is None:
            return np.zeros(len(builder.rows))
        rooms = np.full(len(builder.rows), float(group.max_per_node or builder.job.task_count))
        if group.max_per_node:
            rooms -= [builder.count(group, m) for m in builder.rows.tolist()]
        if wanted.is_plain:
            np.minimum(rooms, builder.view.plain_rooms(wanted.demand)[builder.at], out=rooms)
        else:
            for row, amount in wanted.amounts:
                free = builder.view.free[row, builder.at] if row != GPUS else self._slots(group)
                np.minimum(rooms, free / amount, out=rooms)
            np.floor(rooms, out=rooms)
        rooms *= builder.is_open(group)
        return np.asarray(np.maximum(rooms, 0.0))

    def _room_on(self, wanted: _Wanted, m: int) -> float:
        """As `_room`, on node m, which is open."""
        builder, group = self._builder, wanted.group
        if wanted.demand is None:
            return 0.0
        room = float(group.max_per_node or builder.job.task_count)
        if group.max_per_node:
            room -= builder.count(group, m)
        if wanted.is_plain:
            return max(0.0, min(room, float(builder.view.plain_rooms(wanted.demand)[m])))
        free: list[float] = builder.view.free[:, m].tolist()
        for row, amount in wanted.amounts:
            there = free[row] if row != GPUS else float(self._slots_on(group, m))
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
            return _Wanted(group, None, (), is_plain=False)
        is_plain = self._builder.is_plain(group)
        is_counted = is_plain and len(self._builder.job.groups) == 1
        amounts = () if is_counted else [(r, per_task(demand, r)) for r in demand.nonzero()[0].tolist()]
        return _Wanted(group, demand, amounts, is_plain)
