"""What can happen to a cluster: the events of its stream, and the records a view is first built from.

The store appends exactly one event per mutation, with the next version; views apply them in order (view.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewise_core.cluster import ClusterSettings, Node, QueueState, RunningJob
from placewise_core.job import JobId, NodeId


@dataclass(frozen=True, slots=True)
class NodesReported:
    """Nodes inserted or updated, and nodes removed. One event however many nodes a report covers."""

    nodes: tuple[Node, ...]
    removed: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class JobsChanged:
    """Jobs that now hold resources (reserved, started, moved, made progress): each replaces what its id held before."""

    jobs: tuple[RunningJob, ...]


@dataclass(frozen=True, slots=True)
class JobsEnded:
    """Jobs that hold nothing any more: finished, failed, cancelled, or their reservation expired or was released."""

    job_ids: tuple[JobId, ...]
    is_expiry: bool = False


@dataclass(frozen=True, slots=True)
class QueueAdvanced:
    queue: QueueState


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    settings: ClusterSettings


@dataclass(frozen=True, slots=True)
class OverheadLearned:
    """Outcome statistics of one kind of divisible task: count, mean overhead Q in seconds."""

    task_kind: str
    count: int
    mean_overhead_s: float


@dataclass(frozen=True, slots=True)
class SubtaskProfiled:
    """Metrics of a subtask kind as last reported (a row of the subtask description matrix)."""

    kind: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClusterDeleted:
    pass


Change = (
    NodesReported
    | JobsChanged
    | JobsEnded
    | QueueAdvanced
    | SettingsChanged
    | OverheadLearned
    | SubtaskProfiled
    | ClusterDeleted
)


@dataclass(frozen=True, slots=True)
class Event:
    """A change with the version it leads to; `epoch` names the life of the state (a new one after data loss)."""

    version: int
    epoch: str
    change: Change


@dataclass(frozen=True, slots=True)
class ClusterRecords:
    """Everything the store knows of one cluster at one version."""

    cluster: str
    version: int
    epoch: str
    nodes: tuple[Node, ...] = ()
    jobs: tuple[RunningJob, ...] = ()
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    overheads: Mapping[str, OverheadLearned] = field(default_factory=dict)
    subtask_profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
