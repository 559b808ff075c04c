"""The Protocol of the state store. One conformance suite runs on every implementation (tests/contract).

Every mutation is atomic, appends exactly one event with the next version, and happens by the store's own clock, or by
the host's time as the store keeps it, so that replicas with different clocks agree on expiry. Any method raises
StateUnavailableError when the store does not answer; a mutation that raised may or may not have happened, and is safe
to repeat with the same ids.
"""

import enum
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Final, Protocol

from placewise_core.basics.frozen import frozen
from placewise_core.domain.asked import AskedJob, JobLinks
from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob
from placewise_core.domain.events import ClusterRecords, Event
from placewise_core.domain.job import JobId, NodeId
from placewise_core.speed.learned.sums import Addition
from placewise_log.logs import Log, LogState
from placewise_service.state.holdings import SeenNode

MOST_FORGOTTEN = 100  # rows of profiles that one call removes
MOST_LINKED = 8192  # jobs whose links are kept, and as many of the older ones


@frozen
class ReserveRequest:
    """The resources that one decision wants to hold: all of them or nothing.

    `jobs` carry state RESERVED, their reservation_id and assignments; `ttl_s` sets their expiry. `answers` are bytes
    to remember under `request_id` in the same step. `expected_tenants` maps "node/gpu" of every *shared* GPU to the
    ids the decision saw there: another set means the slowdown prediction is void, hence a conflict. The request's own
    jobs count neither as seen nor as there. A job that is only reserved may be reserved again: the new reservation
    replaces the old one, or the old one stands. A running one conflicts. `fingerprint` and `over` are as in `remember`.

    A job that spans several nodes conflicts where another such job has the network for itself (NETWORK_TAKEN). A job
    that wants it may only come to nodes that are as in `expected_nodes`, with the jobs before it (NETWORK_CHANGED).
    """

    jobs: tuple[RunningJob, ...]
    ttl_s: float
    request_id: str = ""
    answer: bytes = b""
    expected_tenants: Mapping[str, tuple[JobId, ...]] = field(default_factory=dict)
    fingerprint: bytes = b""
    over: bytes = b""
    expected_nodes: Mapping[str, SeenNode] = field(default_factory=dict)


@frozen
class Reserved:
    """Held. The event that every view will see is given back, so that the caller's own view need not wait for it."""

    event: Event
    expire_time_s: float


@frozen
class Conflict:
    """Something the decision counted on is taken, gone or not ready; nothing was held. `running` are the jobs of the
    request that run already, if that is the reason (JOB_RUNNING)."""

    node: str
    reason: str
    running: tuple[RunningJob, ...] = ()


@frozen
class Repeated:
    """The answer that this request_id already has. `expire_time_s`: expiry of its unconfirmed reservations; 0 without
    any."""

    answer: bytes
    expire_time_s: float = 0.0


@frozen
class Reused:
    """This request_id belongs to another question, or to another caller: nothing was held or remembered."""


ReserveResult = Reserved | Conflict | Repeated | Reused


@frozen
class JobReport:
    """One reported job event, validated and in domain terms. `running` is set for STARTED (what really happened; None
    = as reserved); PROGRESS sets `speed` and `epochs_done`; an end (FINISHED, FAILED, CANCELLED) sets `is_end`."""

    job_id: JobId
    kind: str
    event_time_s: float
    running: RunningJob | None = None
    is_end: bool = False
    speed: float = 0.0
    epochs_done: float = 0.0
    reservation_id: str = ""
    reason: str = ""

    @property
    def is_start_as_decided(self) -> bool:
        return self.kind == "STARTED" and self.running is None


@frozen
class Overcommit:
    """A job that a host started on a node that had too little left. `reason` is one of reserve.lua's; `others` hold the
    `gpus` as well. Both are empty if CPU, memory or another pooled resource is short."""

    job_id: JobId
    node: NodeId
    reason: str
    gpus: tuple[int, ...] = ()
    others: tuple[JobId, ...] = ()


@frozen
class ReportResult:
    """`events` in order, one per mutation (none for repeats). `overcommits`: jobs that hosts started on nodes with too
    little left. `unknown`: jobs that started without a placement and whose decision is not known (any more)."""

    events: tuple[Event, ...]
    version: int
    applied: int
    ignored: int
    overcommits: tuple[Overcommit, ...] = ()
    unknown: tuple[JobId, ...] = ()


@frozen
class ShadowChoice:
    """Who decides in the shadow: a bundle by name and digest, as in BundleChoice, or "" for the one that answers; and a
    policy, or "" for the bundle's own choice. Both empty: nobody."""

    bundle: str = ""
    digest: str = ""
    policy: str = ""


@frozen
class ActiveChoice:
    """The bundle that answers for one cluster, by name and digest, as in BundleChoice; and the one that did before, ""
    for that of all clusters."""

    bundle: str
    digest: str = ""
    previous: str = ""
    previous_digest: str = ""


@frozen
class CanaryChoice:
    """The bundle that answers a share of the jobs, by name and digest as in BundleChoice, and the rule of its arms; see
    core/policies/trial/arms.py. `start_time_s` is when it began with this salt."""

    bundle: str
    digest: str
    share: float
    salt: str
    unit: str = "job"
    period_s: float = 0.0
    washout_s: float = 0.0
    start_time_s: float = 0.0


class ChangeKind(enum.StrEnum):
    """Kinds of changes in the history of bundles."""

    ACTIVATED = "ACTIVATED"
    ROLLED_BACK = "ROLLED_BACK"
    SHADOW_SET = "SHADOW_SET"
    SHADOW_ENDED = "SHADOW_ENDED"
    CANARY_SET = "CANARY_SET"
    CANARY_ENDED = "CANARY_ENDED"
    CANARY_ROLLED_BACK = "CANARY_ROLLED_BACK"
    PROMOTED = "PROMOTED"
    KILLED = "KILLED"
    KILL_ENDED = "KILL_ENDED"


@frozen
class BundleChange:
    """One change of a choice, for its history. `cluster` "" stands for all clusters without a choice of their own,
    `caller` "" for the service itself. `previous` is the bundle that answered before, `share` a canary's, `policy` a
    shadow's or a kill switch's."""

    time_s: float
    cluster: str
    kind: ChangeKind
    bundle: str = ""
    digest: str = ""
    previous: str = ""
    share: float = 0.0
    policy: str = ""
    caller: str = ""
    reason: str = ""


@frozen
class BundleChoice:
    """Which bundles all processes are to use, by name; "" = the configured one, or none. `seq` counts the choices.

    The digests say which contents were meant; "" = those of each process, as for an alias and for a choice that a
    process without digests stored. `shadow` and `shadow_policy` are of every cluster that is not in `shadows`, `active`
    of every one that is not in `actives`. Of `canaries`, and of `kills`, which names the heuristic that answers in
    place of learned policies, "" has those of every cluster without one of its own.
    """

    seq: int = 0
    active: str = ""
    previous: str = ""
    shadow: str = ""
    active_digest: str = ""
    previous_digest: str = ""
    shadow_digest: str = ""
    shadow_policy: str = ""
    shadows: Mapping[str, ShadowChoice] = field(default_factory=dict)
    actives: Mapping[str, ActiveChoice] = field(default_factory=dict)
    canaries: Mapping[str, CanaryChoice] = field(default_factory=dict)
    kills: Mapping[str, str] = field(default_factory=dict)

    def with_active(self, cluster: str, bundle: str, digest: str) -> "BundleChoice":
        """The choice with this bundle for a cluster; "" for that of all clusters."""
        others, before = {name: own for name, own in self.actives.items() if name != cluster}, self.actives.get(cluster)
        if not bundle:
            return replace(self, actives=others)
        if before is None:
            own = ActiveChoice(bundle, digest)
        elif before.bundle == bundle:
            own = replace(before, digest=digest)
        else:
            own = ActiveChoice(bundle, digest, before.bundle, before.digest)
        return replace(self, actives={**others, cluster: own})

    @property
    def all_shadows(self) -> Mapping[str, ShadowChoice]:
        """By cluster; "" for every other cluster."""
        usual = ShadowChoice(self.shadow, self.shadow_digest, self.shadow_policy)
        return self.shadows if usual == ShadowChoice() else {"": usual, **self.shadows}

    def with_shadow(self, cluster: str, chosen: ShadowChoice) -> "BundleChoice":
        """The choice with this shadow of a cluster, or of all others for ""."""
        if not cluster:
            bundle, digest, policy = chosen.bundle, chosen.digest, chosen.policy
            return replace(self, shadow=bundle, shadow_digest=digest, shadow_policy=policy)
        shadows = {name: other for name, other in self.shadows.items() if name != cluster}
        return replace(self, shadows=shadows if chosen == ShadowChoice() else {**shadows, cluster: chosen})

    def with_canary(self, cluster: str, canary: CanaryChoice | None) -> "BundleChoice":
        """The choice with this canary of a cluster, or of all others for ""; None ends it."""
        others = {name: other for name, other in self.canaries.items() if name != cluster}
        return replace(self, canaries=others if canary is None else {**others, cluster: canary})

    def with_kill(self, cluster: str, policy: str) -> "BundleChoice":
        """The choice with this heuristic in place of a cluster's learned policies, or of all others for ""; "" ends
        it."""
        others = {name: other for name, other in self.kills.items() if name != cluster}
        return replace(self, kills={**others, cluster: policy} if policy else others)

    def digest_of(self, name: str) -> str:
        """The digest under which `name` is or was chosen; "" for any."""
        return {
            **{other.bundle: other.digest for other in self.canaries.values()},
            **{other.bundle: other.digest for other in self.shadows.values()},
            **{own.previous: own.previous_digest for own in self.actives.values()},
            **{own.bundle: own.digest for own in self.actives.values()},
            self.shadow: self.shadow_digest,
            self.previous: self.previous_digest,
            self.active: self.active_digest,
        }.get(name, "")


MOST_CHANGES: Final = 1000  # in the history of bundles
EVIDENCE_KEPT_S: Final = 30 * 86_400.0  # of a canary, since the last look at it


class Batch(Protocol):
    """Events that follow each other, decoded when they are asked for."""

    def __len__(self) -> int: ...

    async def after(self, version: int) -> Sequence[Event]:
        """Those beyond `version`. Decoding the others again is most of the cost of following one's own mutations.
        Raises StateUnavailableError."""
        ...


class StateStore(Protocol):
    """Keeps clusters. Idempotency is stated per method."""

    async def ping(self) -> float:
        """The store's clock, seconds since the epoch."""
        ...

    async def check_writable(self) -> None:
        """Changes nothing. Raises UnwritableStateError while the store cannot write to its disk."""
        ...

    async def clusters(self) -> Sequence[str]:
        """Names of the clusters that exist, sorted."""
        ...

    async def load(self, cluster: str) -> tuple[ClusterRecords, str] | None:
        """Everything at one version, and the stream position to tail from; None if there is no such cluster."""
        ...

    def tail(self, cluster: str, position: str) -> AsyncIterator[tuple[str, Batch]]:
        """Batches of later events with the position after each; an empty batch at least once a second shows that the
        store is alive.
        Ends with StateUnavailableError, or with StaleSnapshotError when the stream was trimmed past `position` (load
        again)."""
        ...

    async def report_nodes(self, cluster: str, nodes: Sequence[Node], full: bool) -> ReportResult:
        """Upserts nodes; `full` removes the others. Creates the cluster. Idempotent."""
        ...

    def reserve(self, cluster: str, request: ReserveRequest) -> Awaitable[ReserveResult]:
        """Holds every job's gang or none. Checks free resources and GPU indices. Idempotent by request_id. The request
        may be on its way before the result is awaited."""
        ...

    async def look_up(self, cluster: str, job_ids: Sequence[JobId]) -> Mapping[JobId, RunningJob | None]:
        """Each job with its resources, or None if it has ended. A job that holds nothing is missing, and so is one
        whose reservation is past its time."""
        ...

    async def release(self, cluster: str, reservation_ids: Sequence[str]) -> ReportResult:
        """Gives back reservations that were not confirmed. Unknown ids are ignored. Idempotent."""
        ...

    async def expire(self, cluster: str, host_time_s: float | None = None) -> ReportResult:
        """Releases expired reservations. Any replica may call it, any number at once. Their records are kept
        for a while, for `report_jobs`. `host_time_s` first moves the clock of a cluster whose time is its host's; an
        earlier time than the one it shows is passed over. At most 1,000 are released in one step."""
        ...

    async def report_jobs(self, cluster: str, reports: Sequence[JobReport]) -> ReportResult:
        """Applies the reports in their order.

        STARTED confirms a reservation. On other nodes it replaces the reservation by the actual placement, even if
        that overcommits a node; the result reports the overcommitment. An end frees the resources. If the reservation
        has expired, STARTED on its nodes or PROGRESS restores it. The result names jobs that start so without a known
        decision. Repeats, and reports after the end, are ignored and counted.
        """
        ...

    async def recall(self, cluster: str, request_id: str, fingerprint: bytes = b"") -> Repeated | Reused | None:
        """The answer that stands, if there is one."""
        ...

    async def remember(
        self, cluster: str, request_id: str, answer: bytes, fingerprint: bytes = b"", over: bytes = b""
    ) -> Repeated | Reused:
        """Stores the answer unless there is one; returns the stored one. `fingerprint` distinguishes questions
        and callers: Reused if the stored one differs (b"": unknown, equal to any). An answer equal to `over`
        is replaced: it holds no more."""
        ...

    def commit_queue(self, cluster: str, queue: QueueState, expected_seq: int) -> Awaitable[Event | None]:
        """Stores the state if the stored seq is still `expected_seq` (0 = none yet); None if it is not. The command may
        be on its way before the result is awaited."""
        ...

    async def forget_queue(self, cluster: str, queue: str, expected_seq: int) -> Event | None:
        """Removes the queue if its seq is still `expected_seq`; None if it is not. The event is a state of seq 0."""
        ...

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> Event:
        """Replaces the settings. Creates the cluster. Idempotent."""
        ...

    async def learn_overhead(self, cluster: str, outcome_id: str, task_kind: str, overhead_s: float) -> Event | None:
        """Adds one measured overhead to the running mean of its kind; None for a repeated outcome_id."""
        ...

    async def profile_subtask(self, cluster: str, kind: str, metrics: Mapping[str, float]) -> Event:
        """Merges measured metrics into the row of a subtask kind."""
        ...

    async def add_sums(self, cluster: str, additions: Sequence[Addition], halving_s: float) -> Sequence[Event]:
        """Adds reports to the decayed sums of their kinds (learned/sums.py), as of the cluster's time. Each addition
        that counts is one event. Idempotent for those with an id (`once`), as long as learn_overhead is; else the
        caller adds a report once."""
        ...

    async def forget_profiles(self, cluster: str, used: Collection[str], idle_s: float) -> Sequence[Event]:
        """Dates the profiles of these kinds, and removes profiles and overheads that were neither written nor dated for
        `idle_s`, at most MOST_FORGOTTEN of each at once. A row that has no time yet gets this one. The event of an
        overhead has a count of 0."""
        ...

    async def delete_cluster(self, cluster: str) -> bool:
        """Forgets the cluster and all its keys; False if there was none."""
        ...

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        """Appends to a bounded log; how many older ones fell off unexported (all, if no cluster). The log's drops count
        these, and `lost`, which were lost on the way here.

        find_decision finds records of the form msgpack [schema, "decision", decision id, body]; others are opaque."""
        ...

    async def link_jobs(self, cluster: str, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        """Remembers these questions in their order; for each the links of its job before it. None if there is no
        cluster. Repeatable. Bounded: a job that was not asked about for long has no links any more."""
        ...

    async def copy_events(self, cluster: str) -> tuple[bool, int]:
        """Copies events of the cluster to the log of views, each once whoever asks; whether there may be more, and how
        many entries of the log fell off unexported. Events that are no longer kept leave a gap."""
        ...

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        """(position, record) pairs after a position ("0" = from the start)."""
        ...

    async def find_decision(self, cluster: str, decision_id: str) -> bytes | None:
        """A decision still in the ring."""
        ...

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        """Records that all entries up to `position` are durably exported. Never moves back."""
        ...

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        """The position up to which a log was exported, the entries lost, and the host's time."""
        ...

    async def bundles(self) -> BundleChoice:
        """The choice in force; seq 0 if there never was one."""
        ...

    async def choose_bundles(self, choice: BundleChoice, change: BundleChange | None = None) -> bool:
        """Stores the choice as number `choice.seq` + 1 if `choice.seq` is still the number in force; False if not. The
        change enters the history with it; the oldest ones beyond MOST_CHANGES are forgotten."""
        ...

    async def bundle_history(self) -> Sequence[BundleChange]:
        """The changes of all clusters, newest first."""
        ...

    async def add_evidence(self, salt: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Adds what this process counted of the canary with this salt. The sums of all processes; kept for
        EVIDENCE_KEPT_S."""
        ...

    async def close(self) -> None:
        """Ends connections. Idempotent."""
        ...
