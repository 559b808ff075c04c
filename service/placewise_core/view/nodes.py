"""Nodes: the inventory and the reports of a cluster's nodes, as arrays. Never applies an event and holds no job.

Layout: resource arrays are (R, M), GPU arrays (M, G), telemetry (T, M); M nodes, G = most GPUs on any node.
"""

import copy
import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.cells import number_of
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Hardware, Node, NodeState, NodeTelemetry
from placewise_core.domain.job import Job, Resources, TaskGroup

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
_of_report = struct.Struct(f"<{len(TELEMETRY_COLUMNS) + 4}d").pack
HARDWARE_ROWS = 4
CELSIUS = slice(int(TelemetryRow.CPU_CELSIUS), TelemetryRow.LIMIT_CELSIUS + 1)  # of CPU and GPU, and their limit

Words = NDArray[np.uint64]

_CACHED_KINDS = 16_384
_CACHED_SELECTORS = 64  # distinct node selectors whose nodes are kept
_CACHED_DEMANDS = 4096  # distinct demands kept as vectors; jobs of one trace ask for a few hundred
# Written in place by reports that leave the layout as it is: a fork has its own.
_REPORTED = (
    *("telemetry", "hardware", "cpu_ghz", "rack", "is_ready", "is_hot", "observe_time_s"),
    *("report_stamp", "report_number"),
)


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
    """What nodes report beside their layout, as columns for N of them: (N,), (H, N) hardware, (T, N) telemetry."""

    nodes: tuple[Node, ...]
    is_ready: BoolArray
    hardware: FloatArray
    telemetry: FloatArray
    observe_time_s: FloatArray
    report_number: Words

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> "NodeColumns":
        rows = [telemetry_row(node.telemetry) for node in nodes]
        hardware = [hardware_row(node.hardware) for node in nodes]
        return cls(
            nodes=tuple(nodes),
            is_ready=np.array([node.state is NodeState.READY for node in nodes], dtype=np.bool_),
            hardware=np.array(hardware, dtype=np.float64).reshape(-1, HARDWARE_ROWS).T,
            telemetry=np.array(rows, dtype=np.float64).reshape(-1, len(TELEMETRY_COLUMNS)).T,
            observe_time_s=np.array([node.telemetry.observe_time_s for node in nodes], dtype=np.float64),
            report_number=np.array([*map(number_of_report, nodes, rows)], dtype=np.uint64),
        )


class Nodes:
    """Capacity, hardware and telemetry of nodes, and the demands of tasks in the units of these arrays."""

    def __init__(self, records: Sequence[Node], before: "Nodes | None" = None) -> None:
        """`before`: the nodes of the cluster until some came, went or changed their capacity."""
        self.layout_stamp: int = 1 if before is None else before.layout_stamp + 1  # another for other nodes or GPUs
        self.telemetry_stamp: int = 0 if before is None else before.telemetry_stamp  # grows with every report
        # (M,) of the node's last report: the stamp, and number_of_report or 0 if it was not worked out yet
        self.report_stamp: IntArray = np.zeros(len(records), dtype=np.int64)
        self.report_number: Words = np.zeros(len(records), dtype=np.uint64)
        self.records: list[Node] = list(records)
        self.size = len(records)  # M
        self.index: dict[str, int] = {node.id: m for m, node in enumerate(records)}
        extended = sorted({name for node in records for name in node.capacity.extended})
        self.columns: tuple[str, ...] = (*RESOURCE_COLUMNS, *extended)
        self._extended_rows = {name: 5 + i for i, name in enumerate(extended)}
        m, r = self.size, len(self.columns)
        g = max((gpu.index + 1 for node in records for gpu in node.gpus), default=0)
        self.capacity: FloatArray = np.zeros((r, m))
        self.telemetry: FloatArray = np.full((len(TELEMETRY_COLUMNS), m), np.nan)
        self.hardware: FloatArray = np.zeros((HARDWARE_ROWS, m))  # as hardware_row
        self.observe_time_s: FloatArray = np.zeros(m)
        self.has_telemetry = False  # True once a node has reported any
        # (M,) at or over the reported temperature limit; False where limit or temperature is unknown.
        self.is_hot: BoolArray = np.zeros(m, dtype=np.bool_)
        self.is_ready: BoolArray = np.zeros(m, dtype=np.bool_)
        self.rack: IntArray = np.full(m, -1, dtype=np.int64)
        self._rack_ids: dict[str, int] = {}
        self.gpu_exists: BoolArray = np.zeros((m, g), dtype=np.bool_)
        self.gpu_model: IntArray = np.full((m, g), -1, dtype=np.int64)
        self.gpu_memory: FloatArray = np.zeros((m, g))
        self.max_jobs_per_gpu: IntArray = np.ones(m, dtype=np.int64)
        self.cpu_ghz: FloatArray = np.zeros(m)
        self._gpu_model_ids: dict[str, int] = {}
        # By selector, of these labels. A fork has it, too: whoever changes a label takes a new one.
        self._selected: Bounded[tuple[tuple[str, str], ...], BoolArray] = Bounded(_CACHED_SELECTORS)
        for i, node in enumerate(self.records):
            self._write_inventory(i, node)
            self.report(i, node)
        self.capacity = np.floor(self.capacity * 2.0**20) / 2.0**20
        self.least_gpu_memory = float(self.gpu_memory.min(where=self.gpu_exists, initial=np.inf))
        self.all_gpus: list[list[int]] = [np.flatnonzero(row).tolist() for row in self.gpu_exists]  # ascending
        self._weigh()
        self._largest: FloatArray = self.capacity.max(axis=1, initial=0.0)
        self._last_demand: tuple[Resources | None, FloatArray | None] = (None, None)
        self._demands: Bounded[tuple[float, ...], FloatArray] = Bounded(_CACHED_DEMANDS)
        self._shares: Bounded[bytes, float] = Bounded(_CACHED_DEMANDS)  # by demand: dominant_share
        self._needs: Bounded[bytes, Need] = Bounded(_CACHED_DEMANDS)  # by demand
        # By job: its kind, as pools of resources know it. Jobs that wait are asked about again and again.
        self.kinds: Bounded[str, tuple[Job, Any]] = Bounded(_CACHED_KINDS)
        self.kind_marks: Bounded[tuple[object, ...], Any] = Bounded(_CACHED_KINDS)  # by all in which kinds differ

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

    def _weigh(self) -> None:
        """The weights of a node's load: Σ 1 − free/capacity over CPU, memory, network and GPUs; a resource that a node
        lacks is no load."""
        whole = self.capacity
        is_there = whole > 0
        self.inverse_capacity: FloatArray = np.where(is_there, 1.0 / np.where(is_there, whole, 1.0), 0.0)
        weights = self.inverse_capacity[[CPU, MEMORY, NETWORK, GPUS]]
        # The same products in the same order as for one node, so that a claim given back leaves no rounding behind.
        base = whole[CPU] * weights[0] + whole[MEMORY] * weights[1] + whole[NETWORK] * weights[2]
        base = base + whole[GPUS] * weights[3]
        self.load_base: FloatArray = base  # (M,) Σ capacity/capacity; do not write
        # As lists, which are read faster one by one: the base and the weights of the load, and 1 + CPU cores.
        self.load_terms: list[tuple[float, float, float, float, float]] = list(
            zip(base.tolist(), *weights.tolist(), strict=True)
        )
        self.cpu_scale: list[float] = (1.0 + whole[CPU]).tolist()

    def report(self, m: int, node: Node) -> None:
        """Takes over a node's report, its layout aside."""
        self.telemetry_stamp += 1
        self.report_stamp[m], self.report_number[m] = self.telemetry_stamp, 0
        self._record(m, node)
        self.is_ready[m] = node.state is NodeState.READY
        self.hardware[:, m] = hardware_row(node.hardware)
        self.cpu_ghz[m] = node.hardware.cpu_ghz
        self.rack[m] = self._rack_ids.setdefault(node.rack, len(self._rack_ids)) if node.rack else -1
        row = telemetry_row(node.telemetry)
        self.telemetry[:, m] = row
        cpu, gpu, limit = row[CELSIUS]
        self.is_hot[m] = cpu >= limit or gpu >= limit  # False where either is NaN
        self.observe_time_s[m] = node.telemetry.observe_time_s
        self.has_telemetry = self.has_telemetry or node.telemetry.observe_time_s > 0

    def write_columns(self, columns: NodeColumns) -> None:
        """As `report` for each: nodes that are there, with the layout that they have."""
        self.telemetry_stamp += 1
        rows = np.fromiter((self.index[node.id] for node in columns.nodes), np.int64, len(columns.nodes))
        for m, node in zip(rows.tolist(), columns.nodes, strict=True):
            self._record(m, node)
            self.rack[m] = self._rack_ids.setdefault(node.rack, len(self._rack_ids)) if node.rack else -1
        self.report_stamp[rows], self.report_number[rows] = self.telemetry_stamp, columns.report_number
        self.is_ready[rows] = columns.is_ready
        self.hardware[:, rows] = columns.hardware
        self.cpu_ghz[rows] = columns.hardware[0]
        self.telemetry[:, rows] = columns.telemetry
        cpu, gpu, limit = columns.telemetry[CELSIUS]
        self.is_hot[rows] = (cpu >= limit) | (gpu >= limit)  # False where either is NaN
        self.observe_time_s[rows] = columns.observe_time_s
        self.has_telemetry = self.has_telemetry or bool((columns.observe_time_s > 0).any())

    def _record(self, m: int, node: Node) -> None:
        if node.labels != self.records[m].labels:
            self._selected = Bounded(_CACHED_SELECTORS)
        self.records[m] = node

    def has_layout_of(self, node: Node) -> bool:
        """True if the node is there, with the capacity and the GPUs that it has now."""
        m = self.index.get(node.id)
        if m is None:
            return False
        old = self.records[m]
        return (
            old.capacity == node.capacity
            and old.max_jobs_per_gpu == node.max_jobs_per_gpu
            and len(old.gpus) == len(node.gpus)
            and all(
                (a.index, a.model, a.memory_gib) == (b.index, b.model, b.memory_gib)
                for a, b in zip(old.gpus, node.gpus, strict=True)
            )
        )

    def fork(self) -> "Nodes":
        """The same nodes, on which later reports do not show."""
        other = copy.copy(self)
        for name in _REPORTED:
            setattr(other, name, getattr(self, name).copy())
        other.records = list(self.records)
        return other

    def all_ready(self) -> "Nodes":
        """The same nodes, each ready and cool."""
        other = copy.copy(self)
        other.is_ready = np.ones(self.size, dtype=np.bool_)
        other.observe_time_s = np.zeros(self.size)
        other.is_hot = np.zeros(self.size, dtype=np.bool_)
        other.has_telemetry = False
        return other

    def has_racks(self) -> bool:
        """False while no node has named a rack."""
        return bool(self._rack_ids)

    def selected(self, group: TaskGroup) -> BoolArray:
        """(M,) nodes that carry the labels the group asks for, read-only."""
        wanted = group.node_selector.items()
        key = tuple(wanted)
        found = self._selected.get(key)
        if found is None:
            found = np.fromiter((wanted <= node.labels.items() for node in self.records), np.bool_, self.size)
            found.flags.writeable = False
            self._selected[key] = found
        return found

    def gpu_model_id(self, model: str) -> int:
        """The number that stands for a GPU model in `gpu_model`; -1 if no node has it."""
        return self._gpu_model_ids.get(model, -1)

    def gpu_model_names(self) -> tuple[str, ...]:
        """GPU model names by their number."""
        return tuple(self._gpu_model_ids)

    # -- demands of tasks -----------------------------------------------------------------------------------------

    @property
    def last_demand(self) -> FloatArray | None:
        """The last vector that was asked for; most requests ask for the same."""
        return self._last_demand[1]

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

    def need(self, demand: FloatArray) -> Need:
        """Amounts that one task of the demand takes, GPUs counted whole."""
        key = demand.tobytes()
        found = self._needs.get(key)
        if found is None:
            amounts = whole_gpus(demand)
            rows = np.flatnonzero(amounts)
            least = np.where(amounts > 0, amounts, -np.inf)
            pairs = tuple(zip(rows.tolist(), amounts[rows].tolist(), strict=True))
            exact = tuple(zip(rows.tolist(), demand[rows].tolist(), strict=True))
            found = self._needs[key] = Need(rows, amounts[rows, None], least[:, None], pairs, exact)
        return found

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


def whole_gpus(demand: FloatArray) -> FloatArray:
    """(R,) amounts that one task of a countable demand takes: GPUs counted whole."""
    amounts = demand.copy()
    amounts[GPUS] = math.ceil(demand[GPUS])
    return amounts


def telemetry_row(telemetry: NodeTelemetry) -> tuple[float, ...]:
    """(T,) in the order of TELEMETRY_COLUMNS; NaN where unknown."""
    return tuple(getattr(telemetry, name) for name in TELEMETRY_COLUMNS)


def hardware_row(hardware: Hardware) -> tuple[float, float, float, float]:
    """(H,) CPU GHz, cache MiB, GPU GHz, Gbit/s between GPUs of the node; 0 where unknown."""
    return (hardware.cpu_ghz, hardware.cache_mib, hardware.gpu_ghz, hardware.interconnect_gbps)


def number_of_report(node: Node, row: tuple[float, ...]) -> int:
    """64 bits over all that a node may report without changing its layout. `row`: its telemetry_row."""
    *hardware, links = hardware_row(node.hardware)
    labels = sorted(node.labels.items()) if node.labels else ""
    # A node without links has the same number as in releases before there were links: their logs have it.
    named = f"{node.state.value}\n{node.rack}\n{labels}{f'{chr(10)}{links}' if links else ''}".encode()
    return number_of(named + _of_report(*row, node.telemetry.observe_time_s, *hardware))
