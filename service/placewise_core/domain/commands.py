"""The requests in domain terms, free of any transport. validate.py checks them."""

import enum

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import LearnedLength
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.job import Job, JobId


class Scope(enum.StrEnum):
    """Whole jobs on nodes, or the ready subtasks of pipelines on the computing units of one node."""

    CLUSTER = "CLUSTER"
    NODE = "NODE"


class JobEventKind(enum.StrEnum):
    SUBMITTED = "SUBMITTED"
    STARTED = "STARTED"
    PROGRESS = "PROGRESS"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SHARE_FINISHED = "SHARE_FINISHED"
    SHARE_MOVE_REQUESTED = "SHARE_MOVE_REQUESTED"
    SUBTASK_FINISHED = "SUBTASK_FINISHED"


@frozen
class PlaceCommand:
    """`reserve_ttl_s` = 0 means the service's default. `seed` None means a random one (it is logged).
    `caller` is who asks. `fingerprint` binds `request_id` to this question and its caller; b"" binds it to nothing.
    `now_s` is the host's time, if it states one. `lengths` are those that the engine filled in."""

    cluster: str
    jobs: tuple[Job, ...]
    request_id: str = ""
    policy: str = ""
    scope: Scope = Scope.CLUSTER
    node_id: str = ""
    is_dry_run: bool = False
    is_explaining: bool = False
    reserve_ttl_s: float = 0.0
    seed: int | None = None
    caller: str = ""
    fingerprint: bytes = b""
    now_s: float | None = None
    lengths: tuple[LearnedLength, ...] = ()


@frozen
class PartitionCommand:
    """`progress` empty: split the task. Given: spread what left the shares that are late or asked to move.
    `fingerprint` and `now_s` as in PlaceCommand."""

    cluster: str
    task: DivisibleTask
    units: tuple[str, ...] = ()
    request_id: str = ""
    is_dry_run: bool = False
    is_explaining: bool = False
    progress: tuple[ShareProgress, ...] = ()
    policy: str = ""
    caller: str = ""
    fingerprint: bytes = b""
    now_s: float | None = None


@frozen
class AdmitCommand:
    """`jobs` in queue order. `fingerprint`, `now_s` and `lengths` as in PlaceCommand."""

    cluster: str
    queue: str
    jobs: tuple[Job, ...]
    policy: str = ""
    request_id: str = ""
    is_dry_run: bool = False
    is_explaining: bool = False
    seed: int | None = None
    caller: str = ""
    fingerprint: bytes = b""
    now_s: float | None = None
    lengths: tuple[LearnedLength, ...] = ()


@frozen
class ShareOutcome:
    """How one share of a divisible task went; `overhead_s` as measured by the host."""

    task_kind: str
    node: str = ""
    unit: str = ""
    scale: float = 0.0
    seconds: float = 0.0
    overhead_s: float = 0.0
    peak_celsius: float = 0.0


@frozen
class SubtaskOutcome:
    """How long one subtask of a pipeline took on its unit (`cpu3`, `gpu0`); `size` = 0 counts as 1."""

    subtask: str
    kind: str
    unit: str
    seconds: float
    size: float = 0.0
    node: str = ""


@frozen
class JobEvent:
    """A host's report of one event. `placement` empty means as reserved; `event_time_s` = 0 means now."""

    job_id: JobId
    kind: JobEventKind
    event_time_s: float = 0.0
    placement: tuple[Assignment, ...] = ()
    speed: float = 0.0
    epochs_done: float = 0.0
    reservation_id: str = ""
    decision_id: str = ""
    job: Job | None = None
    reason: str = ""
    share: ShareOutcome | None = None
    subtask: SubtaskOutcome | None = None
