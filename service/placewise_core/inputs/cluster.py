"""The one encoder of observations: what every net sees, in service, simulator and trainer alike. Decides nothing.

`encode` turns a view and a job batch into arrays of tokens whose sizes follow the cluster (M nodes, J jobs), so that
one net serves any size. The columns are those of tables.py. Unknown values are 0 with a flag beside them, never
NaN.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.gpu_names import GPU_SPEEDS, gpu_speed
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, JobId
from placewise_core.inputs.jobs import NOWHERE, Held, JobTokens, encode_job
from placewise_core.inputs.tables import (
    COLUMNS,
    JOB_COLUMNS,
    JOB_FEATURES,
    LINEAR_SPEED_COLUMNS,
    MODEL_VOCABULARY,
    NODE_COLUMNS,
    NODE_FEATURES,
    PART_COLUMNS,
    PART_FEATURES,
    PLACEMENT_COLUMNS,
    STEP_COLUMNS,
    STEP_FEATURES,
    UTILISATION_COLUMNS,
    Column,
    earlier_schemas,
    feature_schema,
)
from placewise_core.view.nodes import TelemetryRow
from placewise_core.view.view import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK, ClusterView

__all__ = [
    "COLUMNS",
    "JOB_COLUMNS",
    "JOB_FEATURES",
    "LINEAR_SPEED_COLUMNS",
    "MODEL_VOCABULARY",
    "NODE_COLUMNS",
    "NODE_FEATURES",
    "PART_COLUMNS",
    "PART_FEATURES",
    "PLACEMENT_COLUMNS",
    "STEP_COLUMNS",
    "STEP_FEATURES",
    "UTILISATION_COLUMNS",
    "Column",
    "Encoder",
    "Float32",
    "Observation",
    "earlier_schemas",
    "encode_job",
    "encode_utilisation",
    "feature_schema",
    "gpu_relative_speed",
]

_CPU_UTIL, _GPU_UTIL = int(TelemetryRow.CPU_UTIL), int(TelemetryRow.GPU_UTIL)
_TX, _RX = int(TelemetryRow.TX_GBPS), int(TelemetryRow.RX_GBPS)
_CPU_CELSIUS, _GPU_CELSIUS = int(TelemetryRow.CPU_CELSIUS), int(TelemetryRow.GPU_CELSIUS)
_LIMIT = int(TelemetryRow.LIMIT_CELSIUS)
_BUSY = [_CPU_UTIL, _GPU_UTIL, int(TelemetryRow.MEMORY_UTIL), int(TelemetryRow.GPU_MEMORY_UTIL)]
_LINKS = [_TX, _RX]


@frozen
class Observation:
    """Tokens for M nodes and J jobs.

    nodes (M, NODE_FEATURES) · jobs (J, JOB_FEATURES) · placement (J, M, 2): tasks of each job on each node, Harmony's
    d_n, workers then parameter servers · current: row of the job being placed, −1 if none. All float32.
    """

    nodes: Float32
    jobs: Float32
    placement: Float32
    current: int

    def beside(self, new: Float32) -> "Observation":
        """With the tokens of new jobs (N, JOB_FEATURES), of which nothing is placed, in front of its own."""
        nowhere: Float32 = np.zeros((len(new), *self.placement.shape[1:]), dtype=np.float32)
        jobs, placement = np.concatenate([new, self.jobs]), np.concatenate([nowhere, self.placement])
        return Observation(self.nodes, jobs, placement, self.current)


class Encoder:
    """Encodes observations of one view at a time; remembers the unchanging features of jobs."""

    def __init__(self, most_jobs: int = 0) -> None:
        """`most_jobs` > 0 keeps only so many job tokens: the batch first, then the running jobs that came last."""
        self._most_jobs = most_jobs
        self._tokens = JobTokens()
        self._running_last: _RunningTokens | None = None
        self._inventory: tuple[object, Float32] | None = None
        self._chosen: _NodeSubset | None = None

    def encode(
        self,
        view: ClusterView,
        batch: Sequence[Job],
        now_s: float,
        *,
        current: int = -1,
        placed: Mapping[JobId, Sequence[Assignment]] | None = None,
        rows: IntArray | None = None,
        running: list[RunningJob] | None = None,
    ) -> Observation:
        """The running jobs of the view and the new ones of `batch`, over the nodes `rows` (None: all).

        `placed` holds tentative placements of the batch's jobs (claimed on the view). `current` is an
        index into `batch`. With `rows`, running jobs that touch none of these nodes are left out. `running`: what
        `running` gave for these rows, if that was asked for already.
        """
        new = len(batch)
        if running is None:
            running = self._running(view, new, rows)
        there = self._tokens_of_running(running, view, rows)
        jobs, placement = there.rows, there.placement
        if batch:
            jobs = np.empty((new + len(there.rows), JOB_FEATURES), dtype=np.float32)
            jobs[new:] = there.rows
            where: list[Held] = []
            for i, job in enumerate(batch):
                done = () if placed is None else placed.get(job.id, ())
                held = Held.of(done, view.nodes.index) if done else NOWHERE
                jobs[i] = self._tokens.of_new(job, held, is_current=i == current)
                where.append(held)
            placement = np.concatenate([_placement(where, self._chosen_of(view, rows)), there.placement])
        return Observation(self.encode_nodes(view, now_s, rows), jobs, placement, current)

    def _tokens_of_running(
        self, running: Sequence[RunningJob], view: ClusterView, rows: IntArray | None
    ) -> "_RunningTokens":
        """Of jobs in this order. What was encoded for the same nodes the last time is taken from there."""
        chosen, last = self._chosen_of(view, rows), self._running_last
        if last is None or last.chosen is not chosen:
            last = _RunningTokens((), chosen, {}, _NO_TOKENS, _placement((), chosen))
        at = [*map(last.places.get, map(id, running))]
        new = [job for job, place in zip(running, at, strict=True) if place is None]
        if not new and len(at) == len(last.jobs) and at == [*range(len(at))]:
            return last
        tokens, held = self._tokens.of_running(new, view.nodes.index)
        placement = _placement(held, chosen)
        if last.jobs:
            of_new = itertools.count(len(last.jobs))
            order = np.array([next(of_new) if place is None else place for place in at], dtype=np.int64)
            tokens = np.concatenate([last.rows, tokens]).take(order, axis=0)
            placement = np.concatenate([last.placement, placement]).take(order, axis=0)
        places = {id(job): place for place, job in enumerate(running)}
        self._running_last = _RunningTokens(tuple(running), chosen, places, tokens, placement)  # keeps the identities
        return self._running_last

    def encode_new(self, batch: Sequence[Job]) -> Float32:
        """(len(batch), JOB_FEATURES): jobs of which nothing is placed, as `encode` has them."""
        jobs = np.empty((len(batch), JOB_FEATURES), dtype=np.float32)
        for i, job in enumerate(batch):
            jobs[i] = self._tokens.of_new(job, NOWHERE, is_current=False)
        return jobs

    def running(self, view: ClusterView, rows: IntArray | None = None) -> list[RunningJob]:
        """The jobs that `encode` has tokens of beside an empty batch."""
        return self._running(view, 0, rows)

    def _running(self, view: ClusterView, new: int, rows: IntArray | None) -> list[RunningJob]:
        if rows is None:
            running = list(view.jobs.values())
        else:
            ids = dict.fromkeys(itertools.chain.from_iterable(map(view.usage.jobs_on, rows.tolist())))
            running = [job for job in map(view.jobs.get, ids) if job is not None]
        if self._most_jobs and len(running) + new > self._most_jobs:
            running = running[len(running) - max(0, self._most_jobs - new) :]
        return running

    def encode_nodes(self, view: ClusterView, now_s: float, rows: IntArray | None = None) -> Float32:
        """(M, NODE_FEATURES), or (C, NODE_FEATURES) for the nodes `rows`; cost follows C, not M."""
        chosen, usable = self._chosen_of(view, rows), view.usable(now_s)
        last: _NodeTokens | None = view.notes.get(self)
        if last is not None and last.is_of(view, chosen, usable):
            changed = set(view.usage.touched_since(last.usage_stamp))
            if len(changed) <= _FEW_CHANGED:
                nodes = last.nodes.copy()
                for m in changed:
                    _write_use_of(m, nodes, view, chosen)
                view.notes[self] = _NodeTokens(nodes, view, chosen, usable)
                return nodes
        nodes = self._nodes_anew(view, rows, chosen, usable)
        view.notes[self] = _NodeTokens(nodes, view, chosen, usable)
        return nodes

    def _nodes_anew(
        self, view: ClusterView, rows: IntArray | None, chosen: "_NodeSubset", usable: BoolArray
    ) -> Float32:
        at: slice | IntArray = slice(None) if rows is None else rows
        out, usage = chosen.inventory.copy(), view.usage
        use = (usage.free[:, at], usage.free_gpus[at], usage.load[at], usage.task_count[at])
        out[:, _USE] = np.array(_in_use(*use, view.nodes.inverse_capacity[:, at], chosen.gpus)).T
        out[:, _USE] *= _USE_SCALES
        out[:, _AT["is_usable"]] = usable[at]
        if view.nodes.has_telemetry and view.nodes.observe_time_s[at].any():
            _write_telemetry(out, view.nodes.telemetry[:, at], view.nodes.capacity[NETWORK, at])
            out[:, _REPORTED] *= _NODE_SCALES[_REPORTED]
        return out

    def _chosen_of(self, view: ClusterView, rows: IntArray | None) -> "_NodeSubset":
        """Kept until the inventory changes or other nodes are asked for."""
        asked, kept = None if rows is None else rows.tobytes(), self._chosen
        if kept is None or kept.capacity is not view.nodes.capacity or kept.asked != asked:
            inventory = self._inventory_of(view)
            inventory = inventory if rows is None else inventory[rows]
            place = None if rows is None else {m: c for c, m in enumerate(rows.tolist())}
            gpus = np.maximum(inventory[:, _AT["gpus"]], 1).astype(np.float64)
            kept = self._chosen = _NodeSubset(view.nodes.capacity, asked, place, inventory * _NODE_SCALES, gpus)
        return kept

    def _inventory_of(self, view: ClusterView) -> Float32:
        """(M, NODE_FEATURES), unscaled, with the columns that only an inventory change changes."""
        if self._inventory is None or self._inventory[0] is not view.nodes.capacity:
            out = np.zeros((view.nodes.size, NODE_FEATURES), dtype=np.float32)
            for column, row in (("cpu_capacity", CPU), ("memory_capacity", MEMORY), ("network_capacity", NETWORK)):
                out[:, _AT[column]] = np.log1p(view.nodes.capacity[row])
            out[:, _AT["gpus"]] = view.nodes.gpu_exists.sum(axis=1)
            speeds = [gpu_relative_speed(node.gpus[0].model) if node.gpus else 0.0 for node in view.nodes.records]
            out[:, _AT["gpu_speed"]] = speeds
            self._inventory = (view.nodes.capacity, out)
        return self._inventory[1]

    def update_new(self, seen: Observation, i: int, job: Job, done: Sequence[Assignment], view: ClusterView) -> None:
        """Rewrites token i of an observation over all nodes: the current job of the batch, after one more task."""
        held = Held.of(done, view.nodes.index)
        seen.jobs[i] = self._tokens.of_new(job, held, is_current=i == seen.current)
        seen.placement[i] = 0.0
        for m, role, count in held.cells:
            seen.placement[i, m, role] = count * _PLACED_SCALE


@frozen
class _NodeSubset:
    """C nodes, and of them all that only another inventory changes.

    `capacity`: the view's, of the same nodes while it is the same · `asked`: their rows as bytes, None for all ·
    `place`: the place of each row, None for all · inventory (C, NODE_FEATURES), scaled · gpus (C,), at least 1.
    """

    capacity: FloatArray
    asked: bytes | None
    place: Mapping[int, int] | None
    inventory: Float32
    gpus: FloatArray

    def place_of(self, m: int) -> int | None:
        """None if node m is not among them."""
        return m if self.place is None else self.place.get(m)


@frozen
class _RunningTokens:
    """`jobs` as tokens over some nodes: rows (J, JOB_FEATURES) · placement (J, C, 2) · `places`: the place of each job
    by its identity."""

    jobs: Sequence[RunningJob]
    chosen: _NodeSubset
    places: Mapping[int, int]
    rows: Float32
    placement: Float32


_NO_TOKENS: Float32 = np.zeros((0, JOB_FEATURES), dtype=np.float32)


class _NodeTokens:
    """`nodes` as they were encoded last, and the stamps by which a change shows."""

    def __init__(self, nodes: Float32, view: ClusterView, chosen: _NodeSubset, usable: BoolArray) -> None:
        self.nodes, self.usage_stamp = nodes, view.usage.stamp
        self._usage, self._chosen, self._usable = view.usage, chosen, usable.tobytes()
        self._telemetry_stamp = view.nodes.telemetry_stamp

    def is_of(self, view: ClusterView, chosen: _NodeSubset, usable: BoolArray) -> bool:
        """True if nothing but the usage of some nodes can have changed."""
        return (
            self._chosen is chosen
            and self._usage is view.usage
            and self._telemetry_stamp == view.nodes.telemetry_stamp
            and self._usable == usable.tobytes()
        )


_AT = {column.name: i for i, column in enumerate(NODE_COLUMNS)}
_USE = slice(_AT["free_cpu"], _AT["tasks"] + 1)  # columns that change with the jobs on a node
_PLACED_SCALE = PLACEMENT_COLUMNS[0].scale
_REPORTED = slice(_AT["has_temperature"], NODE_FEATURES)
_FASTEST_TRAINED = GPU_SPEEDS["a100"]
_NODE_SCALES = np.asarray([column.scale for column in NODE_COLUMNS], dtype=np.float32)
_USE_SCALES = _NODE_SCALES[_USE]
_FEW_CHANGED = 8  # nodes up to which writing one by one is faster than all at once


def _in_use(free: Any, free_gpus: Any, load: Any, tasks: Any, inverse_capacity: Any, gpus: Any) -> tuple[Any, ...]:
    """The columns of _USE, of one node or of arrays of nodes."""
    return (
        free[CPU],
        free_gpus,
        free[CPU] * inverse_capacity[CPU],
        free[MEMORY] * inverse_capacity[MEMORY],
        free[NETWORK] * inverse_capacity[NETWORK],
        free_gpus / gpus,
        free[GPU_MEMORY] * inverse_capacity[GPU_MEMORY],
        load,
        tasks,
    )


def _write_use_of(m: int, nodes: Float32, view: ClusterView, chosen: _NodeSubset) -> None:
    """Renews the token of node m, if it is among the chosen ones."""
    c = chosen.place_of(m)
    if c is not None:
        usage = view.usage
        free, inverse = usage.free[:, m].tolist(), view.nodes.inverse_capacity[:, m].tolist()
        use = (free, usage.free_gpus.item(m), usage.load.item(m), usage.task_count.item(m))
        row = nodes[c, _USE]
        row[:] = _in_use(*use, inverse, chosen.gpus.item(c))
        row *= _USE_SCALES


def gpu_relative_speed(model: str) -> float:
    """Speed of a GPU model relative to a V100, 1 if unknown. A faster GPU than the nets were trained with counts as the
    fastest of those."""
    return min(gpu_speed(model) or 1.0, _FASTEST_TRAINED)


def encode_utilisation(
    view: ClusterView, free: FloatArray | None = None, free_gpus: FloatArray | None = None
) -> Float32:
    """(M, 6) LDWP's S_j: reported utilisation, else the share that jobs hold. `free` (R, M) and `free_gpus` (M,) are
    those of the view unless they are given."""
    held = 1.0 - (view.usage.free if free is None else free) * view.nodes.inverse_capacity
    gpus = np.maximum(view.nodes.gpu_exists.sum(axis=1), 1)
    allocated = (
        held[CPU],
        (gpus - (view.usage.free_gpus if free_gpus is None else free_gpus)) / gpus,
        held[MEMORY],
        held[GPU_MEMORY],
        held[NETWORK],
        held[NETWORK],
    )
    network = np.maximum(view.nodes.capacity[NETWORK], 1e-9)
    links = view.nodes.telemetry[_LINKS] / network
    columns = [
        np.where(np.isnan(r), a, r) for r, a in zip((*view.nodes.telemetry[_BUSY], *links), allocated, strict=True)
    ]
    present = view.nodes.capacity[[CPU, GPUS, MEMORY, GPU_MEMORY, NETWORK, NETWORK]] > 0
    return np.asarray(np.clip(np.stack(columns), 0.0, 1.0) * present, dtype=np.float32).T


def _write_telemetry(out: Float32, telemetry: FloatArray, network_gbps: FloatArray) -> None:
    """Temperature margin, utilisation and link rates if reported; otherwise zero, with their flags at zero."""
    margin = telemetry[_LIMIT] - np.fmax(telemetry[_CPU_CELSIUS], telemetry[_GPU_CELSIUS])
    known = ~np.isnan(margin)
    out[:, _AT["has_temperature"]] = known
    out[known, _AT["temperature_margin"]] = margin[known]
    out[:, _AT["has_utilisation"]] = ~np.isnan(telemetry[_CPU_UTIL])
    network = np.maximum(network_gbps, 1e-9)
    for column, values in (
        ("cpu_util", telemetry[_CPU_UTIL]),
        ("gpu_util", telemetry[_GPU_UTIL]),
        ("tx_share", telemetry[_TX] / network),
        ("rx_share", telemetry[_RX] / network),
    ):
        out[:, _AT[column]] = np.nan_to_num(values, nan=0.0)


def _placement(held: Sequence[Held], chosen: _NodeSubset) -> Float32:
    """(J, C, 2): how many tasks of each job are on each of the nodes, by role."""
    placement = np.zeros((len(held), len(chosen.inventory), 2), dtype=np.float32)
    for i, each in enumerate(held):
        for m, role, count in each.cells:
            c = chosen.place_of(m)
            if c is not None:
                placement[i, c, role] = count * _PLACED_SCALE
    return placement
