"""The one encoder of observations: what every net sees, in service, simulator and trainer alike. Decides nothing.

`encode` turns a view and a job batch into arrays of tokens whose sizes follow the cluster (M nodes, J jobs), so that
one net serves any size. The columns are those of feature_tables.py. Unknown values are 0 with a flag beside them, never
NaN.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewise_core.cluster import Assignment, RunningJob
from placewise_core.feature_tables import (
    COLUMNS,
    GPU_RELATIVE_SPEED,
    JOB_COLUMNS,
    JOB_FEATURES,
    MODEL_VOCABULARY,
    NODE_COLUMNS,
    NODE_FEATURES,
    PACE_COLUMNS,
    PART_COLUMNS,
    PART_FEATURES,
    PLACEMENT_COLUMNS,
    STATIC_JOB_FEATURES,
    STEP_COLUMNS,
    STEP_FEATURES,
    UTILISATION_COLUMNS,
    Column,
    feature_schema,
)
from placewise_core.job import Architecture, Job, JobId, Priority, Role
from placewise_core.pace import linear_minutes, reported_speed, worker_step_ms, workers_of
from placewise_core.speed.model_names import canonical, nearest
from placewise_core.view import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK, ClusterView, FloatArray, IntArray

__all__ = [
    "COLUMNS",
    "GPU_RELATIVE_SPEED",
    "JOB_COLUMNS",
    "JOB_FEATURES",
    "MODEL_VOCABULARY",
    "NODE_COLUMNS",
    "NODE_FEATURES",
    "PACE_COLUMNS",
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
    "encode_job",
    "encode_utilisation",
    "feature_schema",
    "gpu_relative_speed",
]

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
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
    """Encodes observations of one view at a time; remembers what does not change about the jobs it saw."""

    def __init__(self, most_jobs: int = 0) -> None:
        """`most_jobs` > 0 keeps only so many job tokens: the batch first, then the running jobs that came last."""
        self._most_jobs = most_jobs
        self._static: dict[JobId, tuple[Job, Float32, _Pace]] = {}
        self._spots: dict[JobId, _Held] = {}
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
    ) -> Observation:
        """The running jobs of the view and the new ones of `batch`, over the nodes `rows` (None: all).

        `placed` holds what was tentatively decided for jobs of the batch (and claimed on the view). `current` is an
        index into `batch`. With `rows`, running jobs that touch none of these nodes are left out.
        """
        running = self._running(view, len(batch), rows)
        size = view.size if rows is None else len(rows)
        jobs = np.zeros((len(batch) + len(running), JOB_FEATURES), dtype=np.float32)
        placement = np.zeros((len(jobs), size, 2), dtype=np.float32)
        where = _Positions(view.size, rows)
        for i, job in enumerate(batch):
            done = () if placed is None else placed.get(job.id, ())
            self._write_new(jobs[i], where.of(placement[i]), job, done, view, is_current=i == current)
        for i, held in enumerate(running, start=len(batch)):
            self._write_running(jobs[i], where.of(placement[i]), held, view)
        placement *= PLACEMENT_COLUMNS[0].scale
        return Observation(self.encode_nodes(view, now_s, rows), jobs, placement, current)

    def _running(self, view: ClusterView, new: int, rows: IntArray | None) -> list[RunningJob]:
        if rows is None:
            running = list(view.jobs.values())
        else:
            ids = dict.fromkeys(job_id for m in rows.tolist() for job_id in view.jobs_on(m))
            running = [view.jobs[job_id] for job_id in ids if job_id in view.jobs]
        if self._most_jobs and len(running) + new > self._most_jobs:
            running = running[len(running) - max(0, self._most_jobs - new) :]
        return running

    # -- nodes --------------------------------------------------------------------------------------------------

    def encode_nodes(self, view: ClusterView, now_s: float, rows: IntArray | None = None) -> Float32:
        """(M, NODE_FEATURES), or (C, NODE_FEATURES) for the nodes `rows`; cost follows C, not M."""
        at: slice | IntArray = slice(None) if rows is None else rows
        out = self._inventory_of(view)[at].copy()
        free, inverse = view.free[:, at], view.inverse_capacity[:, at]
        free_gpus = view.free_gpus()[at]
        out[:, 4] = free[CPU]
        out[:, 5] = free_gpus
        out[:, 6] = free[CPU] * inverse[CPU]
        out[:, 7] = free[MEMORY] * inverse[MEMORY]
        out[:, 8] = free[NETWORK] * inverse[NETWORK]
        out[:, 9] = free_gpus / np.maximum(out[:, 3], 1)
        out[:, 10] = free[GPU_MEMORY] * inverse[GPU_MEMORY]
        out[:, 11] = view.load()[at]
        out[:, 12] = view.task_count[at]
        out[:, 14] = view.usable(now_s)[at]
        if view.observe_time_s[at].any():
            _write_telemetry(out, view.telemetry[:, at], view.capacity[NETWORK, at])
        out *= _NODE_SCALES
        return out

    def _inventory_of(self, view: ClusterView) -> Float32:
        """(M, NODE_FEATURES), unscaled, with the columns that only an inventory change changes."""
        if self._inventory is None or self._inventory[0] is not view.capacity:
            out = np.zeros((view.size, NODE_FEATURES), dtype=np.float32)
            for column, row in enumerate((CPU, MEMORY, NETWORK)):
                out[:, column] = np.log1p(view.capacity[row])
            out[:, 3] = view.gpu_exists.sum(axis=1)
            out[:, 13] = [gpu_relative_speed(node.gpus[0].model) if node.gpus else 0.0 for node in view.nodes]
            self._inventory = (view.capacity, out)
        return self._inventory[1]

    # -- jobs ---------------------------------------------------------------------------------------------------

    def update_new(self, seen: Observation, i: int, job: Job, done: Sequence[Assignment], view: ClusterView) -> None:
        """Rewrites token i of an observation over all nodes: the current job of the batch, after one more task."""
        seen.placement[i] = 0.0
        cells = _Cells(seen.placement[i], None)
        self._write_new(seen.jobs[i], cells, job, done, view, is_current=i == seen.current)
        seen.placement[i] *= PLACEMENT_COLUMNS[0].scale

    def _write_new(
        self,
        row: Float32,
        where: "_Cells",
        job: Job,
        done: Sequence[Assignment],
        view: ClusterView,
        *,
        is_current: bool,
    ) -> None:
        row[:STATIC_JOB_FEATURES], pace = self._static_of(job)
        row[_PACE] = pace.columns(1.0, 0.0)
        if not done:
            row[_DYNAMIC] = (1.0, is_current, 0.0, 0.0, 0.0, 1.0)
            return
        held = _held(done, view.index)
        where.write(held)
        row[_DYNAMIC] = (1.0, is_current, *held.summary, 1.0)

    def _write_running(self, row: Float32, where: "_Cells", running: RunningJob, view: ClusterView) -> None:
        row[:STATIC_JOB_FEATURES], pace = self._static_of(running.job)
        held = self._held_by(running, view)
        where.write(held)
        left = 1.0
        if running.job.total_epochs > 0:
            left = min(1.0, max(0.0, 1.0 - running.epochs_done / running.job.total_epochs))
        row[_DYNAMIC] = (0.0, 0.0, *held.summary, left)
        row[_PACE] = pace.columns(left, reported_speed(running))

    def _static_of(self, job: Job) -> tuple[Float32, "_Pace"]:
        found = self._static.get(job.id)
        if found is None or found[0] is not job:
            self._forget()
            found = self._static[job.id] = (job, encode_job(job), _Pace.of(job))
        return found[1], found[2]

    def _held_by(self, running: RunningJob, view: ClusterView) -> "_Held":
        found = self._spots.get(running.id)
        if found is None or found.assignments is not running.assignments or found.index is not view.index:
            found = self._spots[running.id] = _held(running.assignments, view.index)
        return found

    def _forget(self) -> None:
        """Job ids never come back: without a bound the memory would fill."""
        if len(self._static) > _REMEMBERED:
            self._static.clear()
            self._spots.clear()


@dataclass(frozen=True, slots=True)
class _Pace:
    """What a job declares of its length: minutes at its linear speed, and the step as it is encoded. 0: nothing."""

    minutes: float
    step: float

    @classmethod
    def of(cls, job: Job) -> "_Pace":
        step_ms = worker_step_ms(job, workers_of(job))
        return cls(linear_minutes(job), math.log1p(step_ms) * _STEP_SCALE)

    def columns(self, left: float, speed: float) -> tuple[float, ...]:
        """PACE_COLUMNS with `left` of the work to do and a reported speed (0: none)."""
        minutes = math.log1p(self.minutes * left) * _MINUTES_SCALE
        return (self.minutes > 0.0, minutes, self.step > 0.0, self.step, speed > 0.0, speed)


_REMEMBERED = 20_000
_DYNAMIC, _PACE = slice(STATIC_JOB_FEATURES, len(JOB_COLUMNS)), slice(len(JOB_COLUMNS), JOB_FEATURES)
_MINUTES_SCALE, _STEP_SCALE = PACE_COLUMNS[1].scale, PACE_COLUMNS[3].scale
_NODE_SCALES = np.asarray([column.scale for column in NODE_COLUMNS], dtype=np.float32)
_JOB_SCALES = np.asarray([c.scale for c in JOB_COLUMNS[:STATIC_JOB_FEATURES]], dtype=np.float32)
_IS_LOG = np.asarray([c.is_log for c in JOB_COLUMNS[:STATIC_JOB_FEATURES]], dtype=np.bool_)


def encode_job(job: Job) -> Float32:
    """(STATIC_JOB_FEATURES,) what is known of a job before it is placed."""
    name = nearest(job.model, MODEL_VOCABULARY) if job.model else None
    worker = next((g for g in job.groups if g.role is Role.WORKER), None)
    server = next((g for g in job.groups if g.role is Role.PARAMETER_SERVER), None)
    values = [
        *(float(known == name) for known in MODEL_VOCABULARY),
        float(name is not None and name == canonical(job.model)),
        *(float(job.architecture is kind) for kind in Architecture),
        *(float(job.priority is priority) for priority in Priority),
        float(sum(g.count for g in job.groups if g.role is Role.WORKER)),
        worker.demand.cpu_cores if worker else 0.0,
        worker.demand.gpus if worker else 0.0,
        worker.demand.memory_gib if worker else 0.0,
        worker.demand.gpu_memory_gib if worker else 0.0,
        float(sum(g.count for g in job.groups if g.role is Role.PARAMETER_SERVER)),
        server.demand.cpu_cores if server else 0.0,
        server.demand.memory_gib if server else 0.0,
        max(0.0, job.params_millions),
        float(max(0, job.batch_size)),
        max(0.0, job.total_epochs),
        float(job.gpu_sharing.allowed),
    ]
    raw = np.asarray(values, dtype=np.float32)
    raw[_IS_LOG] = np.log1p(raw[_IS_LOG])
    return np.asarray(raw * _JOB_SCALES, dtype=np.float32)


def gpu_relative_speed(model: str) -> float:
    """Speed of a GPU model relative to a V100 by the table above; 1 for one that is not in it."""
    name = canonical(model)
    if name in GPU_RELATIVE_SPEED:
        return GPU_RELATIVE_SPEED[name]
    return next((speed for known, speed in GPU_RELATIVE_SPEED.items() if known in name), 1.0)


def encode_utilisation(view: ClusterView) -> Float32:
    """(M, 6) LDWP's S_j: reported utilisation, else the share that jobs hold."""
    held = 1.0 - view.free * view.inverse_capacity
    gpus = np.maximum(view.gpu_exists.sum(axis=1), 1)
    allocated = (
        held[CPU],
        (gpus - view.free_gpus()) / gpus,
        held[MEMORY],
        held[GPU_MEMORY],
        held[NETWORK],
        held[NETWORK],
    )
    reported = (view.telemetry[0], view.telemetry[2], view.telemetry[1], view.telemetry[3])
    network = np.maximum(view.capacity[NETWORK], 1e-9)
    links = (view.telemetry[5] / network, view.telemetry[6] / network)
    columns = [np.where(np.isnan(r), a, r) for r, a in zip((*reported, *links), allocated, strict=True)]
    present = view.capacity[[CPU, GPUS, MEMORY, GPU_MEMORY, NETWORK, NETWORK]] > 0
    return np.asarray(np.clip(np.stack(columns), 0.0, 1.0) * present, dtype=np.float32).T


def _write_telemetry(out: Float32, telemetry: FloatArray, network_gbps: FloatArray) -> None:
    """Temperature margin, utilisation and link rates where they were reported; zero with its flag at zero elsewhere."""
    margin = telemetry[9] - np.fmax(telemetry[7], telemetry[8])
    known = ~np.isnan(margin)
    out[:, 15] = known
    out[known, 16] = margin[known]
    out[:, 17] = ~np.isnan(telemetry[0])
    network = np.maximum(network_gbps, 1e-9)
    for column, values in (
        (18, telemetry[0]),
        (19, telemetry[2]),
        (20, telemetry[5] / network),
        (21, telemetry[6] / network),
    ):
        out[:, column] = np.nan_to_num(values, nan=0.0)


class _Positions:
    """Where a node of the view is among the encoded ones: itself, or its place in `rows`; −1 if it is not there."""

    def __init__(self, size: int, rows: IntArray | None) -> None:
        self._position: IntArray | None = None
        if rows is not None:
            self._position = np.full(size, -1, dtype=np.int64)
            self._position[rows] = np.arange(len(rows))

    def of(self, placement: Float32) -> "_Cells":
        return _Cells(placement, self._position)


@dataclass(frozen=True, slots=True)
class _Cells:
    """One job's (M or C, 2) placement, written through the positions."""

    placement: Float32
    position: IntArray | None

    def write(self, held: "_Held") -> None:
        nodes, roles = held.cells
        if self.position is None:
            self.placement[nodes, roles] = held.counts
            return
        found = self.position[nodes]
        is_there = found >= 0
        self.placement[found[is_there], roles[is_there]] = held.counts[is_there]


@dataclass(frozen=True, slots=True)
class _Held:
    """Where a job's tasks are: (node, role) cells with their counts, and the three features that follow from them."""

    assignments: Sequence[Assignment]
    index: Mapping[str, int]
    cells: tuple[IntArray, IntArray]
    counts: Float32
    summary: tuple[float, float, float]


def _held(assignments: Sequence[Assignment], index: Mapping[str, int]) -> _Held:
    counted: dict[tuple[int, int], int] = {}
    for assignment in assignments:
        m = index.get(assignment.node)
        if m is not None:
            cell = (m, int(assignment.role is not Role.WORKER))
            counted[cell] = counted.get(cell, 0) + 1
    nodes = np.asarray([m for m, _ in counted], dtype=np.int64)
    roles = np.asarray([role for _, role in counted], dtype=np.int64)
    totals = [sum(count for (_, role), count in counted.items() if role == wanted) for wanted in (0, 1)]
    summary = (0.25 * totals[0], 0.25 * totals[1], 0.25 * len({m for m, _ in counted}))
    return _Held(assignments, index, (nodes, roles), np.asarray(list(counted.values()), dtype=np.float32), summary)
