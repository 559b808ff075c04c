"""The thin layer that differs from scheduler to scheduler.

Everything else (asking, fail-open, idempotency, reporting, restart, metrics) is written once, in this package, against
the `NativeScheduler` Protocol below. Nothing here talks to a network.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from placewise.v1.cluster_pb2 import Assignment, Node, ShareOutcome
from placewise.v1.job_pb2 import Job, TaskGroup


class Stage(enum.Enum):
    """How far a job is, as the *host* sees it. An adapter that restarts learns all it needs from this."""

    WAITING = "waiting"
    """Held for us: it cannot start before we apply a placement or release it. After APPLIED: the host took it back."""
    APPLIED = "applied"
    """A placement was applied and not taken back; the host starts it as soon as it can."""
    RELEASED = "released"
    """Left to the host's own scheduling, not started yet. Never touched again."""
    RUNNING = "running"
    """Started. Never touched: only observed and reported."""
    ENDED = "ended"


class End(enum.Enum):
    """How a job ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class SharesDone:
    """The real times of a divisible job's shares, and the decision of Partition that cut them."""

    decision_id: str
    outcomes: tuple[ShareOutcome, ...]


@dataclass(frozen=True, slots=True)
class NativeJob:
    """One gang as the host shows it now.

    `key` equals `job.id`: the host's own id, unique for the life of the cluster ("4711", "namespace/podgroup/uid").
    A job that the host queues again after it had started (requeue after a node failure) is a new job with a new key
    ("4711.r1"): events are idempotent by job and kind.
    `template` is the task of an elastic job, one per node: the shape that AdmitOrWait gives fills in count and GPUs. A
    job with groups of its own needs none. The shape is brought into the node range that the user allowed, from
    `template.count` to `most_nodes` (0: no limit), with at least as many GPUs.
    `placement` is the applied one (APPLIED, as far as the host shows it) or the real one (RUNNING, ENDED).
    `is_managed` is False for a job that did not ask for Placewise: only its resources are reported.
    `are_gpus_exact` is True if the host got exact GPU indices. Otherwise the host picks interchangeable GPUs by itself,
    and only the nodes are compared with the decision.
    `begin_time_s`: the host does not start the job before, so that nothing is decided for it until then.
    `can_move`: the host may give up or change places of the job while it runs; they are reported as they change.
    `shares` is known for a divisible job that has finished, as far as the host measures its shares and knows them then.
    `blocked_by`: the host's own rule (a quota, a reservation) for which it would not start an APPLIED job now, in its
    word. The job is left to the host at once, so that nothing is reserved for it; "" if only resources are missing.
    `is_outranked`: the host has looked at an APPLIED job and starts others first. It is left to the host at once, too.
    Times are seconds since the epoch, 0 where unknown.
    """

    key: str
    job: Job
    stage: Stage
    template: TaskGroup | None = None
    most_nodes: int = 0
    placement: tuple[Assignment, ...] = ()
    is_managed: bool = True
    are_gpus_exact: bool = False
    begin_time_s: float = 0.0
    start_time_s: float = 0.0
    end: End | None = None
    end_time_s: float = 0.0
    end_reason: str = ""
    shares: SharesDone | None = None
    blocked_by: str = ""
    is_outranked: bool = False
    can_move: bool = False


@dataclass(frozen=True, slots=True)
class HostState:
    """The result of one look at the host.

    `is_complete`: `jobs` are all jobs the host knows, so one that was known and is not here is gone. Otherwise only the
    jobs given have news. `nodes` is None when they were not read, and a new sequence when they were.
    `late` are jobs whose `shares` became known only after their end; each is given once.
    """

    jobs: Sequence[NativeJob] = ()
    nodes: Sequence[Node] | None = None
    is_complete: bool = False
    late: Sequence[NativeJob] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision to be carried out: every task of the gang with its node and GPU indices."""

    assignments: tuple[Assignment, ...]
    reservation_id: str = ""
    expire_time_s: float = 0.0
    decision_id: str = ""
    policy: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node ids without repeats, in the order of the tasks."""
        return tuple(dict.fromkeys(a.node for a in self.assignments))

    def tasks_on(self, node: str) -> tuple[Assignment, ...]:
        return tuple(a for a in self.assignments if a.node == node)


class Applied(enum.Enum):
    """The result of an attempt to change the host."""

    DONE = "done"
    """The change holds. Repeating it changes nothing."""
    GONE = "gone"
    """The job does not wait any more (cancelled, started, held by its user): nothing was changed."""
    REFUSED = "refused"
    """The host did not take it; the job waits as before. A new decision is due."""
    UNREACHABLE = "unreachable"
    """The host did not answer; the next look shows the result."""


class HostUnreachableError(Exception):
    """The host scheduler did not answer. The loop waits and looks again; it never stops for this."""


class NativeScheduler(Protocol):
    """One scheduler's side of an adapter.

    Methods never raise but `HostUnreachableError`, from `observe` and `wait` alone; everything that changes the host
    answers with `Applied`. All changing methods are idempotent, re-read the job's state before they change it, and
    never touch a job that has started.
    """

    async def wait(self, timeout_s: float) -> bool:
        """Returns True as soon as the host reports a change, False when `timeout_s` have passed."""

    async def observe(self, full: bool) -> HostState:
        """Looks at the host. `full=True` must answer `is_complete=True` with nodes; otherwise news are enough.

        Raises HostUnreachableError.
        """

    async def apply(self, job: NativeJob, placement: Placement) -> Applied:
        """Makes the job start exactly there, now. All of the gang or nothing of it."""

    async def release(self, job: NativeJob) -> Applied:
        """Leaves a WAITING job to the host's own scheduling, as if Placewise were not installed."""

    async def withdraw(self, job: NativeJob) -> Applied:
        """Takes back an applied placement that did not start: it is WAITING again. DONE only if it cannot start."""

    async def explain(self, job: NativeJob, text: str) -> None:
        """Shows the user why the job waits, if the host has a place for it. Best effort."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Start it there. The same verdict is given again until it is used, expires or is forgotten."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not now. `reasons` are ordered, the first to fix first; `text` is one line for a person."""

    reasons: tuple[str, ...] = ()
    text: str = ""
    decision_id: str = ""


@dataclass(frozen=True, slots=True)
class NoFit:
    """It would not fit an empty cluster either."""

    reasons: tuple[str, ...] = ()
    text: str = ""
    decision_id: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """No decision came within the budget. `is_release_due`: this has lasted long enough to release the job."""

    reason: str
    is_release_due: bool = False


Verdict = Placed | Waiting | NoFit | Undecided


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """How one adapter behaves. Every native adapter reads these from its own configuration file or flags."""

    cluster: str
    decide_budget_s: float = 0.1
    """Longest one decision may take, both questions together; later means no decision (fail-open). A question about
    more than `batch` jobs may take as many times as long."""
    release_after_s: float = field(default=10.0, metadata={"least": -1.0})
    """A job that got no decision for this long is left to the host's own scheduling. 0 releases at once, −1 never."""
    resync_s: float = 10.0
    """Everything is read again this often: an announcement may be lost."""
    node_refresh_s: float = 15.0
    """Unchanged nodes are reported again this often, so that their telemetry does not count as stale."""
    retry_s: float = 1.0
    """A waiting job is asked for again this often, besides every time a job ends or a node changes. As often a host
    that does not answer is looked at again."""
    start_timeout_s: float = 30.0
    """An applied placement that has not started by then is withdrawn and decided again."""
    reserve_ttl_s: float = 60.0
    """How long the service holds the resources for the host to start the job."""
    batch: int = 16
    """Jobs placed per question."""
    depth: int = 256
    """Waiting jobs of one queue that are asked about in one pass."""
    ask_admission: bool = True
    """False: every job is admitted with the shape it asks for; only its place is asked."""
    place_policy: str = ""
    admit_policy: str = "fifo"
    """fifo starts jobs in their order as soon as they fit, as a scheduler's users expect; a job may pass the first that
    does not fit if it does not delay it. "" is the cluster's own policy."""
    is_no_fit_released: bool = True
    """A job that can never fit is left to the host, which tells its user in its own words; False keeps it waiting."""
    is_dry_run: bool = False
    """Decide and log, change nothing: every job is left to the host's own scheduling."""
    is_unshapeable_released: bool = False
    """A job that waits because not even an empty cluster could take any of its shapes counts as one that never fits."""
