"""What the policy net reads of each candidate node before the next task of a gang (feature_tables.STEP_COLUMNS).

Tokens of nodes and jobs are encoded once per request (features.py); here is what changes from task to task: the gang so
far, what of it would still fit, and what is free. Changes nothing and decides nothing.
"""

import numpy as np

from placewise_core.features import STEP_COLUMNS, STEP_FEATURES, Float32
from placewise_core.job import Role, TaskGroup
from placewise_core.place.capacity import gpu_slots, per_task
from placewise_core.place.gang_builder import GangBuilder
from placewise_core.view import CPU, GPUS, MEMORY, NETWORK, BoolArray, FloatArray, IntArray

_AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
_SCALE = {column.name: column.scale for column in STEP_COLUMNS}
_HERE = {Role.WORKER: _AT["workers_here"], Role.PARAMETER_SERVER: _AT["servers_here"]}
_LEFT = {Role.WORKER: _AT["workers_left"], Role.PARAMETER_SERVER: _AT["servers_left"]}
_FIT = {Role.WORKER: _AT["workers_fit"], Role.PARAMETER_SERVER: _AT["servers_fit"]}
_IS_USED, _NODES_USED, _FITS_ALL = _AT["is_used_by_gang"], _AT["nodes_used"], _AT["fits_all_left"]
_IN_RACK = _AT["is_in_rack_of_gang"]
_TASKS_SCALE, _FEW_SCALE = _SCALE["workers_here"], _SCALE["workers_left"]
_USAGE = slice(_AT["free_cpu_share"], _AT["tasks"] + 1)
_GPU_SCALE, _LOAD_SCALE, _COUNT_SCALE = _SCALE["free_gpus"], _SCALE["load"], _SCALE["tasks"]


def encode_step(builder: GangBuilder) -> Float32:
    """(C, STEP_FEATURES) for the C candidate nodes of the builder, before its next task."""
    return StepTokens(builder).features


class StepTokens:
    """`features` (C, STEP_FEATURES), kept up task by task. Equal at any time to what `encode_step` gives."""

    def __init__(self, builder: GangBuilder) -> None:
        self._builder = builder
        self._rooms: dict[Role, tuple[TaskGroup, FloatArray]] = {}
        self._rack: IntArray = builder.view.rack[builder.rows]
        self._free: FloatArray = builder.view.free[:, builder.rows]
        self._free[GPUS] = builder.view.free_gpus()[builder.rows]
        self._gpus: FloatArray = np.maximum(builder.view.gpu_exists[builder.rows].sum(axis=1), 1.0)
        self._need = self._needed()
        self._needed_rows: IntArray = np.flatnonzero(self._need)
        self.features: Float32 = np.zeros((len(builder.rows), STEP_FEATURES), dtype=np.float32)
        self._write_usage()
        self._write_gang()
        self._write_room()

    def update(self, c: int) -> None:
        """After the builder placed a task on candidate c: only that node has changed, and what is left of the gang."""
        builder, view, m = self._builder, self._builder.view, int(self._builder.rows[c])
        group, _ = builder.placed[-1]
        self.features[c, _HERE[group.role]] += _TASKS_SCALE
        self.features[c, _IS_USED] = 1.0
        if self._rack[c] >= 0:
            self.features[self._rack == self._rack[c], _IN_RACK] = 1.0
        self._free[:, c] = view.free[:, m]
        free_gpus = self._free[GPUS, c] = view.free_gpus()[m]
        self.features[c, _USAGE] = (
            *(view.free[row, m] * view.inverse_capacity[row, m] for row in (CPU, MEMORY, NETWORK)),
            free_gpus * _GPU_SCALE,
            free_gpus / self._gpus[c],
            view.load()[m] * _LOAD_SCALE,
            view.task_count[m] * _COUNT_SCALE,
        )
        self._need = self._need - self._demand(group)
        for role, (known, rooms) in self._rooms.items():
            rooms[c] = self._room(known, np.array([m]))[0] if builder.remaining_of(role) else 0.0
        self._write_room()

    def _write_usage(self) -> None:
        view, rows, out = self._builder.view, self._builder.rows, self.features[:, _USAGE]
        for column, row in enumerate((CPU, MEMORY, NETWORK)):
            out[:, column] = self._free[row] * view.inverse_capacity[row, rows]
        out[:, 3] = self._free[GPUS] * _GPU_SCALE
        out[:, 4] = self._free[GPUS] / self._gpus
        out[:, 5] = view.load()[rows] * _LOAD_SCALE
        out[:, 6] = view.task_count[rows] * _COUNT_SCALE

    def _write_gang(self) -> None:
        """Where the tasks placed before this object was made are."""
        for group, m in self._builder.placed:
            c = int(np.searchsorted(self._builder.rows, m))
            self.features[c, _HERE[group.role]] += _TASKS_SCALE
            self.features[c, _IS_USED] = 1.0
            if self._rack[c] >= 0:
                self.features[self._rack == self._rack[c], _IN_RACK] = 1.0

    def _write_room(self) -> None:
        """What is left of the gang, and how much of it each node could still take."""
        builder, out = self._builder, self.features
        out[:, _NODES_USED] = _FEW_SCALE * len({m for _, m in builder.placed})
        rows = self._needed_rows
        fits_all: BoolArray = np.asarray((self._free[rows] >= self._need[rows, None]).all(axis=0))
        for role in _HERE:
            left = builder.remaining_of(role)
            out[:, _LEFT[role]] = _FEW_SCALE * left
            if left:
                rooms = self._rooms_of(role)
                out[:, _FIT[role]] = np.minimum(rooms, left) * _FEW_SCALE
                fits_all &= rooms >= left
            else:
                out[:, _FIT[role]] = 0.0
        out[:, _FITS_ALL] = fits_all

    def _rooms_of(self, role: Role) -> FloatArray:
        """(C,) tasks like the role's next one that each candidate has room for."""
        group = self._builder.next_group(role)
        found = self._rooms.get(role)
        if found is None or found[0] is not group:
            found = self._rooms[role] = (group, self._room(group, self._builder.rows))
        return found[1]

    def _room(self, group: TaskGroup, rows: IntArray) -> FloatArray:
        """(len(rows),) by resources, whole GPUs, labels, and the most tasks of the group allowed on one node."""
        builder = self._builder
        view, demand = builder.view, builder.demand_of(group)
        if demand is None:
            return np.zeros(len(rows))
        rooms = np.full(len(rows), float(group.max_per_node or builder.job.task_count))
        if group.max_per_node:
            rooms -= [builder.count(group, m) for m in rows.tolist()]
        for row in np.flatnonzero(demand).tolist():
            amount = (
                view.free[row, rows] if row != GPUS else gpu_slots(view, demand, group, builder.job.gpu_sharing)[rows]
            )
            np.minimum(rooms, amount / per_task(demand, row), out=rooms)
        np.maximum(np.floor(rooms, out=rooms), 0.0, out=rooms)
        rooms *= builder.is_open(group, rows)
        return rooms

    def _needed(self) -> FloatArray:
        """(R,) what all tasks left demand together; GPUs only where they are whole and plain, else rooms tell."""
        need = np.zeros(len(self._builder.view.free))
        for group in self._builder.groups_left():
            need += self._demand(group)
        return need

    def _demand(self, group: TaskGroup) -> FloatArray:
        view, demand = self._builder.view, self._builder.demand_of(group)
        if demand is None:
            return np.full(len(view.free), np.inf)
        if not view.wants_plain_gpus(demand, group, self._builder.job.gpu_sharing):
            demand = demand.copy()
            demand[GPUS] = 0.0
        return demand
