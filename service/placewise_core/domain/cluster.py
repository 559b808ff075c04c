"""Nodes, running jobs, queues and cluster settings: frozen domain types. view.py holds the arrays for decisions."""

import enum
import math
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role

UNKNOWN = math.nan  # a telemetry value nobody reported


class NodeState(enum.StrEnum):
    READY = "READY"
    DRAINING = "DRAINING"
    DOWN = "DOWN"


class RunState(enum.StrEnum):
    """A job holds resources from its reservation on."""

    RESERVED = "RESERVED"
    RUNNING = "RUNNING"


@frozen
class Gpu:
    index: int
    model: str = ""
    memory_gib: float = 0.0
    util: float = UNKNOWN
    memory_util: float = UNKNOWN
    celsius: float = UNKNOWN


@lru_cache(4096)
def gpu_without_telemetry(index: int, model: str, memory_gib: float) -> Gpu:
    """One object for all that are alike: a cluster of 10,000 nodes has 80,000 of some ten kinds."""
    return Gpu(index, model, memory_gib)


@frozen
class Hardware:
    """What equation (6) of the heat-island paper compares, and the bandwidth of one GPU to its peers in the node, each
    way, in Gbit/s; 0 means unknown."""

    cpu_ghz: float = 0.0
    cache_mib: float = 0.0
    gpu_ghz: float = 0.0
    interconnect_gbps: float = 0.0


@frozen
class NodeTelemetry:
    """Last measurements; shares of 1, Gbit/s, °C, watts. `observe_time_s` = 0 means never observed."""

    cpu_util: float = UNKNOWN
    memory_util: float = UNKNOWN
    gpu_util: float = UNKNOWN
    gpu_memory_util: float = UNKNOWN
    cache_util: float = UNKNOWN
    tx_gbps: float = UNKNOWN
    rx_gbps: float = UNKNOWN
    cpu_celsius: float = UNKNOWN
    gpu_celsius: float = UNKNOWN
    limit_celsius: float = UNKNOWN
    power_watts: float = UNKNOWN
    ambient_celsius: float = UNKNOWN
    observe_time_s: float = 0.0


@frozen
class Node:
    """Inventory and telemetry of one node. `gpus` lists each GPU (filled in at the edge if the host only counts).

    `max_jobs_per_gpu` = 0: one job, but several pipelines."""

    id: NodeId
    capacity: Resources
    gpus: tuple[Gpu, ...] = ()
    max_jobs_per_gpu: int = 0
    rack: str = ""
    hardware: Hardware = Hardware()
    telemetry: NodeTelemetry = NodeTelemetry()
    state: NodeState = NodeState.READY
    labels: Mapping[str, str] = field(default_factory=dict)


@frozen
class Assignment:
    """One task on one node, with its resources there."""

    task: str
    role: Role
    node: NodeId
    gpu_indices: tuple[int, ...] = ()
    demand: Resources = Resources()
    cpu_unit: str = ""
    subtask: str = ""


@frozen
class RunningJob:
    """A job that holds resources. `speed` in epochs per second, 0 until reported."""

    job: Job
    assignments: tuple[Assignment, ...]
    state: RunState = RunState.RUNNING
    reservation_id: str = ""
    expire_time_s: float = 0.0
    start_time_s: float = 0.0
    speed: float = 0.0
    epochs_done: float = 0.0
    decision_id: str = ""

    @property
    def id(self) -> JobId:
        return self.job.id


@frozen
class QueueSettings:
    """Proteus parameters of one queue.

    `v` ≥ 0 weighs cost against backlog; `epsilon_s` is the growth of Z per slot while work waits; `tau_s` is the
    reference duration every time is divided by, so that S(n) is dimensionless (ours: the paper adds seconds to their
    squares). `bound_s` is the wait after which nothing starts on the nodes that the head of the queue needs.
    """

    v: float = 1.0
    epsilon_s: float = 60.0
    tau_s: float = 3600.0
    slot_s: float = 10.0
    bound_s: float = 86_400.0


@frozen
class HeadReservation:
    """The nodes that the first waiting job of a queue needs, and its expected start there.

    `since_s` is the job's submission. From `bound_s` on nothing may start on the nodes; before, a job may that is
    expected to end by `start_s`, or that the queue has admitted (`passes`). From `expire_s` on the reservation holds no
    longer, unless a question renews it.
    """

    job: str
    nodes: tuple[str, ...]
    start_s: float
    since_s: float
    bound_s: float
    expire_s: float
    passes: tuple[str, ...] = ()  # jobs admitted ahead of the head or past it, until they run


@frozen
class QueueState:
    """Lyapunov state of one queue: Q and Z in seconds of single-GPU work, as of slot `slot`.

    `seq` counts the changes (compare-and-set). `waiting` maps the jobs in the queue to Cost_i(1) as first seen.
    `admitted` keeps the answers given, so that a repeat inside the slot, or before the job started, gets the same.
    `decisions` maps these jobs to the decision that admitted them.
    """

    queue: str
    backlog_s: float = 0.0
    delay_s: float = 0.0
    slot: int = -1
    seq: int = 0
    waiting: Mapping[str, float] = field(default_factory=dict)
    arrivals_s: float = 0.0
    admitted: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  # job id → (nodes, GPUs per node, slot)
    decided_slot: int = -1
    head: HeadReservation | None = None
    decisions: Mapping[str, str] = field(default_factory=dict, compare=False)


@frozen
class ExplorerSettings:
    """A placement policy that explores, and its weight among the explorers (a whole number, at least 1)."""

    policy: str
    weight: int = 1


# Its verdicts, in the order in which they are looked at.
URGENT, MAX_GPUS, MIN_NODES = "URGENT", "MAX_GPUS", "MIN_NODES"


@frozen
class ExplorationGuard:
    """Jobs that exploration leaves to the policy in force: those that ask for more than `max_gpus` GPUs (0: no limit),
    those that fewer than `min_nodes` nodes can take a task of, and urgent ones if `is_urgent_spared`."""

    max_gpus: float = 0.0
    min_nodes: int = 0
    is_urgent_spared: bool = False


@frozen
class ClusterSettings:
    """An operator's settings of one cluster; empty policy names mean the service's defaults, and so do no explorers.

    The rates are those of Place and of AdmitOrWait. One guard serves both. `host_clock`: the cluster's time is the one
    that its host states in requests and reports, not the store's. `learn_durations`: a job that declares no length gets
    the one learned from jobs that ended. `learn_throughput`: forecasts of speed follow reports of progress.
    `learn_heat`: forecasts of temperature follow those that nodes report. `learn_capability`: shares of divisible tasks
    follow how fast those before them ended. `learn_co_runs`: forecasts on shared GPUs follow reports of progress."""

    place_policy: str = ""
    admit_policy: str = ""
    exploration_rate: float = 0.0
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    explorers: tuple[ExplorerSettings, ...] = ()
    exploration_guard: ExplorationGuard = ExplorationGuard()
    admit_exploration_rate: float = 0.0
    host_clock: bool = False
    learn_durations: bool = False
    learn_throughput: bool = False
    learn_heat: bool = False
    learn_capability: bool = False
    learn_co_runs: bool = False
