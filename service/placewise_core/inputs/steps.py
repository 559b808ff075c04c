"""Inputs of the policy net for each candidate node before the next task of a gang (tables.STEP_COLUMNS).

Tokens of nodes and jobs are encoded once per request (cluster.py). This module encodes the changes from task to task:
the gang so far, the room for the rest of it, and the free resources. Changes nothing and decides nothing.
"""

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.domain.job import Role, TaskGroup
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.offer import load_of
from placewise_core.inputs.cluster import NODE_COLUMNS, STEP_COLUMNS, STEP_FEATURES
from placewise_core.view.view import CPU, GPUS, MEMORY, NETWORK, ClusterView

_AT = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
_SCALE = {column.name: column.scale for column in STEP_COLUMNS}
_HERE = {Role.WORKER: _AT["workers_here"], Role.PARAMETER_SERVER: _AT["servers_here"]}
_FIT = {Role.WORKER: _AT["workers_fit"], Role.PARAMETER_SERVER: _AT["servers_fit"]}
_GANG = slice(_AT["nodes_used"], _AT["servers_left"] + 1)
_IS_USED, _FITS_ALL, _IN_RACK = _AT["is_used_by_gang"], _AT["fits_all_left"], _AT["is_in_rack_of_gang"]
_TASKS_SCALE, _FEW_SCALE = _SCALE["workers_here"], _SCALE["workers_left"]
_FEW = np.array(_FEW_SCALE)
_SHARES = [CPU, MEMORY, NETWORK]
_FREE_SHARES = slice(_AT["free_cpu_share"], _AT["free_network_share"] + 1)  # in the order of _SHARES
_USAGE = slice(_AT["free_cpu_share"], _AT["tasks"] + 1)
# The same columns, scaled alike, as tokens of nodes have them.
_NODE_AT = {column.name: i for i, column in enumerate(NODE_COLUMNS)}
_USAGE_OF_NODES = np.array([_NODE_AT[name] for name in list(_AT)[_USAGE]])
_GPU_SCALE, _LOAD_SCALE, _COUNT_SCALE = _SCALE["free_gpus"], _SCALE["load"], _SCALE["tasks"]


def encode_free(view: ClusterView, rows: IntArray) -> Float32:
    """(C, STEP_FEATURES): free resources on the nodes `rows`, without a gang."""
    at: slice | IntArray = slice(None) if len(rows) == view.nodes.size else rows
    features: Float32 = np.zeros((len(rows), STEP_FEATURES), dtype=np.float32)
    free_gpus = view.usage.free_gpus[at]
    features[:, _FREE_SHARES] = (view.usage.free[:, at][_SHARES] * view.nodes.inverse_capacity[:, at][_SHARES]).T
    features[:, _AT["free_gpus"]] = free_gpus * _GPU_SCALE
    features[:, _AT["free_gpu_share"]] = free_gpus / np.maximum(view.nodes.gpu_exists[at].sum(axis=1), 1.0)
    features[:, _AT["load"]] = view.usage.load[at] * _LOAD_SCALE
    features[:, _AT["tasks"]] = view.usage.task_count[at] * _COUNT_SCALE
    return features


def free_of(nodes: Float32) -> Float32:
    """As `encode_free`, from what Encoder.encode_nodes gave of the same nodes."""
    features: Float32 = np.zeros((len(nodes), STEP_FEATURES), dtype=np.float32)
    features[:, _USAGE] = nodes.take(_USAGE_OF_NODES, axis=1)
    return features


class StepTokens:
    """`features` (C, STEP_FEATURES), kept up task by task. Equal at any time to those of a new object.

    `free`: the result of `encode_free` for the candidates, if the caller has it already.
    """

    def __init__(self, candidates: Candidates, free: Float32 | None = None) -> None:
        gang, view = candidates.gang, candidates.gang.view
        self._candidates, self._gang = candidates, gang
        self._rack: IntArray | None = view.nodes.rack[candidates.at] if view.nodes.has_racks() else None
        self._rest = None if len(gang.job.groups) == 1 else _Rest(candidates)
        self.features: Float32 = encode_free(view, candidates.rows) if free is None else free.copy()
        for group, m in gang.placed:
            self._write_node(int(candidates.rows.searchsorted(m)), group, m)
        self._write_slots()

    def update(self, c: int) -> None:
        """After a task was placed on candidate c: only that node and the rest of the gang have changed."""
        group, m = self._gang.placed[-1]
        self._write_node(c, group, m)
        if self._rest is not None:
            self._rest.take(c, group)
        if not self._candidates.left[group.role]:
            self.features[:, _FIT[group.role]] = 0.0
        self._write_slots()

    def _write_node(self, c: int, group: TaskGroup, m: int) -> None:
        """One more task of the gang on candidate c, which is node m, and the resources left there."""
        out, view, left = self.features, self._gang.view, self._gang.left[m]
        out[c, _HERE[group.role]] += _TASKS_SCALE
        out[c, _IS_USED] = 1.0
        if self._rack is not None and self._rack[c] >= 0 and not out[c, _IN_RACK]:
            out[self._rack == self._rack[c], _IN_RACK] = 1.0
        free, free_gpus = left.free, len(left.idle)
        inverse: list[float] = view.nodes.inverse_capacity[:, m].tolist()
        out[c, _USAGE] = (
            free[CPU] * inverse[CPU],
            free[MEMORY] * inverse[MEMORY],
            free[NETWORK] * inverse[NETWORK],
            free_gpus * _GPU_SCALE,
            free_gpus / max(1, len(view.nodes.all_gpus[m])),
            load_of(float(view.nodes.load_base[m]), free, inverse) * _LOAD_SCALE,
            (view.usage.tasks_on(m) + len(left.tasks)) * _COUNT_SCALE,
        )

    def _write_slots(self) -> None:
        """The rest of the gang, and the number of its tasks that each node could still take."""
        out, fits_all = self.features, None
        counts = (len(self._gang.left), *self._candidates.left.values())  # in the order of the columns
        out[:, _GANG] = [_FEW_SCALE * count for count in counts]
        for role, turn in self._candidates.turns.items():
            left = np.array(float(self._candidates.left[role]))  # an array, as _FEW: a number would be converted twice
            most = np.minimum(turn.slots, left)
            out[:, _FIT[role]] = most * _FEW  # not with `out`, which takes twice as long for another type
            fits = most == left
            fits_all = fits if fits_all is None else fits_all & fits
        if fits_all is not None:
            out[:, _FITS_ALL] = fits_all if self._rest is None else fits_all & self._rest.fits()


class _Rest:
    """The rest of a gang of several groups, all at once: its needs, and free (R, C) of the candidates. Excludes GPUs
    that are checked one by one."""

    def __init__(self, candidates: Candidates) -> None:
        self._gang = gang = candidates.gang
        self._free: FloatArray = gang.view.usage.countable_free[:, candidates.at].copy()
        self._need: FloatArray = np.zeros(len(self._free))
        for m, left in gang.left.items():
            self._free[:, candidates.rows.searchsorted(m)] = left.whole()
        for group in gang.job.groups:
            self._add(group, gang.remaining_of(group))

    def _add(self, group: TaskGroup, count: int) -> None:
        wanted = self._gang.wanted(group)
        for row, amount in wanted.whole if wanted is not None else ():
            if row != GPUS or (wanted is not None and wanted.is_countable):
                self._need[row] += amount * count

    def take(self, c: int, group: TaskGroup) -> None:
        """A task of the group went to candidate c."""
        self._add(group, -1)
        self._free[:, c] = self._gang.left[self._gang.placed[-1][1]].whole()

    def fits(self) -> BoolArray:
        """(C,) True if all of it fits."""
        needed = self._need.nonzero()[0]
        return np.asarray((self._free[needed] >= self._need[needed, None]).all(axis=0))
