"""The one encoder of observations: what every net sees, in service, simulator and trainer alike. Decides nothing.

`encode` turns a view and a job batch into arrays of tokens whose sizes follow the cluster (M nodes, J jobs), so that
one net serves any size. The columns are those of tables.py. Unknown values are 0 with a flag beside them, never
NaN.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import Float32, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.gpu_names import GPU_SPEEDS, gpu_speed
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, JobId
from placewise_core.inputs.jobs import NOWHERE, Held, JobTokens, encode_job, numbered
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


class Encoder:
    """Encodes observations of one view at a time; remembers the unchanging features of jobs."""

    def __init__(self, most_jobs: int = 0) -> None:
        """`most_jobs` > 0 keeps only so many job tokens: the batch first, then the running jobs that came last."""
        self._most_jobs = most_jobs
        self._tokens = JobTokens()
        self._inventory: tuple[object, Float32] | None = None

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
        there = self._tokens.of_running(running, view.nodes.index)
        jobs, cells = there.rows, there.cells
        if batch:
            jobs = np.empty((new + len(there.rows), JOB_FEATURES), dtype=np.float32)
            jobs[new:] = there.rows
            where: list[NDArray[np.int64]] = []
            for i, job in enumerate(batch):
                done = () if placed is None else placed.get(job.id, ())
                held = Held.of(done, view.nodes.index) if done else NOWHERE
                self._tokens.write_new(jobs[i], job, held, is_current=i == current)
                where.append(held.cells)
            cells = np.concatenate([numbered(where), there.cells], axis=1)
            cells[0, len(cells[0]) - len(there.cells[0]) :] += new
        placement = _placement(cells, len(jobs), view.nodes.size, rows)
        return Observation(self.encode_nodes(view, now_s, rows), jobs, placement, current)

    def encode_new(self, batch: Sequence[Job]) -> Float32:
        """(len(batch), JOB_FEATURES): jobs of which nothing is placed, as `encode` has them."""
        jobs = np.empty((len(batch), JOB_FEATURES), dtype=np.float32)
        for row, job in zip(jobs, batch, strict=True):
            self._tokens.write_new(row, job, NOWHERE, is_current=False)
        return jobs

    def running(self, view: ClusterView, rows: IntArray | None = None) -> list[RunningJob]:
        """The jobs that `encode` has tokens of beside an empty batch."""
        return self._running(view, 0, rows)

    def _running(self, view: ClusterView, new: int, rows: IntArray | None) -> list[RunningJob]:
        if rows is None:
            running = list(view.jobs.values())
        else:
            ids = dict.fromkeys(job_id for m in rows.tolist() for job_id in view.usage.jobs_on(m))
            running = [view.jobs[job_id] for job_id in ids if job_id in view.jobs]
        if self._most_jobs and len(running) + new > self._most_jobs:
            running = running[len(running) - max(0, self._most_jobs - new) :]
        return running

    def encode_nodes(self, view: ClusterView, now_s: float, rows: IntArray | None = None) -> Float32:
        """(M, NODE_FEATURES), or (C, NODE_FEATURES) for the nodes `rows`; cost follows C, not M."""
        at: slice | IntArray = slice(None) if rows is None else rows
        out = self._inventory_of(view)[at].copy()
        free, free_gpus = view.usage.free[:, at], view.usage.free_gpus[at]
        shares = free * view.nodes.inverse_capacity[:, at]
        out[:, _AT["free_cpu"]] = free[CPU]
        out[:, _AT["free_gpus"]] = free_gpus
        out[:, _AT["free_cpu_share"]] = shares[CPU]
        out[:, _AT["free_memory_share"]] = shares[MEMORY]
        out[:, _AT["free_network_share"]] = shares[NETWORK]
        out[:, _AT["free_gpu_share"]] = free_gpus / np.maximum(out[:, _AT["gpus"]], 1)
        out[:, _AT["free_gpu_memory_share"]] = shares[GPU_MEMORY]
        out[:, _AT["load"]] = view.usage.load[at]
        out[:, _AT["tasks"]] = view.usage.task_count[at]
        out[:, _AT["is_usable"]] = view.usable(now_s)[at]
        if view.nodes.has_telemetry and view.nodes.observe_time_s[at].any():
            _write_telemetry(out, view.nodes.telemetry[:, at], view.nodes.capacity[NETWORK, at])
        out *= _NODE_SCALES
        return out

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
        self._tokens.write_new(seen.jobs[i], job, held, is_current=i == seen.current)
        node, role, count = held.cells
        seen.placement[i] = 0.0
        seen.placement[i, node, role] = count * PLACEMENT_COLUMNS[0].scale


_AT = {column.name: i for i, column in enumerate(NODE_COLUMNS)}
_FASTEST_TRAINED = GPU_SPEEDS["a100"]
_NODE_SCALES = np.asarray([column.scale for column in NODE_COLUMNS], dtype=np.float32)


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


def _placement(cells: NDArray[np.int64], jobs: int, size: int, rows: IntArray | None) -> Float32:
    """(J, M, 2), or (J, C, 2) over the nodes `rows`: how many tasks of each job are on each node, by role. `cells` are
    those of job_tokens.numbered."""
    placement = np.zeros((jobs, size if rows is None else len(rows), 2), dtype=np.float32)
    owner, node, role, count = cells
    if rows is not None:
        position = np.full(size, -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        node = position[node]
        is_there = node >= 0
        owner, node, role, count = owner[is_there], node[is_there], role[is_there], count[is_there]
    placement[owner, node, role] = count * PLACEMENT_COLUMNS[0].scale
    return placement
