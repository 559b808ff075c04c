"""Jobs and their demands: frozen domain types. Knows nothing of clusters."""

import enum
import math
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import NewType

from placewise_core.basics.frozen import frozen

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)

# Amounts are rounded down to multiples of 2⁻²⁰, so that sums and differences of them are exact in binary
# floating point: taking and giving back leaves no residue, here and in the state store alike, and n shares of
# 1/n always fit into one.
_QUANTUM = 2.0**20


@lru_cache(4096)  # a handful of amounts come again with every task
def quantise(amount: float) -> float:
    """`amount` rounded down to a multiple of 2⁻²⁰."""
    return math.floor(amount * _QUANTUM) / _QUANTUM


class Role(enum.StrEnum):
    """The role of a task in its gang."""

    WORKER = "WORKER"
    PARAMETER_SERVER = "PARAMETER_SERVER"


class Architecture(enum.StrEnum):
    """How the tasks of a job work together."""

    SINGLE = "SINGLE"
    PARAMETER_SERVER = "PARAMETER_SERVER"
    ALL_REDUCE = "ALL_REDUCE"
    PIPELINE = "PIPELINE"


class Priority(enum.StrEnum):
    """Service class (QoS-aware paper, eq. (9)): how long after submission completion is expected."""

    URGENT = "URGENT"
    PRIOR = "PRIOR"
    NORMAL = "NORMAL"


class KeepTogether(enum.StrEnum):
    """The set of nodes that must hold a whole gang. In a RACK, a node without a rack is one of its own."""

    NONE = "NONE"
    NODE = "NODE"
    RACK = "RACK"


class SubtaskState(enum.StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


@frozen
class Resources:
    """An amount of each resource: the capacity of a node or the demand of one task."""

    cpu_cores: float = 0.0
    gpus: float = 0.0
    memory_gib: float = 0.0
    gpu_memory_gib: float = 0.0
    network_gbps: float = 0.0
    extended: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_gpu_fraction(self) -> bool:
        """True for a task that takes part of one GPU."""
        return 0.0 < self.gpus < 1.0


@frozen
class CoRun:
    """A model measured beside another on one GPU: speeds over those alone, and seconds per step alone. 0 means not
    measured; an empty `gpu_model` stands for any."""

    model: str
    relative_speed: float
    neighbour_relative_speed: float = 0.0
    gpu_model: str = ""
    step_s: float = 0.0


@frozen
class GpuSharing:
    """Whether tasks may run beside other jobs on one GPU; `max_slowdown` = speed alone / speed beside others, ≥ 1."""

    allowed: bool = False
    max_slowdown: float = 2.0
    co_runs: tuple[CoRun, ...] = ()


@frozen
class TaskGroup:
    """`count` tasks of one role that each ask for `demand`."""

    role: Role
    count: int
    demand: Resources
    max_per_node: int = 0
    gpu_model: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)


@frozen
class Subtask:
    """A stage of a pipeline; `profile` holds measured metrics by name, `size` is in units of the kind."""

    id: str
    kind: str
    after: tuple[str, ...] = ()
    has_gpu_version: bool = False
    profile: Mapping[str, float] = field(default_factory=dict)
    size: float = 0.0
    state: SubtaskState = SubtaskState.PENDING
    unit: str = ""


@frozen
class ElasticRange:
    """GPU counts a job can run with, both ends included."""

    min_gpus: int = 1
    max_gpus: int = 1


@frozen
class Shape:
    """Symmetric form of a data-parallel job: nodes × GPUs per node."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@frozen
class Job:
    """One job: a gang of tasks, or a job whose shape admission chooses (no groups), or a pipeline of subtasks.

    `exclusive_network`: while it spans several nodes, no other job that does has a task on one of them."""

    id: JobId
    model: str = ""
    architecture: Architecture = Architecture.SINGLE
    groups: tuple[TaskGroup, ...] = ()
    total_epochs: float = 0.0
    batch_size: int = 0
    dataset_size: int = 0
    iterations: float = 0.0
    priority: Priority = Priority.NORMAL
    queue: str = ""
    submit_time_s: float = 0.0
    subtasks: tuple[Subtask, ...] = ()
    single_gpu_s: float = 0.0
    params_millions: float = 0.0
    gpu_sharing: GpuSharing = GpuSharing()
    elastic: ElasticRange | None = None
    shape: Shape | None = None
    attained_gpu_s: float = 0.0
    user: str = ""
    keep_together: KeepTogether = KeepTogether.NONE
    exclusive_network: bool = False

    @property
    def task_count(self) -> int:
        return sum([group.count for group in self.groups])

    @property
    def gpus(self) -> float:
        """GPUs over all tasks (fractions count as such)."""
        return sum(group.count * group.demand.gpus for group in self.groups)

    @property
    def is_rigid(self) -> bool:
        """True if the submitter fixed the shape: admission decides when, not how many."""
        return bool(self.groups) and self.elastic is None

    @property
    def has_wish(self) -> bool:
        """True if it says of which nodes its gang must be, or beside whom."""
        return self.keep_together is not KeepTogether.NONE or self.exclusive_network

    @property
    def is_speed_in_epochs(self) -> bool:
        """Whether its predicted speed counts epochs; else it counts samples."""
        return self.dataset_size > 0 or (self.single_gpu_s > 0 and self.total_epochs > 0)

    @property
    def total_iterations(self) -> float:
        """Optimiser steps in all; derived from epochs where not given; 0 if unknown."""
        if self.iterations > 0:
            return self.iterations
        return self.total_epochs * self.dataset_size / self.batch_size if self.batch_size > 0 else 0.0
