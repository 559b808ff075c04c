"""Turns what schedulers report into mutations of the store and outcome entries of the log. Decides nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import structlog

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Gpu, Node, NodeTelemetry, RunningJob, RunState
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.events import Event, JobsChanged, JobsEnded, NodesReported
from placewise_core.domain.job import Job, JobId, NodeId
from placewise_core.speed.co_runs import rows_of
from placewise_core.speed.learned import capability, disturbance, durations, heat, pairs, throughputs
from placewise_core.speed.learned.durations import kinds_of, log_length
from placewise_core.speed.learned.sums import Addition
from placewise_core.subtasks.metrics import measured_times
from placewise_core.view.disturbance import disturbance_of
from placewise_core.view.learned.capability import capability_additions, outcome_id
from placewise_core.view.learned.heat import heat_additions
from placewise_core.view.learned.pairs import pair_of
from placewise_core.view.speeds import addition_of
from placewise_core.view.view import ClusterView
from placewise_log.record import OutcomeRecord
from placewise_service.aside import aside
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.growth import within
from placewise_service.engine.reporting.observed import completed
from placewise_service.engine.views import LiveView
from placewise_service.state.store import JobReport, Overcommit, StateStore

log = structlog.get_logger(__name__)

_MANY = 200  # nodes from which a report is worked on beside the loop
_MOST_NEIGHBOURS = 256  # of one report, by name
_PORTION = 128  # events and their parts: tasks, groups, subtasks
_ENDS = frozenset({JobEventKind.FINISHED, JobEventKind.FAILED, JobEventKind.CANCELLED})
_HOLDING = frozenset({JobEventKind.STARTED, JobEventKind.PROGRESS})
_LOGGED_ONLY = frozenset({JobEventKind.SUBMITTED, JobEventKind.SHARE_MOVE_REQUESTED})


@frozen
class ReportOutcome:
    """Version after the report, how many entries changed something or were repeats, where hosts started jobs that
    do not fit there, and which jobs started by a decision that is not known."""

    version: int
    applied: int
    ignored: int
    overcommits: tuple[Overcommit, ...] = ()
    unknown: tuple[JobId, ...] = ()

    def followed_by(self, other: "ReportOutcome") -> "ReportOutcome":
        """Both as one."""
        return ReportOutcome(
            other.version,
            self.applied + other.applied,
            self.ignored + other.ignored,
            self.overcommits + other.overcommits,
            self.unknown + other.unknown,
        )


def portions(events: Sequence[JobEvent]) -> Iterator[Sequence[JobEvent]]:
    """The events in parts, in order, that each take the loop, the store and every view a few milliseconds."""
    start = weight = 0
    for i, event in enumerate(events):
        own = 1 + len(event.placement) + (len(event.job.groups) + len(event.job.subtasks) if event.job else 0)
        if weight and weight + own > _PORTION:
            yield events[start:i]
            start, weight = i, 0
        weight += own
    yield events[start:]


class Reporter:
    """Takes reports from the faces to the store."""

    def __init__(
        self,
        store: StateStore,
        sink: DecisionSink,
        most_profiles: int,
        on_profiles_refused: Callable[[str, int], None],
    ) -> None:
        self._most_profiles = most_profiles
        self._on_profiles_refused = on_profiles_refused
        self._store = store
        self._sink = sink

    async def nodes(
        self, cluster: str, view: ClusterView | None, nodes: Sequence[Node], full: bool, now_s: float
    ) -> tuple[ReportOutcome, Sequence[Event]]:
        """Upserts nodes, with GPUs listed if the host only counted them, and telemetry dated if it was not. `view` is
        the cluster's before; None if it is new."""
        before = _known(nodes, view) if view is not None and view.settings.learn_heat else {}
        completed = await aside(_all_completed, nodes, now_s) if len(nodes) > _MANY else _all_completed(nodes, now_s)
        result = await self._store.report_nodes(cluster, completed, full)
        events = [*result.events, *await self._learn_heat(cluster, view, before, result.events)]
        version = max((event.version for event in events), default=result.version)
        return ReportOutcome(version, result.applied, result.ignored), events

    async def _learn_heat(
        self, cluster: str, view: ClusterView | None, before: Mapping[NodeId, Node], applied: Sequence[Event]
    ) -> Sequence[Event]:
        """Adds what nodes show of their heat to the sums; a report that came late or twice shows nothing."""
        changed = [node for event in applied if isinstance(event.change, NodesReported) for node in event.change.nodes]
        pairs = [(before[node.id], node) for node in changed if node.id in before]
        if view is None or not pairs:
            return ()
        additions = await aside(heat_additions, pairs) if len(pairs) > _MANY else heat_additions(pairs)
        return await self._add(cluster, additions, view.estimates.heat.kinds, heat.HALVING_S)

    async def job_events(
        self, cluster: str, live: LiveView, events: Sequence[JobEvent], now_s: float
    ) -> tuple[ReportOutcome, Sequence[Event]]:
        """Applies job events in order. Every event is logged; those the store does not need change nothing there."""
        # Before the call to the store: while it answers, the tail may already remove an ended job from the view.
        named = {event.job_id: event.decision_id for event in events if event.decision_id}
        decided = [_decision_id(event, live) or named.get(event.job_id, "") for event in events]
        outcomes = [
            OutcomeRecord(cluster, now_s, event, decision_id, _neighbours(event, live))
            for event, decision_id in zip(events, decided, strict=True)
        ]
        reports = [report for event in events if (report := _job_report(event, live, now_s)) is not None]
        lengths = _lengths(reports, live) if live.view.settings.learn_durations else {}
        settings = live.view.settings
        speeds = _measured(reports, live, addition_of) if settings.learn_throughput else []
        losses = _measured(reports, live, disturbance_of)
        beside = _measured(reports, live, pair_of) if settings.learn_co_runs else []
        result = await self._store.report_jobs(cluster, reports)
        changes = [*result.events, *await self._release_heads(cluster, live, events)]
        if lengths:
            changes.extend(await self._add_lengths(cluster, live, lengths, result.events))
        estimates = live.view.estimates
        for sums, known, halving_s in (
            (speeds, estimates.throughputs.kinds, throughputs.HALVING_S),
            (losses, estimates.disturbance.kinds, disturbance.HALVING_S),
            (beside, estimates.pairs.kinds, pairs.HALVING_S),
        ):
            if sums:
                changes.extend(await self._add_measured(cluster, sums, result.events, known, halving_s))
        learned = await self._learn(cluster, live, events)
        changes.extend(learned)
        shares, shown = await self._learn_capability(cluster, live, events)
        changes.extend(shares)
        rows, measured = await self._profile(cluster, live, events)
        changes.extend(rows)
        for outcome in outcomes:
            self._sink.offer(outcome)
        logged_only = sum(event.kind in _LOGGED_ONLY for event in events)
        version = max((change.version for change in changes), default=result.version)
        applied = result.applied + len(learned) + shown + measured + logged_only
        for overcommit in result.overcommits:
            log.warning(
                "a host started a job on a node that has too little left",
                cluster=cluster,
                job=overcommit.job_id,
                node=overcommit.node,
                reason=overcommit.reason,
                gpus=overcommit.gpus,
                others=overcommit.others,
            )
        for job_id in result.unknown:
            log.warning("a host started a job whose decision is not known", cluster=cluster, job=job_id)
        ignored = len(events) - applied
        return ReportOutcome(version, applied, ignored, result.overcommits, result.unknown), changes

    async def _release_heads(self, cluster: str, live: LiveView, events: Sequence[JobEvent]) -> list[Event]:
        """Jobs that ended, or left their queue, keep no nodes as its head. If somebody else changed the queue in this
        moment, the reservation lapses by itself."""
        ended = {event.job_id for event in events if event.kind in _ENDS}
        released = []
        for queue in list(live.view.queues.values()) if ended else ():
            if queue.head is not None and queue.head.job in ended:
                state = replace(queue, head=None, seq=queue.seq + 1)
                change = await self._store.commit_queue(cluster, state, queue.seq)
                if change is not None:
                    released.append(change)
        return released

    async def _add_lengths(
        self,
        cluster: str,
        live: LiveView,
        lengths: Mapping[JobId, Sequence[Addition]],
        applied: Sequence[Event],
    ) -> Sequence[Event]:
        """The lengths of the jobs that this report has ended; a repeat has ended none."""
        ended = [job for event in applied if isinstance(event.change, JobsEnded) for job in event.change.job_ids]
        additions = [addition for job in ended for addition in lengths.get(job, ())]
        return await self._add(cluster, additions, live.view.estimates.durations.kinds, durations.HALVING_S)

    async def _add_measured(
        self,
        cluster: str,
        measured: Sequence[tuple[JobId, Addition]],
        applied: Sequence[Event],
        known: Iterable[str],
        halving_s: float,
    ) -> Sequence[Event]:
        """Of the jobs whose speeds this report has changed; a repeat changes none."""
        changed = {job.id for event in applied if isinstance(event.change, JobsChanged) for job in event.change.jobs}
        additions = [addition for job, addition in measured if job in changed]
        return await self._add(cluster, additions, known, halving_s)

    async def _add(
        self, cluster: str, additions: Sequence[Addition], known: Iterable[str], halving_s: float
    ) -> Sequence[Event]:
        """Adds to the sums of the store. Rows beyond the bound are not learned."""
        news = {addition.kind: {addition.kind: addition.value} for addition in additions}
        kept = within(news, known, self._most_profiles)
        self._on_profiles_refused(cluster, len(news) - len(kept))
        wanted = [addition for addition in additions if addition.kind in kept]
        return await self._store.add_sums(cluster, wanted, halving_s) if wanted else ()

    async def _learn(self, cluster: str, live: LiveView, events: Sequence[JobEvent]) -> list[Event]:
        """Overheads of finished shares go into the running mean of their kind, up to the most kinds."""
        finished = [
            (event, event.share)
            for event in events
            if event.kind is JobEventKind.SHARE_FINISHED and event.share is not None and event.share.overhead_s > 0
        ]
        kinds = {share.task_kind: share for _, share in finished}
        kept = within(kinds, live.view.overheads, self._most_profiles)
        self._on_profiles_refused(cluster, len(kinds) - len(kept))
        learned = []
        for event, share in finished:
            if share.task_kind not in kept:
                continue
            own_id = outcome_id(event.job_id, share)
            change = await self._store.learn_overhead(cluster, own_id, share.task_kind, share.overhead_s)
            if change is not None:
                learned.append(change)
        return learned

    async def _learn_capability(
        self, cluster: str, live: LiveView, events: Sequence[JobEvent]
    ) -> tuple[Sequence[Event], int]:
        """Speeds of finished shares go into the sums of their kind, unit and type of node. Also counts the shares that
        changed these alone, as they report no overhead."""
        view, changes, alone = live.view, list[Event](), 0
        if not view.settings.learn_capability:
            return (), 0
        for has_overhead in (True, False):
            some = [event for event in events if event.share and (event.share.overhead_s > 0) == has_overhead]
            known = view.estimates.capabilities.kinds
            added = await self._add(cluster, capability_additions(some, view), known, capability.HALVING_S)
            changes.extend(added)
            alone = len(added)
        return changes, alone

    async def _profile(self, cluster: str, live: LiveView, events: Sequence[JobEvent]) -> tuple[list[Event], int]:
        """Metrics of subtasks that a job's description gives, and times of finished subtasks, serve all subtasks of
        their kind from then on; co-runs, all jobs of their model. Also counts the finished subtasks that changed a
        row."""
        described = [event.job for event in events if event.job is not None]
        given: dict[str, dict[str, float]] = {}
        for subtask in [subtask for job in described for subtask in job.subtasks]:
            if subtask.kind and subtask.profile:
                given.setdefault(subtask.kind, {}).update(subtask.profile)
        known = live.view.subtask_profiles
        measured = _add_times(given, events, known)
        news = {kind: row for kind, row in given.items() if row.items() - known.get(kind, {}).items()}
        co_runs, book = rows_of((job.model, job.gpu_sharing.co_runs) for job in described), live.view.co_runs
        news |= {kind: row for kind, row in co_runs.items() if row.items() - book.row(kind).items()}
        kept = within(news, (*known, *book.kinds), self._most_profiles)
        fitting = {
            kind: within(row, known.get(kind) or book.row(kind), self._most_profiles) for kind, row in kept.items()
        }
        left_out = sum(len(row) - len(fitting[kind]) for kind, row in kept.items())
        self._on_profiles_refused(cluster, len(news) - len(kept) + left_out)
        changes = [await self._store.profile_subtask(cluster, kind, row) for kind, row in fitting.items() if row]
        return changes, sum(bool(fitting.get(kind)) for kind in measured)


def _lengths(reports: Sequence[JobReport], live: LiveView) -> dict[JobId, list[Addition]]:
    """ln(length) of each job that a report ends, by kind, from that of all jobs to the finest. Before the call to the
    store: the tail may remove the job from the view meanwhile."""
    found = {}
    for report in reports:
        running = live.view.jobs.get(report.job_id) if report.is_end else None
        x = log_length(running, report.event_time_s) if running is not None else None
        if running is not None and x is not None:
            found[running.id] = [Addition(kind, x) for kind in kinds_of(running.job)]
    return found


def _measured(
    reports: Sequence[JobReport],
    live: LiveView,
    measure: Callable[[RunningJob, float, float, ClusterView], Addition | None],
) -> list[tuple[JobId, Addition]]:
    """What reports of progress measure, beside the neighbours that the view has now."""
    known: dict[JobId, RunningJob] = {}
    found = []
    for report in reports:
        running = known.get(report.job_id) or live.view.jobs.get(report.job_id)
        if running is None or report.kind != JobEventKind.PROGRESS:
            continue
        addition = measure(running, report.speed, report.epochs_done, live.view)
        known[running.id] = replace(running, speed=report.speed, epochs_done=report.epochs_done)
        if addition is not None:
            found.append((running.id, addition))
    return found


def _add_times(
    given: dict[str, dict[str, float]], events: Sequence[JobEvent], known: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Adds the times of finished subtasks to the rows of their kinds. The kind of each report that changed its row."""
    changed = []
    for event in events:
        outcome = event.subtask
        if event.kind is not JobEventKind.SUBTASK_FINISHED or outcome is None:
            continue
        row = {**known.get(outcome.kind, {}), **given.get(outcome.kind, {})}
        times = measured_times(outcome, row)
        if times.items() - row.items():
            given.setdefault(outcome.kind, {}).update(times)
            changed.append(outcome.kind)
    return changed


def _known(nodes: Sequence[Node], view: ClusterView) -> dict[NodeId, Node]:
    """The nodes as the view has them now; without those that it does not know."""
    index, records = view.nodes.index, view.nodes.records
    return {node.id: records[index[node.id]] for node in nodes if node.id in index}


def _all_completed(nodes: Sequence[Node], now_s: float) -> list[Node]:
    return [_completed(node, now_s) for node in nodes]


def _completed(node: Node, now_s: float) -> Node:
    """A node whose GPUs are listed one by one, and whose capacity counts them."""
    gpus = node.gpus or tuple(
        Gpu(index, memory_gib=node.capacity.gpu_memory_gib / node.capacity.gpus)
        for index in range(int(node.capacity.gpus))
    )
    memory_gib = node.capacity.gpu_memory_gib or sum(gpu.memory_gib for gpu in gpus)
    capacity = replace(node.capacity, gpus=float(len(gpus)), gpu_memory_gib=memory_gib)
    return replace(node, gpus=gpus, capacity=capacity, telemetry=_dated(node, now_s))


def _dated(node: Node, now_s: float) -> NodeTelemetry:
    telemetry = node.telemetry
    if telemetry == NodeTelemetry() or telemetry.observe_time_s > 0:
        return telemetry
    return replace(telemetry, observe_time_s=now_s)


def _decision_id(event: JobEvent, live: LiveView) -> str:
    """The decision behind a report: the one the host names, else the job's; "" if unknown."""
    if event.decision_id:
        return event.decision_id
    running = live.view.jobs.get(event.job_id)
    if running is not None:
        return running.decision_id
    start_time_s = event.event_time_s if event.kind is JobEventKind.STARTED else 0.0
    return live.departed.decision_of(event.job_id, is_end=event.kind in _ENDS, start_time_s=start_time_s)


def _neighbours(event: JobEvent, live: LiveView) -> tuple[str, ...] | None:
    """The jobs beside one that reports progress; None of other events, and of a job that holds nothing."""
    running = live.view.jobs.get(event.job_id) if event.kind is JobEventKind.PROGRESS else None
    if running is None:
        return None
    nodes = {live.view.nodes.index[task.node] for task in running.assignments if task.node in live.view.nodes.index}
    beside = {job_id for m in nodes for job_id in live.view.usage.jobs_on(m)} - {event.job_id}
    return tuple(sorted(beside)[:_MOST_NEIGHBOURS])


def _job_report(event: JobEvent, live: LiveView, now_s: float) -> JobReport | None:
    """The mutation of an event; None if it changes nothing."""
    if event.kind not in _ENDS | _HOLDING:
        return None
    time_s = event.event_time_s or now_s
    return JobReport(
        job_id=event.job_id,
        kind=event.kind,
        event_time_s=time_s,
        running=_running(event, live, time_s) if event.kind is JobEventKind.STARTED and event.placement else None,
        is_end=event.kind in _ENDS,
        speed=event.speed,
        epochs_done=event.epochs_done,
        reservation_id=event.reservation_id,
        reason=event.reason,
    )


def _running(event: JobEvent, live: LiveView, time_s: float) -> RunningJob:
    """What now really runs, by the placement the host names. (Without one the store knows better than a view.)"""
    known = live.view.jobs.get(event.job_id)
    job = event.job or (known.job if known is not None else Job(event.job_id))
    return RunningJob(
        job=job,
        assignments=completed(event.placement, job, known, live.view),
        state=RunState.RUNNING,
        reservation_id=event.reservation_id or (known.reservation_id if known is not None else ""),
        start_time_s=time_s,
        speed=event.speed,
        epochs_done=event.epochs_done,
        decision_id=_decision_id(event, live),
    )
