"""The one encoder of observations: what every net sees, in service, simulator and trainer alike. Decides nothing.

COLUMNS is the table of everything encoded: name, unit, scale. `encode` turns a view and a job batch into arrays of
tokens whose sizes follow the cluster (M nodes, J jobs), so that one net serves any size. `feature_schema()` carries a
hash that a bundle must match. Unknown values are 0 with a flag beside them, never NaN.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewise_core.cluster import Assignment, RunningJob
from placewise_core.job import Architecture, Job, JobId, Priority, Role
from placewise_core.speed.model_names import canonical, nearest
from placewise_core.view import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK, ClusterView, FloatArray, IntArray

Float32 = NDArray[np.float32]

# Harmony's one-hot x_n: the models that were measured. A model that is none of them takes the nearest of its family.
MODEL_VOCABULARY = (
    "resnet50",
    "vgg16",
    "resnext110",
    "seq2seq",
    "ctc",
    "wlm",
    "alexnet",
    "googlenet",
    "inceptionv3",
    "resnet18",
    "lstm",
    "bert",
    "gpt2",
    "transformer",
    "deepspeech2",
    "neumf",
    "recommendation",
    "cyclegan",
)
# Speed relative to a V100: measured ResNet-50 seconds per sample (K80, T4, A100), else peak single-precision rates.
GPU_RELATIVE_SPEED: Mapping[str, float] = {
    "k80": 0.124,
    "p4": 0.35,
    "t4": 0.63,
    "p100": 0.59,
    "1080ti": 0.72,
    "2080ti": 0.86,
    "v100": 1.0,
    "a100": 1.38,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One feature: encoded = value × scale, or log(1 + value) × scale where `is_log`."""

    name: str
    unit: str
    scale: float = 1.0
    is_log: bool = False


NODE_COLUMNS = (
    Column("cpu_capacity", "cores", 0.2, is_log=True),
    Column("memory_capacity", "GiB", 0.1, is_log=True),
    Column("network_capacity", "Gbit/s", 0.2, is_log=True),
    Column("gpus", "GPUs", 0.125),
    Column("free_cpu", "cores", 0.125),
    Column("free_gpus", "GPUs", 0.5),
    Column("free_cpu_share", "1"),
    Column("free_memory_share", "1"),
    Column("free_network_share", "1"),
    Column("free_gpu_share", "1"),
    Column("free_gpu_memory_share", "1"),
    Column("load", "1", 0.25),
    Column("tasks", "tasks", 0.125),
    Column("gpu_speed", "V100 = 1"),
    Column("is_usable", "flag"),
    Column("has_temperature", "flag"),
    Column("temperature_margin", "K", 0.02),
    Column("has_utilisation", "flag"),
    Column("cpu_util", "1"),
    Column("gpu_util", "1"),
    Column("tx_share", "1"),
    Column("rx_share", "1"),
)
JOB_COLUMNS = (
    *(Column(f"is_{name}", "flag") for name in MODEL_VOCABULARY),
    Column("is_known_model", "flag"),
    *(Column(f"is_{kind.value.lower()}", "flag") for kind in Architecture),
    *(Column(f"is_{priority.value.lower()}", "flag") for priority in Priority),
    Column("workers", "tasks", 0.25),
    Column("worker_cpu", "cores", 0.25),
    Column("worker_gpus", "GPUs", 1.0),
    Column("worker_memory", "GiB", 0.05),
    Column("worker_gpu_memory", "GiB", 0.05),
    Column("servers", "tasks", 0.25),
    Column("server_cpu", "cores", 0.25),
    Column("server_memory", "GiB", 0.05),
    Column("params", "millions", 0.2, is_log=True),
    Column("batch", "samples", 0.1, is_log=True),
    Column("epochs", "epochs", 0.2, is_log=True),
    Column("allows_sharing", "flag"),
    # from here on: what changes while the job is placed and runs
    Column("is_new", "flag"),
    Column("is_current", "flag"),
    Column("placed_workers", "tasks", 0.25),
    Column("placed_servers", "tasks", 0.25),
    Column("nodes_used", "nodes", 0.25),
    Column("epochs_left_share", "1"),
)
PLACEMENT_COLUMNS = (Column("workers_here", "tasks", 0.5), Column("servers_here", "tasks", 0.5))
# LDWP's S_j and the task's identity (TID, TSize).
UTILISATION_COLUMNS = (
    Column("cpu_util", "1"),
    Column("gpu_util", "1"),
    Column("memory_util", "1"),
    Column("gpu_memory_util", "1"),
    Column("uplink", "share of the NIC"),
    Column("downlink", "share of the NIC"),
)
# A part: a job's tasks on one node, as the reward model sees it (part_tokens.py), after what `encode_job` gives.
PART_COLUMNS = (
    Column("is_new", "flag"),
    Column("placed_workers", "tasks", 0.25),
    Column("placed_servers", "tasks", 0.25),
    Column("nodes_used", "nodes", 0.25),
    Column("has_step", "flag"),
    Column("worker_step", "ms", 0.2, is_log=True),
    Column("has_speed", "flag"),
    Column("speed", "linear speed = 1"),
    Column("workers_here", "tasks", 0.5),
    Column("servers_here", "tasks", 0.5),
    Column("traffic", "ms at line rate", 0.2, is_log=True),
    Column("traffic_share", "of a step"),
    Column("cpu_capacity", "cores", 0.2, is_log=True),
    Column("network_capacity", "Gbit/s", 0.2, is_log=True),
    Column("gpus", "GPUs", 0.125),
    Column("gpu_speed", "mean of the cluster = 1"),
    Column("jobs_on_node", "jobs", 0.25),
    Column("tasks_on_node", "tasks", 0.125),
    Column("cpu_held", "1"),
    Column("gpus_held", "1"),
    Column("traffic_of_others", "of their steps"),
)
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "nodes": NODE_COLUMNS,
    "jobs": JOB_COLUMNS,
    "placement": PLACEMENT_COLUMNS,
    "parts": PART_COLUMNS,
    "utilisation": UTILISATION_COLUMNS,
}
NODE_FEATURES, JOB_FEATURES = len(NODE_COLUMNS), len(JOB_COLUMNS)
_STATIC_JOB_FEATURES = [column.name for column in JOB_COLUMNS].index("is_new")
PART_FEATURES = _STATIC_JOB_FEATURES + len(PART_COLUMNS)


def feature_schema() -> dict[str, object]:
    """The table as plain data with its hash: what a bundle was trained on must be what the service encodes."""
    tables = {
        name: [[column.name, column.unit, column.scale, column.is_log] for column in columns]
        for name, columns in COLUMNS.items()
    }
    return {"tables": tables, "hash": hashlib.sha256(repr(sorted(tables.items())).encode()).hexdigest()}


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
        self._static: dict[JobId, tuple[Job, Float32]] = {}
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
        row[:_STATIC_JOB_FEATURES] = self._static_of(job)
        if not done:
            row[_STATIC_JOB_FEATURES:] = (1.0, is_current, 0.0, 0.0, 0.0, 1.0)
            return
        held = _held(done, view.index)
        where.write(held)
        row[_STATIC_JOB_FEATURES:] = (1.0, is_current, *held.summary, 1.0)

    def _write_running(self, row: Float32, where: "_Cells", running: RunningJob, view: ClusterView) -> None:
        row[:_STATIC_JOB_FEATURES] = self._static_of(running.job)
        held = self._held_by(running, view)
        where.write(held)
        left = 1.0
        if running.job.total_epochs > 0:
            left = min(1.0, max(0.0, 1.0 - running.epochs_done / running.job.total_epochs))
        row[_STATIC_JOB_FEATURES:] = (0.0, 0.0, *held.summary, left)

    def _static_of(self, job: Job) -> Float32:
        found = self._static.get(job.id)
        if found is None or found[0] is not job:
            self._forget()
            found = self._static[job.id] = (job, encode_job(job))
        return found[1]

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


_REMEMBERED = 20_000
_NODE_SCALES = np.asarray([column.scale for column in NODE_COLUMNS], dtype=np.float32)
_JOB_SCALES = np.asarray([c.scale for c in JOB_COLUMNS[:_STATIC_JOB_FEATURES]], dtype=np.float32)
_IS_LOG = np.asarray([c.is_log for c in JOB_COLUMNS[:_STATIC_JOB_FEATURES]], dtype=np.bool_)


def encode_job(job: Job) -> Float32:
    """(_STATIC_JOB_FEATURES,) what is known of a job before it is placed."""
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
