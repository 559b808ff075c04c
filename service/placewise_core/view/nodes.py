"""The arrays of a ClusterView and how they are built from nodes. Never applies an event and holds no job.

Layout: resource arrays are (R, M), GPU arrays (M, G), telemetry (T, M); M nodes, G = most GPUs on any node.
"""

import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, Node, NodeState, NodeTelemetry, RunningJob
from placewise_core.domain.job import Job, JobId, Resources, quantise

# Rows of the resource arrays; further rows are the extended resources of the cluster, sorted by name.
CPU, MEMORY, GPU_MEMORY, NETWORK, GPUS = range(5)
RESOURCE_COLUMNS = ("cpu_cores", "memory_gib", "gpu_memory_gib", "network_gbps", "gpus")


class TelemetryRow(IntEnum):
    """Rows of the telemetry array."""

    CPU_UTIL = 0
    MEMORY_UTIL = 1
    GPU_UTIL = 2
    GPU_MEMORY_UTIL = 3
    CACHE_UTIL = 4
    TX_GBPS = 5
    RX_GBPS = 6
    CPU_CELSIUS = 7
    GPU_CELSIUS = 8
    LIMIT_CELSIUS = 9
    POWER_WATTS = 10
    AMBIENT_CELSIUS = 11


TELEMETRY_COLUMNS = tuple(row.name.lower() for row in TelemetryRow)
CELSIUS = slice(int(TelemetryRow.CPU_CELSIUS), TelemetryRow.LIMIT_CELSIUS + 1)  # of CPU and GPU, and their limit

_CACHED_KINDS = 16_384
_CACHED_DEMANDS = 4096  # distinct demands kept as vectors; jobs of one trace ask for a few hundred
_KEPT_SLOTS = 64  # demands whose slots are kept: few, as each is as long as the cluster
_DIGESTED_JOBS = 8
_MOST_TOUCHED = 64  # claims and give-backs whose nodes are known without a look at all nodes


@frozen
class GpuTenant:
    """A job on one GPU: the fraction it holds there (1 for a whole one), its memory, whether it shares, its limit."""

    job_id: JobId
    fraction: float
    memory_gib: float
    is_sharing: bool
    model: str
    max_slowdown: float


@frozen
class Need:
    """Amounts of a demand, GPUs counted whole: rows (K,), their amounts (K, 1), both again as `pairs`, and the least
    that must be free in every row (R, 1). A row not asked for has -inf: a host may report more in use than it owns.
    `exact`: as `pairs`, with fractions of GPUs."""

    rows: IntArray
    amounts: FloatArray
    least: FloatArray
    pairs: tuple[tuple[int, float], ...]
    exact: tuple[tuple[int, float], ...]


@frozen
class NodeColumns:
    """What nodes report beside their layout, as columns for N of them: (N,), (3, N) hardware, (T, N) telemetry."""

    nodes: tuple[Node, ...]
    is_ready: BoolArray
    hardware: FloatArray
    telemetry: FloatArray
    observe_time_s: FloatArray

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "NodeColumns":
        hardware = [(node.hardware.cpu_ghz, node.hardware.cache_mib, node.hardware.gpu_ghz) for node in nodes]
        return cls(
            nodes=tuple(nodes),
            is_ready=np.array([node.state is NodeState.READY for node in nodes], dtype=np.bool_),
            hardware=np.array(hardware, dtype=np.float64).reshape(-1, 3).T,
            telemetry=np.array([telemetry_row(node.telemetry) for node in nodes], dtype=np.float64)
            .reshape(-1, len(TELEMETRY_COLUMNS))
            .T,
            observe_time_s=np.array([node.telemetry.observe_time_s for node in nodes], dtype=np.float64),
        )


# Tenants of a GPU that a newcomer would share: (model, limit) of each, sorted.
CoTenants = tuple[tuple[str, float], ...]


class NodeArrays:
    """Inventory, telemetry and usage of nodes; usage starts at nothing."""

    def __init__(self) -> None:
        self.usage_stamp = 0  # grows with every claim and give-back
        self._touched: list[int] = []  # the nodes of the last claims and give-backs, in their order
        self.layout_stamp = 0  # grows when nodes come, go or change their GPUs
        self.telemetry_stamp = 0  # grows with every telemetry report
        self._last_demand: tuple[Resources | None, FloatArray | None] = (None, None)
        self._digested: tuple[tuple[int, ...], int] = ((), 0)  # stamps, and the digest at them
        self.lineage = object()  # the same in a view and its forks
        # By policy: results kept for its next decision on this view. The policy checks that they still hold.
        self.notes: WeakKeyDictionary[object, Any] = WeakKeyDictionary()

    @property
    def size(self) -> int:
        """M, the number of nodes."""
        return len(self.nodes)

    def _stamp(self, m: int) -> None:
        self.usage_stamp += 1
        self.node_stamp[m] = self.usage_stamp
        self._touched.append(m)
        if len(self._touched) > _MOST_TOUCHED:
            del self._touched[: _MOST_TOUCHED // 2]

    def _own(self, m: int) -> None:
        """Copies the lists of node m, before the first writing since the view was forked."""
        self._tenants[m] = dict(self._tenants[m])
        self._jobs_on[m] = {job_id: list(tasks) for job_id, tasks in self._jobs_on[m].items()}
        self._idle_gpus[m] = list(self._idle_gpus[m])
        self._is_borrowed[m] = 0

    def _vacate(self, m: int, gpus: Sequence[int]) -> None:
        """GPUs, in ascending order, that served one job serve nobody."""
        for g in gpus:
            del self._tenants[m][g]
        at = gpus_at(m, gpus)
        self.gpu_tenant_count[at] = 0
        self.gpu_is_exclusive[at] = False
        self.gpu_fraction_free[at] = 1.0
        self.gpu_memory_free[at] = self.gpu_memory[at]
        self.gpu_co_tenants[at] = 0
        self._idle_gpus[m] = sorted([*self._idle_gpus[m], *[g for g in gpus if self.gpu_exists[m, g]]])

    def _move_last(self, m: int, job_id: JobId) -> None:
        """Moves a job behind the others of node m: sums over its jobs run in this order."""
        there = self._jobs_on[m]
        if job_id not in there or next(reversed(there)) == job_id:
            return
        if self._is_borrowed[m]:
            self._own(m)
            there = self._jobs_on[m]
        there[job_id] = there.pop(job_id)
        by_gpu = self._tenants[m]
        for g, tenants in by_gpu.items():
            if len(tenants) > 1:
                by_gpu[g] = tuple(sorted(tenants, key=lambda tenant: tenant.job_id == job_id))
        self._stamp(m)

    def touched_since(self, stamp: int) -> list[int]:
        """The nodes with claims or give-backs since `usage_stamp` was this; one may come more than once."""
        count = self.usage_stamp - stamp
        if count <= len(self._touched):
            return self._touched[-count:] if count else []
        changed: list[int] = (self.node_stamp > stamp).nonzero()[0].tolist()
        return changed

    def _digest(self, step: int, first: int, before: int) -> int:
        """32 bits over usage and telemetry of every `step`-th node from `first` on, and over `before`."""
        stamps = (self.usage_stamp, self.telemetry_stamp, self.layout_stamp, step, first, before)
        if self._digested[0] != stamps:
            self._digested = (stamps, self._digest_nodes(slice(first, None, step), before))
        return self._digested[1]

    def _digest_nodes(self, at: slice, found: int) -> int:
        for columns in (self.free, self.telemetry):
            found = zlib.crc32(columns[:, at].tobytes(), found)
        for rows in (self.gpu_tenant_count, self.gpu_memory_free, self.task_count, self.is_ready, self.observe_time_s):
            found = zlib.crc32(rows[at].tobytes(), found)
        return found

    def has_telemetry(self) -> bool:
        """False while no node has reported any."""
        return self._has_telemetry

    def is_hot(self) -> BoolArray:
        """(M,) at or over the reported temperature limit; False where limit or temperature is unknown. Do not write."""
        return self._is_hot

    def has_racks(self) -> bool:
        """False while no node has named a rack."""
        return bool(self._rack_ids)

    def node_id(self, m: int) -> str:
        return self.nodes[m].id

    def demand_vector(self, demand: Resources) -> FloatArray | None:
        """(R,) quantised demand, read-only; None if it names an extended resource that no node has."""
        last, vector = self._last_demand
        if last is demand:  # the tasks of a group share theirs
            return vector
        amounts = (demand.cpu_cores, demand.memory_gib, demand.gpu_memory_gib, demand.network_gbps, demand.gpus)
        if demand.extended:
            return self._extended_vector(amounts, demand)
        vector = self._demands.get(amounts)
        if vector is None:
            vector = self._demands[amounts] = self._quantised(amounts)
        self._last_demand = (demand, vector)
        return vector

    def dominant_share(self, demand: Resources) -> float:
        """Largest share of `demand` in the largest node's capacity of any resource; inf if no node has the resource."""
        vector = self.demand_vector(demand)
        if vector is None:
            return math.inf
        key = vector.tobytes()
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = float((vector / np.maximum(self._largest, 1e-9)).max())
        return share

    def _extended_vector(self, amounts: tuple[float, ...], demand: Resources) -> FloatArray | None:
        vector = np.zeros(len(self.columns))
        vector[:5] = amounts
        for name, amount in demand.extended.items():
            row = self._extended_rows.get(name)
            if row is not None:
                vector[row] = amount
            elif amount > 0:
                return None
        return self._quantised(vector)

    def _quantised(self, amounts: Sequence[float] | FloatArray) -> FloatArray:
        vector = np.zeros(len(self.columns))
        vector[: len(amounts)] = amounts
        vector = np.floor(vector * 2.0**20) / 2.0**20  # as job.quantise
        vector.flags.writeable = False
        return vector

    def gpu_model_id(self, model: str) -> int:
        """The number that stands for a GPU model in `gpu_model`; -1 if no node has it."""
        return self._gpu_model_ids.get(model, -1)

    def gpu_model_names(self) -> tuple[str, ...]:
        """GPU model names by their number."""
        return tuple(self._gpu_model_ids)

    def _rebuild(self, nodes: Sequence[Node]) -> None:
        self.layout_stamp += 1
        self.nodes: list[Node] = list(nodes)
        self.index: dict[str, int] = {node.id: m for m, node in enumerate(self.nodes)}
        extended = sorted({name for node in nodes for name in node.capacity.extended})
        self.columns: tuple[str, ...] = (*RESOURCE_COLUMNS, *extended)
        self._extended_rows = {name: 5 + i for i, name in enumerate(extended)}
        m, r = len(nodes), len(self.columns)
        g = max((gpu.index + 1 for node in nodes for gpu in node.gpus), default=0)
        self.capacity: FloatArray = np.zeros((r, m))
        self.telemetry: FloatArray = np.full((len(TELEMETRY_COLUMNS), m), np.nan)
        self.hardware: FloatArray = np.zeros((3, m))  # rows: CPU GHz, cache MiB, GPU GHz; 0 where unknown
        self.observe_time_s: FloatArray = np.zeros(m)
        self._has_telemetry = False
        self._is_hot: BoolArray = np.zeros(m, dtype=np.bool_)
        self.is_ready: BoolArray = np.zeros(m, dtype=np.bool_)
        self.rack: IntArray = np.full(m, -1, dtype=np.int64)
        self._rack_ids: dict[str, int] = {}
        self.gpu_exists: BoolArray = np.zeros((m, g), dtype=np.bool_)
        self.gpu_model: IntArray = np.full((m, g), -1, dtype=np.int64)
        self.gpu_memory: FloatArray = np.zeros((m, g))
        self.max_jobs_per_gpu: IntArray = np.ones(m, dtype=np.int64)
        self.cpu_ghz: FloatArray = np.zeros(m)
        self._gpu_model_ids: dict[str, int] = {}
        for i, node in enumerate(self.nodes):
            self._write_inventory(i, node)
            self._write_node(i, node)
        self._least_gpu_memory = float(self.gpu_memory.min(where=self.gpu_exists, initial=np.inf))
        self._reset_usage()

    def _write_inventory(self, m: int, node: Node) -> None:
        c = node.capacity
        self.capacity[:5, m] = (c.cpu_cores, c.memory_gib, c.gpu_memory_gib, c.network_gbps, c.gpus)
        for name, amount in c.extended.items():
            self.capacity[self._extended_rows[name], m] = amount
        self.max_jobs_per_gpu[m] = max(1, node.max_jobs_per_gpu)
        for gpu in node.gpus:
            self.gpu_exists[m, gpu.index] = True
            self.gpu_memory[m, gpu.index] = gpu.memory_gib
            self.gpu_model[m, gpu.index] = self._gpu_model_ids.setdefault(gpu.model, len(self._gpu_model_ids))

    def _write_node(self, m: int, node: Node) -> None:
        self.telemetry_stamp += 1
        self.nodes[m] = node
        self.is_ready[m] = node.state is NodeState.READY
        self.hardware[:, m] = (node.hardware.cpu_ghz, node.hardware.cache_mib, node.hardware.gpu_ghz)
        self.cpu_ghz[m] = node.hardware.cpu_ghz
        self.rack[m] = self._rack_ids.setdefault(node.rack, len(self._rack_ids)) if node.rack else -1
        row = telemetry_row(node.telemetry)
        self.telemetry[:, m] = row
        cpu, gpu, limit = row[CELSIUS]
        self._is_hot[m] = cpu >= limit or gpu >= limit  # False where either is NaN
        self.observe_time_s[m] = node.telemetry.observe_time_s
        self._has_telemetry = self._has_telemetry or node.telemetry.observe_time_s > 0

    def write_columns(self, columns: "NodeColumns") -> None:
        """As `_write_node` for each: nodes that are there, with the layout that they have."""
        self.telemetry_stamp += 1
        rows = np.fromiter((self.index[node.id] for node in columns.nodes), np.int64, len(columns.nodes))
        for m, node in zip(rows.tolist(), columns.nodes, strict=True):
            self.nodes[m] = node
            self.rack[m] = self._rack_ids.setdefault(node.rack, len(self._rack_ids)) if node.rack else -1
        self.is_ready[rows] = columns.is_ready
        self.hardware[:, rows] = columns.hardware
        self.cpu_ghz[rows] = columns.hardware[0]
        self.telemetry[:, rows] = columns.telemetry
        cpu, gpu, limit = columns.telemetry[CELSIUS]
        self._is_hot[rows] = (cpu >= limit) | (gpu >= limit)  # False where either is NaN
        self.observe_time_s[rows] = columns.observe_time_s
        self._has_telemetry = self._has_telemetry or bool((columns.observe_time_s > 0).any())

    def _reset_usage(self) -> None:
        """Derives the arrays from the inventory; nothing is in use then."""
        self.capacity = np.floor(self.capacity * 2.0**20) / 2.0**20
        self._largest: FloatArray = self.capacity.max(axis=1, initial=0.0)
        self._all_gpus: list[list[int]] = [np.flatnonzero(row).tolist() for row in self.gpu_exists]  # ascending
        self._reset_load()
        self._demands: Bounded[tuple[float, ...], FloatArray] = Bounded(_CACHED_DEMANDS)
        # By job: its kind, as pools of resources know it. Jobs that wait are asked about again and again.
        self.kinds: Bounded[str, tuple[Job, object]] = Bounded(_CACHED_KINDS)
        self.kind_marks: Bounded[tuple[object, ...], object] = Bounded(_CACHED_KINDS)  # by all in which kinds differ
        self._last_demand = (None, None)
        self._shares: Bounded[bytes, float] = Bounded(_CACHED_DEMANDS)  # by demand: dominant_share
        self._needs: Bounded[bytes, Need] = Bounded(_CACHED_DEMANDS)  # by demand
        cpu_scale = 1.0 + self.capacity[CPU]
        self._cpu_scale: list[float] = cpu_scale.tolist()
        self._clear_usage()

    def _clear_slots(self) -> None:
        # By demand: slots, and the usage stamp at which they were counted.
        self._slots: Bounded[bytes, tuple[FloatArray, int]] = Bounded(_KEPT_SLOTS)
        self._counted_ahead = -1  # usage_stamp when slots were last counted ahead

    def _clear_usage(self) -> None:
        """Clears the usage: the arrays of claims are new, and shared with no earlier state."""
        self.free: FloatArray = self.capacity.copy()
        # As `free`, but with the GPUs that serve nobody at all in the row of GPUs: what countable tasks are counted on.
        self.countable_free: FloatArray = self.capacity.copy()
        self._free_gpus: IntArray = self.gpu_exists.sum(axis=1)
        self.countable_free[GPUS] = self._free_gpus
        self.task_count: IntArray = np.zeros(self.size, dtype=np.int64)
        self.cpu_task_count: IntArray = np.zeros(self.size, dtype=np.int64)  # those without a GPU
        self.gpu_tenant_count: IntArray = np.zeros(self.gpu_exists.shape, dtype=np.int64)
        self.gpu_is_exclusive: BoolArray = np.zeros(self.gpu_exists.shape, dtype=np.bool_)
        self.gpu_fraction_free: FloatArray = np.ones(self.gpu_exists.shape)
        self.gpu_memory_free: FloatArray = self.gpu_memory.copy()
        self.gpu_co_tenants: IntArray = np.zeros(self.gpu_exists.shape, dtype=np.int64)
        self.shared_gpus = 0  # GPUs that serve several tenants
        self._co_tenants: dict[CoTenants, int] = {(): 0}
        # By node; borrowed lists belong to another view as well, and are copied before they are written.
        self._idle_gpus: list[list[int]] = list(self._all_gpus)
        nobody: dict[int, tuple[GpuTenant, ...]] = {}
        self._tenants: list[dict[int, tuple[GpuTenant, ...]]] = [nobody] * self.size
        nothing: dict[JobId, list[tuple[str, Resources]]] = {}
        self._jobs_on: list[dict[JobId, list[tuple[str, Resources]]]] = [nothing] * self.size
        self._is_borrowed = bytearray(b"\x01") * self.size
        self._tightness: FloatArray = 1.0 / (
            2.0 + self._free_gpus + self.free[CPU].clip(min=0.0) / (1.0 + self.capacity[CPU])
        )
        self._load: FloatArray = np.zeros(self.size)
        self._clear_slots()
        # Grows with every claim and release, over all nodes: a value derived from a node's jobs is valid
        # while the node's stamp is the one it was derived at.
        self.usage_stamp += 1
        self._touched = []
        self.node_stamp: IntArray = np.full(self.size, self.usage_stamp, dtype=np.int64)

    def _reset_load(self) -> None:
        """Load = Σ 1 − free/capacity over CPU, memory, network and GPUs; a resource a node lacks is no load."""
        whole = self.capacity
        is_there = whole > 0
        self.inverse_capacity: FloatArray = np.where(is_there, 1.0 / np.where(is_there, whole, 1.0), 0.0)
        weights = self.inverse_capacity[[CPU, MEMORY, NETWORK, GPUS]]
        # The same products in the same order as in _touch, so that a claim given back leaves no rounding behind.
        base = whole[CPU] * weights[0] + whole[MEMORY] * weights[1] + whole[NETWORK] * weights[2]
        base = base + whole[GPUS] * weights[3]
        self.load_base: FloatArray = base  # (M,) Σ capacity/capacity; do not write
        self._load_base: list[float] = base.tolist()
        self._load_weights: list[tuple[float, float, float, float]] = list(zip(*weights.tolist(), strict=True))

    def _same_layout(self, node: Node) -> bool:
        m = self.index.get(node.id)
        if m is None:
            return False
        old = self.nodes[m]
        return (
            old.capacity == node.capacity
            and old.max_jobs_per_gpu == node.max_jobs_per_gpu
            and len(old.gpus) == len(node.gpus)
            and all(
                (a.index, a.model, a.memory_gib) == (b.index, b.model, b.memory_gib)
                for a, b in zip(old.gpus, node.gpus, strict=True)
            )
        )


def telemetry_row(telemetry: NodeTelemetry) -> tuple[float, ...]:
    """(T,) in the order of TELEMETRY_COLUMNS; NaN where unknown."""
    return tuple(getattr(telemetry, name) for name in TELEMETRY_COLUMNS)


def tenant_of(job: Job, assignment: Assignment) -> GpuTenant:
    """The tenant that a task of the job is on each of its GPUs."""
    demand = assignment.demand
    gpus = max(1, len(assignment.gpu_indices))
    is_fraction = demand.is_gpu_fraction
    return GpuTenant(
        job_id=job.id,
        fraction=quantise(demand.gpus) if is_fraction else 1.0,
        memory_gib=quantise(demand.gpu_memory_gib / gpus),
        is_sharing=is_fraction or job.gpu_sharing.allowed,
        model=job.model,
        max_slowdown=job.gpu_sharing.max_slowdown,
    )


def runs_of_alike(assignments: Sequence[Assignment]) -> Iterator[Sequence[Assignment]]:
    """Tasks that follow each other and take the same amounts of the same node; which GPUs may differ."""
    start = 0
    while start < len(assignments):
        first, end = assignments[start], start + 1
        while end < len(assignments) and _is_alike(first, assignments[end]):
            end += 1
        yield assignments[start:end]
        start = end


def _is_alike(one: Assignment, other: Assignment) -> bool:
    return one.node == other.node and one.demand is other.demand and len(one.gpu_indices) == len(other.gpu_indices)


def gpus_at(m: int, gpus: Sequence[int]) -> tuple[int, int | slice | Sequence[int]]:
    """The index of GPUs, in ascending order, of node m. A slice is the faster one."""
    first, last = gpus[0], gpus[-1]
    if len(gpus) == 1:
        return m, first
    return m, slice(first, last + 1) if last - first == len(gpus) - 1 else gpus


def digest_of_last(jobs: dict[JobId, RunningJob]) -> int:
    """32 bits over the number of jobs and the order of the last ones."""
    return zlib.crc32("\n".join(itertools.islice(reversed(jobs), _DIGESTED_JOBS)).encode(), len(jobs))
