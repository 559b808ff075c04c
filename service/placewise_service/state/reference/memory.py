"""In-memory state store: the contract suite holds Redis against it, the rehearsal and `doctor` use it, no deployment.

Every method runs to its end without awaiting, so on one event loop each is atomic as a script is.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from placewise_core.basics.clock import Clock, SystemClock
from placewise_core.domain.asked import AskedJob, JobLinks
from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob, RunState
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.events import (
    Change,
    ClockMoved,
    ClusterDeleted,
    ClusterRecords,
    Event,
    JobsChanged,
    JobsEnded,
    NodesReported,
    OverheadLearned,
    QueueAdvanced,
    SettingsChanged,
    SubtaskForgotten,
    SubtaskProfiled,
)
from placewise_core.domain.job import JobId, NodeId
from placewise_core.speed.learned.sums import Addition, sums_of
from placewise_log.logs import Log, LogState
from placewise_service.state.codec import encode, is_decision, raw_event
from placewise_service.state.errors import no_such_cluster
from placewise_service.state.holdings import Hold, capacity_of, check_reservable, holds_of
from placewise_service.state.keys import keys_of
from placewise_service.state.lifecycle import progressed, reserved, runs_of, started
from placewise_service.state.options import StoreOptions
from placewise_service.state.reference.bundles import MemoryBundles
from placewise_service.state.reference.ledger import NodeLedger
from placewise_service.state.reference.links import Links
from placewise_service.state.reference.ring import Ring
from placewise_service.state.reference.rows import Outcomes, TimedRows
from placewise_service.state.store import (
    Batch,
    Conflict,
    JobReport,
    Overcommit,
    Repeated,
    ReportResult,
    Reserved,
    ReserveRequest,
    ReserveResult,
    Reused,
)

_HEARTBEAT_S = 0.5
_MOST_EVENTS = 10_000


@dataclass(slots=True)
class _Cluster:
    """One epoch of one cluster."""

    epoch: str
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    ledger: NodeLedger = field(default_factory=NodeLedger)
    jobs: dict[JobId, RunningJob] = field(default_factory=dict)
    holds: dict[JobId, tuple[Hold, ...]] = field(default_factory=dict)
    ended: dict[JobId, float] = field(default_factory=dict)
    lapsed: dict[JobId, tuple[float, RunningJob]] = field(default_factory=dict)  # expiry and the job
    queues: dict[str, QueueState] = field(default_factory=dict)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    overheads: TimedRows[OverheadLearned] = field(default_factory=TimedRows)
    outcomes: Outcomes = field(default_factory=Outcomes)
    profiles: TimedRows[dict[str, float]] = field(default_factory=TimedRows)
    events: list[Event] = field(default_factory=list)
    trimmed: int = 0  # events that are no longer kept
    copied: int = 0  # version of the last event in the log of views
    version: int = 0
    host_time_s: float | None = None
    appended: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, change: Change) -> Event:
        self.version += 1
        event = Event(self.version, self.epoch, change)
        self.events.append(event)
        if len(self.events) > _MOST_EVENTS:
            self.trim(_MOST_EVENTS // 2)
        self.appended.set()
        self.appended = asyncio.Event()
        return event

    def trim(self, kept: int) -> None:
        """Forgets all but the last events; a tail that is further behind gets an error."""
        del self.events[:-kept]
        self.trimmed = self.version - kept

    def drop_job(self, job_id: JobId) -> None:
        """Forgets a job and frees its resources."""
        if job_id in self.jobs:
            self.ledger.give_back(job_id, self.holds.pop(job_id))
            del self.jobs[job_id]

    def hold(self, job: RunningJob) -> list[Overcommit]:
        """Replaces a job's holds by those of its assignments; returns the overcommits of the new ones."""
        holds = holds_of(job)
        is_new = holds != self.holds.get(job.id)
        self.drop_job(job.id)
        self.jobs[job.id] = job
        self.holds[job.id] = holds
        overcommits: list[Overcommit] = []
        for hold in holds:
            overcommits += self.ledger.overcommits(job.id, hold) if is_new else ()
            self.ledger.take(job.id, [hold])
        return overcommits

    def keep_lapsed(self, job: RunningJob, until_s: float, most_bytes: int) -> None:
        """Keeps the job of an expired reservation; the oldest ones are forgotten first."""
        self.lapsed.pop(job.id, None)
        self.lapsed[job.id] = (until_s, job)
        while sum(len(encode(kept)) for _, kept in self.lapsed.values()) > most_bytes:
            del self.lapsed[next(iter(self.lapsed))]

    def take_lapsed(self, job_id: JobId, now_s: float) -> RunningJob | None:
        """Removes and returns the job of an expired reservation."""
        until_s, job = self.lapsed.pop(job_id, (0.0, None))
        return job if until_s > now_s else None


class _Events(list[Event]):
    """See store.Batch."""

    async def after(self, version: int) -> Sequence[Event]:
        return [event for event in self if event.version > version]


class MemoryStore(MemoryBundles):
    """StateStore for tests and the simulator; replicas of a test share one."""

    def __init__(self, clock: Clock | None = None, options: StoreOptions | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._options = options or StoreOptions()
        self._clusters: dict[str, _Cluster] = {}
        self._answers: dict[str, dict[str, tuple[float, Repeated, bytes]]] = {}
        self._rings: dict[str, dict[Log, Ring]] = {}
        self._links: dict[str, Links] = {}

    async def ping(self) -> float:
        return self._clock.now_s()

    async def check_writable(self) -> None:
        return

    async def clusters(self) -> Sequence[str]:
        return sorted(self._clusters)

    async def load(self, cluster: str) -> tuple[ClusterRecords, str] | None:
        keys_of(cluster)
        state = self._clusters.get(cluster)
        if state is None:
            return None
        records = ClusterRecords(
            cluster=cluster,
            version=state.version,
            epoch=state.epoch,
            nodes=tuple(state.nodes[name] for name in sorted(state.nodes)),
            jobs=tuple(state.jobs[name] for name in sorted(state.jobs)),
            queues=dict(state.queues),
            settings=state.settings,
            overheads=dict(state.overheads),
            subtask_profiles={kind: dict(row) for kind, row in state.profiles.items()},
            host_time_s=state.host_time_s,
        )
        return records, f"{state.epoch}:{state.version}"

    async def tail(self, cluster: str, position: str) -> AsyncIterator[tuple[str, Batch]]:
        epoch, _, seen = position.partition(":")
        version = int(seen)
        state = self._clusters.get(cluster)
        if state is None or state.epoch != epoch or not state.trimmed <= version <= state.version:
            raise StaleSnapshotError("the events after this position are gone; load the cluster again")
        while True:
            if version < state.trimmed:
                raise StaleSnapshotError("the events after this position are gone; load the cluster again")
            events = state.events[version - state.trimmed :]
            version += len(events)
            yield f"{epoch}:{version}", _Events(events)
            if events and isinstance(events[-1].change, ClusterDeleted):
                return
            if version == state.version:
                await _wait(state.appended)

    def trim(self, cluster: str) -> None:
        """Forgets every event but the last, as a server does with old ones."""
        self._of(cluster).trim(1)

    def _of(self, cluster: str) -> _Cluster:
        state = self._clusters.get(cluster)
        if state is None:
            raise no_such_cluster(cluster)
        return state

    def _of_new(self, cluster: str) -> _Cluster:
        keys_of(cluster)
        return self._clusters.setdefault(cluster, _Cluster(secrets.token_hex(6)))

    async def report_nodes(self, cluster: str, nodes: Sequence[Node], full: bool) -> ReportResult:
        state = self._of_new(cluster)
        reported = {node.id: node for node in nodes}
        removed = tuple(sorted(name for name in state.nodes if name not in reported)) if full else ()
        for name in removed:
            del state.nodes[name], state.ledger.capacities[name]
        state.nodes.update(reported)
        state.ledger.capacities.update((node.id, capacity_of(node)) for node in nodes)
        event = state.append(NodesReported(tuple(nodes), removed))
        return ReportResult((event,), event.version, len(nodes) + len(removed), 0)

    async def reserve(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        check_reservable(request.jobs)
        standing = self._recall(cluster, request.request_id, request.fingerprint, request.over)
        if standing is not None:
            return standing
        state = self._clusters.get(cluster)
        if state is None:
            return Conflict("", "CLUSTER_UNKNOWN")
        if (conflict := _conflict(state, request)) is not None:
            return conflict
        expire_s = self._time_of(state) + request.ttl_s
        jobs = tuple([reserved(job, expire_s) for job in request.jobs])
        for job in jobs:
            state.ended.pop(job.id, None)
            state.hold(job)
        event = state.append(JobsChanged(jobs))
        self._memorise(cluster, request.request_id, Repeated(request.answer, expire_s), request.fingerprint)
        return Reserved(event, expire_s)

    async def look_up(self, cluster: str, job_ids: Sequence[JobId]) -> Mapping[JobId, RunningJob | None]:
        state = self._clusters.get(cluster)
        if state is None:
            return {}
        now_s = self._clock.now_s()
        found: dict[JobId, RunningJob | None] = {}
        for job_id in job_ids:
            job = state.jobs.get(job_id)
            if job is not None and not 0 < job.expire_time_s <= self._time_of(state):
                found[job_id] = job
            elif state.ended.get(job_id, 0.0) > now_s:
                found[job_id] = None
        return found

    async def release(self, cluster: str, reservation_ids: Sequence[str]) -> ReportResult:
        state = self._clusters.get(cluster)
        if state is None:
            return ReportResult((), 0, 0, len(reservation_ids))
        ended: list[JobId] = []
        released = 0
        for reservation_id in reservation_ids:
            jobs = [
                job.id
                for job in state.jobs.values()
                if job.state is RunState.RESERVED and job.reservation_id == reservation_id != ""
            ]
            for job_id in jobs:
                state.drop_job(job_id)
                state.lapsed.pop(job_id, None)
            ended += jobs
            released += bool(jobs)
        events = (state.append(JobsEnded(tuple(ended))),) if ended else ()
        return ReportResult(events, state.version, released, len(reservation_ids) - released)

    def _time_of(self, state: _Cluster) -> float:
        return self._clock.now_s() if state.host_time_s is None else state.host_time_s

    async def expire(self, cluster: str, host_time_s: float | None = None) -> ReportResult:
        state = self._clusters.get(cluster)
        if state is None:
            return ReportResult((), 0, 0, 0)
        now_s = self._clock.now_s()
        events: list[Event] = []
        if host_time_s is not None and state.host_time_s is not None and host_time_s > state.host_time_s:
            state.host_time_s = host_time_s
            events.append(state.append(ClockMoved(host_time_s)))
        reserved = [job for job in state.jobs.values() if job.state is RunState.RESERVED]
        late = sorted((job.expire_time_s, job.id) for job in reserved if job.expire_time_s <= self._time_of(state))
        for _, job_id in late:
            job = state.jobs[job_id]
            state.drop_job(job_id)
            state.keep_lapsed(job, now_s + self._options.lapsed_ttl_s, self._options.lapsed_bytes)
        if late:
            events.append(state.append(JobsEnded(tuple(job_id for _, job_id in late), is_expiry=True)))
        return ReportResult(tuple(events), state.version, len(late), 0)

    async def report_jobs(self, cluster: str, reports: Sequence[JobReport]) -> ReportResult:
        state = self._of(cluster)
        now_s = self._clock.now_s()
        state.ended = {job_id: until_s for job_id, until_s in state.ended.items() if until_s > now_s}
        changes, overcommits, unknown = list[JobsChanged | JobsEnded](), list[Overcommit](), list[JobId]()
        for report in reports:
            change = self._change(state, report, now_s, overcommits)
            if change is not None:
                changes.append(change)
            elif report.is_start_as_decided and report.job_id not in state.jobs.keys() | state.ended.keys():
                unknown.append(report.job_id)
        events = tuple(state.append(change) for change in runs_of(changes))
        applied, ignored = len(changes), len(reports) - len(changes)
        return ReportResult(events, state.version, applied, ignored, tuple(overcommits), tuple(unknown))

    def _change(
        self, state: _Cluster, report: JobReport, now_s: float, overcommits: list[Overcommit]
    ) -> JobsChanged | JobsEnded | None:
        """Applies one report; None if it changes nothing."""
        if report.job_id in state.ended:
            return None
        held = state.jobs.get(report.job_id)
        if report.is_end:
            held_under = held.reservation_id if held is not None else ""
            if report.reservation_id and held_under and held_under != report.reservation_id:
                return None
            state.drop_job(report.job_id)
            state.lapsed.pop(report.job_id, None)
            state.ended[report.job_id] = now_s + self._options.ended_ttl_s
            return JobsEnded((report.job_id,))
        if held is None and report.running is None and report.kind in ("STARTED", "PROGRESS"):
            held = state.take_lapsed(report.job_id, now_s)
        if (job := (started if report.kind == "STARTED" else progressed)(held, report)) is None:
            return None
        overcommits += state.hold(job)
        return JobsChanged((job,))

    async def recall(self, cluster: str, request_id: str, fingerprint: bytes = b"") -> Repeated | Reused | None:
        return self._recall(cluster, request_id, fingerprint, b"")

    async def remember(
        self, cluster: str, request_id: str, answer: bytes, fingerprint: bytes = b"", over: bytes = b""
    ) -> Repeated | Reused:
        standing = self._recall(cluster, request_id, fingerprint, over)
        if standing is None:
            standing = Repeated(answer)
            self._memorise(cluster, request_id, standing, fingerprint)
        return standing

    def _recall(self, cluster: str, request_id: str, fingerprint: bytes, over: bytes) -> Repeated | Reused | None:
        until_s, standing, asked = self._answers.get(cluster, {}).get(request_id, (0.0, None, b""))
        if standing is None or until_s <= self._clock.now_s():
            return None
        if asked and fingerprint and asked != fingerprint:
            return Reused()
        return None if over and standing.answer == over else standing

    def _memorise(self, cluster: str, request_id: str, answer: Repeated, fingerprint: bytes) -> None:
        if not request_id:
            return
        now_s = self._clock.now_s()
        known = self._answers.setdefault(cluster, {})
        for oldest in [name for name in islice(known, 2) if known[name][0] <= now_s]:
            del known[oldest]
        known[request_id] = (now_s + self._options.answer_ttl_s, answer, fingerprint)

    async def commit_queue(self, cluster: str, queue: QueueState, expected_seq: int) -> Event | None:
        state = self._of(cluster)
        current = state.queues.get(queue.queue)
        if (current.seq if current is not None else 0) != expected_seq:
            return None
        state.queues[queue.queue] = replace(queue, seq=expected_seq + 1)
        return state.append(QueueAdvanced(state.queues[queue.queue]))

    async def forget_queue(self, cluster: str, queue: str, expected_seq: int) -> Event | None:
        state = self._of(cluster)
        current = state.queues.get(queue)
        if current is None or current.seq != expected_seq:
            return None
        del state.queues[queue]
        return state.append(QueueAdvanced(QueueState(queue)))

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> Event:
        state = self._of_new(cluster)
        state.settings = settings
        state.host_time_s = (state.host_time_s or 0.0) if settings.host_clock else None
        return state.append(SettingsChanged(settings))

    async def learn_overhead(self, cluster: str, outcome_id: str, task_kind: str, overhead_s: float) -> Event | None:
        state, now_s = self._of(cluster), self._clock.now_s()
        if not state.outcomes.is_first(outcome_id, now_s, self._options.outcome_ttl_s):
            return None
        old = state.overheads.get(task_kind) or OverheadLearned(task_kind, 0, 0.0)
        mean_s = old.mean_overhead_s + (overhead_s - old.mean_overhead_s) / (old.count + 1)
        state.overheads.put(task_kind, OverheadLearned(task_kind, old.count + 1, mean_s), now_s)
        return state.append(state.overheads[task_kind])

    async def profile_subtask(self, cluster: str, kind: str, metrics: Mapping[str, float]) -> Event:
        state = self._of(cluster)
        state.profiles.put(kind, {**state.profiles.get(kind, {}), **metrics}, self._clock.now_s())
        return state.append(SubtaskProfiled(kind, dict(metrics)))

    async def add_sums(self, cluster: str, additions: Sequence[Addition], halving_s: float) -> Sequence[Event]:
        state, now_s = self._of(cluster), self._clock.now_s()
        events = []
        for kind, x, weight, once in [(each.kind, each.value, each.weight, each.once) for each in additions]:
            if once and not state.outcomes.is_first(once, now_s, self._options.outcome_ttl_s):
                continue
            row = sums_of(state.profiles.get(kind, {})).added(x, self._time_of(state), halving_s, weight).row
            state.profiles.put(kind, row, now_s)
            events.append(state.append(SubtaskProfiled(kind, dict(row))))
        return events

    async def forget_profiles(self, cluster: str, used: Collection[str], idle_s: float) -> Sequence[Event]:
        state, now_s = self._of(cluster), self._clock.now_s()
        state.profiles.use(used, now_s)
        changes: list[Change] = [SubtaskForgotten(kind) for kind in state.profiles.forget(now_s - idle_s)]
        changes += [OverheadLearned(kind, 0, 0.0) for kind in state.overheads.forget(now_s - idle_s)]
        return [state.append(change) for change in changes]

    async def delete_cluster(self, cluster: str) -> bool:
        state = self._clusters.pop(cluster, None)
        self._answers.pop(cluster, None)
        self._rings.pop(cluster, None)
        self._links.pop(cluster, None)
        if state is None:
            return False
        state.append(ClusterDeleted())
        return True

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        if cluster not in self._clusters:
            return len(records)
        most_bytes = self._options.views_bytes if log is Log.VIEWS else self._options.ring_bytes
        return self._ring(cluster, log).append(records, self._options.ring_records, most_bytes, lost)

    async def link_jobs(self, cluster: str, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        if cluster not in self._clusters:
            return []
        return self._links.setdefault(cluster, Links()).link(questions)

    async def copy_events(self, cluster: str) -> tuple[bool, int]:
        state = self._clusters.get(cluster)
        if state is None:
            return False, 0
        events = state.events[max(0, state.copied - state.trimmed) :]
        state.copied = state.version
        if not events:
            return False, 0
        record = encode((1, "events", f"{state.epoch}:{events[0].version}-0", [raw_event(event) for event in events]))
        return False, await self.append_decisions(cluster, [record], Log.VIEWS)

    def _ring(self, cluster: str, log: Log) -> Ring:
        return self._rings.setdefault(cluster, {}).setdefault(log, Ring())

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        return self._ring(cluster, log).after(after, count)

    async def find_decision(self, cluster: str, decision_id: str) -> bytes | None:
        ring = self._ring(cluster, Log.DECISIONS)
        return next((record for _, record in ring.entries if is_decision(record, decision_id)), None)

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        if cluster in self._clusters:
            self._ring(cluster, log).mark(position)

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        state = self._clusters.get(cluster)
        return self._ring(cluster, log).state(None if state is None else state.host_time_s)

    async def close(self) -> None:
        return


async def _wait(appended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_HEARTBEAT_S):
            await appended.wait()
    except TimeoutError:
        return


def _conflict(state: _Cluster, request: ReserveRequest) -> Conflict | None:
    """Tries the whole request on a copy. A job that is only reserved may be decided again; a running one may not."""
    wanted = {job.id: holds_of(job) for job in request.jobs}
    own = wanted.keys()
    touched = [*wanted.values(), *(state.holds[job_id] for job_id in own & state.jobs.keys())]
    trial = state.ledger.copy({hold.node for holds in touched for hold in holds})
    known = [state.jobs[job_id] for job_id in wanted if job_id in state.jobs]
    if running := tuple(job for job in known if job.state is RunState.RUNNING):
        return Conflict("", "JOB_RUNNING", running)
    for job in known:
        trial.give_back(job.id, state.holds[job.id])
    for job_id, holds in wanted.items():
        if found := trial.network_conflict(holds, request.expected_nodes):
            return Conflict(*found)
        for hold in holds:
            if reason := trial.conflict(hold, request.expected_tenants, own):
                return Conflict(hold.node, reason)
            trial.take(job_id, [hold])
    return None
