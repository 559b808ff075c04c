"""The events of a cluster's stream, and the records that a view is first built from.

The store appends exactly one event per mutation, with the next version; views apply them in order (view.py).
"""

from collections.abc import Mapping
from dataclasses import field

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob
from placewise_core.domain.job import JobId, NodeId


@frozen
class NodesReported:
    """Nodes inserted or updated, and nodes removed. One event however many nodes a report covers."""

    nodes: tuple[Node, ...]
    removed: tuple[NodeId, ...] = ()


@frozen
class JobsChanged:
    """Jobs that now hold resources (reserved, started, moved, made progress): each replaces what its id held before."""

    jobs: tuple[RunningJob, ...]


@frozen
class JobsEnded:
    """Jobs that hold nothing any more: finished, failed, cancelled, or their reservation expired or was released."""

    job_ids: tuple[JobId, ...]
    is_expiry: bool = False


@frozen
class QueueAdvanced:
    """A queue's new state; number 0 if the queue was forgotten."""

    queue: QueueState


@frozen
class SettingsChanged:
    settings: ClusterSettings


@frozen
class OverheadLearned:
    """Outcome statistics of one kind of divisible task: count (0: forgotten), mean overhead Q in seconds."""

    task_kind: str
    count: int
    mean_overhead_s: float


@frozen
class SubtaskProfiled:
    """Metrics of a subtask kind as last reported (a row of the subtask description matrix)."""

    kind: str
    metrics: Mapping[str, float]


@frozen
class SubtaskForgotten:
    """A row that nobody used for a long time is gone."""

    kind: str


@frozen
class ClockMoved:
    """The host's time, which is the cluster's own from then on (ClusterSettings.host_clock)."""

    time_s: float


@frozen
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
    | SubtaskForgotten
    | ClockMoved
    | ClusterDeleted
)


@frozen
class Event:
    """A change with the version it leads to; `epoch` changes after data loss."""

    version: int
    epoch: str
    change: Change


@frozen
class ClusterRecords:
    """Everything the store knows of one cluster at one version. `host_time_s`: the cluster's time if its host
    sets it, 0 until it first did; None if the store's clock is the cluster's."""

    cluster: str
    version: int
    epoch: str
    nodes: tuple[Node, ...] = ()
    jobs: tuple[RunningJob, ...] = ()
    queues: Mapping[str, QueueState] = field(default_factory=dict)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    overheads: Mapping[str, OverheadLearned] = field(default_factory=dict)
    subtask_profiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    host_time_s: float | None = None
