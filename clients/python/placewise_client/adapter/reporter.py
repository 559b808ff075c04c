"""Reports job events and nodes to the service: at least once, in order, never in the host's way.

Events wait in memory while the service is away. The next start rebuilds them from the host if the process is lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1.cluster_pb2 import Assignment, JobEvent, Node, ReportJobEventsRequest, ReportNodesRequest
from placewise_client.adapter.breaker import Breaker
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import AdapterSettings, End, NativeJob, Placement
from placewise_client.aio import AsyncClient
from placewise_client.errors import InvalidRequestError, PlacewiseError

log = logging.getLogger(__name__)

_MOST_QUEUED = 100_000
_PER_REQUEST = 500
_SEARCHED_AT_ONCE = 64
_TIMEOUT_S = 2.0
# The service takes 10,000 nodes in two to six seconds.
_TIMEOUT_S_PER_NODE = 0.002
# Complete reports take at most this share of the time, unless one would get so old: at 90 s its telemetry is stale.
_REPORTING_SHARE = 0.1
_OLDEST_REPORT_S = 45.0
# Characters. The service refuses an event with a longer reason, or with one that cannot be printed.
_MOST_REASON = 512
# How the service names the node for which it refuses a report.
_NODE_FIELD = re.compile(r"nodes\[(\d+)\]")

_END_KINDS: Mapping[End, JobEvent.Kind] = {
    End.FINISHED: JobEvent.FINISHED,
    End.FAILED: JobEvent.FAILED,
    End.CANCELLED: JobEvent.CANCELLED,
}


def timestamp(seconds: float) -> Timestamp:
    """Seconds since the epoch as a protobuf Timestamp (microsecond resolution)."""
    micros = round(seconds * 1e6)
    return Timestamp(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


@dataclass(frozen=True, slots=True)
class _LastStart:
    """What the service knows of a job that runs. `start_time_s` is 0 where unknown. `moved`: the last event of places
    that have changed since."""

    places: Placement
    start_time_s: float
    moved: JobEvent | None = None


@dataclass(slots=True)
class OutcomeReporter:
    """Queues job events and sends them; sends nodes that are new or changed. `now` is seconds since the epoch."""

    client: AsyncClient
    settings: AdapterSettings
    metrics: AdapterMetrics = field(default_factory=AdapterMetrics)
    breaker: Breaker = field(default_factory=Breaker)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _queue: list[JobEvent] = field(default_factory=list)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _under_way: int = 0  # of those that wait, the first so many are being sent
    _sent_events: set[tuple[str, int]] = field(default_factory=set)
    _last_starts: dict[str, _LastStart] = field(default_factory=dict)
    _nodes: dict[str, bytes] = field(default_factory=dict)
    _refused_nodes: dict[str, bytes] = field(
        default_factory=dict
    )  # nodes, but for their telemetry, that it would not take
    _logged_refusals: set[str] = field(default_factory=set)
    _last_sent_nodes: Sequence[Node] | None = None
    _nodes_sent_at_s: float = float("-inf")
    _nodes_took_s: float = 0.0

    def report_submitted(self, job: NativeJob) -> None:
        """The job waits for the service's answer."""
        self._add(JobEvent(job_id=job.key, kind=JobEvent.SUBMITTED, job=job.job, event_time=self._time(0)))

    def report_started(
        self, job: NativeJob, decided: Placement | None, *, left_because: str = "", in_full: bool = False
    ) -> bool:
        """The job runs. True if an event was queued: its start or its places are news for the service.

        A placement other than the decided one is reported as an override by the host.
        `left_because`: why the adapter left the job to the host, if it did. `in_full` repeats the placement although it
        is as decided, for a service that may have forgotten it. A job that can move is reported again when its places
        differ from the last report; the service replaces the earlier ones.
        """
        if (job.key, int(JobEvent.STARTED)) in self._sent_events:
            return self._report_moved(job, decided)
        event = JobEvent(job_id=job.key, kind=JobEvent.STARTED, event_time=self._time(job.start_time_s))
        event.reason = _tellable(left_because)
        is_kept = decided is not None and is_as_decided(job, decided)
        if decided is not None:
            event.reservation_id, event.decision_id = decided.reservation_id, decided.decision_id
            if not is_kept:
                event.reason = _tellable(f"started by the host elsewhere than on {', '.join(decided.nodes)}")
        if in_full or not is_kept:
            event.placement.extend(decided.assignments if decided and is_kept else job.placement)
            event.job.CopyFrom(job.job)
        self._last_starts[job.key] = _LastStart(
            decided if decided and is_kept else Placement(job.placement), job.start_time_s
        )
        is_news = self._add(event)
        if is_news and decided is not None and not is_kept:
            self.metrics.overrides.inc()
            log.warning("job %s started on %s instead of %s", job.key, _nodes_of(job), decided.nodes)
        return is_news

    def _report_moved(self, job: NativeJob, decided: Placement | None) -> bool:
        last = self._last_starts.get(job.key)
        if not job.can_move or last is None or is_as_decided(job, last.places):
            return False
        event = JobEvent(job_id=job.key, kind=JobEvent.STARTED, placement=job.placement, job=job.job)
        event.event_time.CopyFrom(self._time(last.start_time_s or job.start_time_s))
        if decided is not None:
            event.reservation_id, event.decision_id = decided.reservation_id, decided.decision_id
        event.reason = "its places have changed since it started"
        if last.moved is not None:  # a service that is away hears only where it runs in the end
            begun, waiting = self._queue[: self._under_way], self._queue[self._under_way :]
            self._queue = begun + [other for other in waiting if other is not last.moved]
        self._last_starts[job.key] = _LastStart(Placement(job.placement), last.start_time_s, event)
        self.queue_event(event)
        log.info("job %s holds other places than when it started: %s", job.key, _nodes_of(job))
        return True

    def report_ended(self, job: NativeJob, decided: Placement | None) -> None:
        """The job ended, or was cancelled before it started: the service frees its resources."""
        event = JobEvent(
            job_id=job.key,
            kind=_END_KINDS[job.end or End.FINISHED],
            event_time=self._time(job.end_time_s),
            reason=_tellable(job.end_reason),
        )
        if decided is not None:
            event.reservation_id, event.decision_id = decided.reservation_id, decided.decision_id
        if self._add(event):
            self.report_shares(job)

    def report_shares(self, job: NativeJob) -> None:
        """Reported after the end: each share's outcome joins the decision that cut it."""
        for share in job.shares.outcomes if job.shares else ():
            event = JobEvent(job_id=job.key, kind=JobEvent.SHARE_FINISHED, event_time=self._time(job.end_time_s))
            event.decision_id = job.shares.decision_id if job.shares else ""
            event.share.CopyFrom(share)
            self.queue_event(event)

    def report_withdrawn(self, job: NativeJob, decided: Placement, why: str) -> None:
        """The placement will not be used: the service frees its resources. The job itself goes on waiting."""
        event = JobEvent(job_id=job.key, kind=JobEvent.CANCELLED, event_time=self._time(0))
        event.reservation_id, event.decision_id = decided.reservation_id, decided.decision_id
        event.reason = _tellable(f"placement withdrawn: {why}")
        self.queue_event(event)

    def queue_event(self, event: JobEvent) -> None:
        """Any other event, such as a share's outcome; not deduplicated."""
        self._queue.append(event)

    def note_started(self, key: str, places: Iterable[Assignment], start_time_s: float) -> None:
        """The service already knows that this job runs, and where (learned at start)."""
        self._sent_events.add((key, JobEvent.STARTED))
        self._last_starts[key] = _LastStart(Placement(tuple(places)), start_time_s)

    def forget(self, keys: Iterable[str]) -> None:
        """The host has forgotten these jobs: they need no more events."""
        gone = set(keys)
        self._sent_events = {event for event in self._sent_events if event[0] not in gone}
        for key in gone:
            self._last_starts.pop(key, None)

    def forget_all(self, running: Container[str]) -> None:
        """The service may have lost its state: nodes and running jobs will be reported again.

        Starts of these jobs that wait to be sent are dropped, but for those that are just being sent.
        """
        begun, waiting = self._queue[: self._under_way], self._queue[self._under_way :]
        is_again = [event.kind == JobEvent.STARTED and event.job_id in running for event in waiting]
        self._queue = begun + [event for event, again in zip(waiting, is_again, strict=True) if not again]
        self._sent_events.clear()
        self._nodes.clear()
        self._refused_nodes.clear()
        self._nodes_sent_at_s = float("-inf")

    @property
    def backlog(self) -> int:
        """Events not acknowledged yet."""
        return len(self._queue)

    @property
    def is_pressing(self) -> bool:
        """Whether a queued event changes free resources, so that the service needs it before the next question.

        A start as decided changes nothing: its resources are reserved since the decision.
        """
        return any(
            event.kind != JobEvent.SUBMITTED and (event.kind != JobEvent.STARTED or bool(event.placement))
            for event in self._queue
        )

    async def flush(self) -> bool:
        """Sends what waits, in order. False if an event could not be delivered (it stays for the next time)."""
        async with self._sending:  # one at a time, or events could overtake each other
            while self._queue:
                batch = self._queue[:_PER_REQUEST]
                if self.breaker.is_open():
                    return False
                self._under_way = len(batch)
                try:
                    is_over = await self._send(batch)
                finally:
                    self._under_way = 0
                if not is_over:
                    return False
                del self._queue[: len(batch)]
            return True

    async def _send(self, batch: list[JobEvent]) -> bool:
        """Whether the service has them, or will never take them."""
        try:
            request = ReportJobEventsRequest(cluster=self.settings.cluster, events=batch)
            response = await self.client.report_job_events(request, timeout_s=_TIMEOUT_S, retry=None)
        except InvalidRequestError as error:
            if len(batch) > 1:  # one that cannot be read must not take the others with it
                middle = len(batch) // 2
                return await self._send(batch[:middle]) and await self._send(batch[middle:])
            # It would always be refused and hold up all later events.
            log.warning("the service refused an event of job %s: %s", batch[0].job_id, error)
            self.metrics.events_dropped.inc()
        except PlacewiseError as error:
            self.breaker.fail(error.reason)
            return False
        else:
            self.breaker.succeed()
            for problem in response.problems:
                log.warning("%s", problem.message)
            for event in batch:
                self.metrics.events.labels(JobEvent.Kind.Name(event.kind).lower()).inc()
        return True

    def is_refresh_due(self) -> bool:
        """Whether the last complete report of the nodes is so old that their telemetry would soon count as stale."""
        seldom_s = min(self._nodes_took_s / _REPORTING_SHARE, _OLDEST_REPORT_S)
        return self.clock() - self._nodes_sent_at_s >= max(self.settings.node_refresh_s, seldom_s)

    async def report_nodes(self, nodes: Sequence[Node]) -> bool:
        """Sends nodes that changed, or all if one came or went or the last report is old. False if that failed.

        A node that the service refuses is left out until it changes.
        """
        is_old = self.is_refresh_due()
        if nodes is self._last_sent_nodes and not is_old:
            return True  # packing thousands of nodes at every pass would cost more than deciding
        packed = {node.id: node.SerializeToString(deterministic=True) for node in nodes}
        if self._refused_nodes:
            now = {node.id: _without_telemetry(node) for node in nodes if node.id in self._refused_nodes}
            self._refused_nodes = {name: node for name, node in self._refused_nodes.items() if now.get(name) == node}
            packed = {name: node for name, node in packed.items() if name not in self._refused_nodes}
        if packed == self._nodes and not is_old:
            self._last_sent_nodes = nodes
            return True
        if self.breaker.is_open():
            return False
        # Removing a node is only safe with the whole inventory; a change of some is sent as just those.
        full = is_old or packed.keys() != self._nodes.keys()
        known = [node for node in nodes if node.id in packed]
        changed = [node for node in known if full or packed[node.id] != self._nodes.get(node.id)]
        started_s = self.clock()
        try:
            full = await self._send_nodes(known, changed, full)
        except PlacewiseError as error:
            log.warning("nodes not reported: %s", error)
            self.breaker.fail(error.reason)
            return False
        self.breaker.succeed()
        self._nodes = {name: node for name, node in packed.items() if name not in self._refused_nodes}
        self._last_sent_nodes = nodes
        self._logged_refusals &= self._refused_nodes.keys()
        if full:
            self._nodes_sent_at_s = self.clock()
            self._nodes_took_s = self._nodes_sent_at_s - started_s
        return True

    async def _send_nodes(self, known: Sequence[Node], changed: Sequence[Node], full: bool) -> bool:
        """Reports what changed; whether it took a full report. Raises PlacewiseError."""
        try:
            await self._report_nodes(changed, full)
        except InvalidRequestError as error:
            if _place_of(error, changed) is None:
                raise
        else:
            return full
        await self._find_refused(changed)
        # In full, as the service may hold an outdated version of a node that it refuses now.
        await self._report_nodes([node for node in known if node.id not in self._refused_nodes], True)
        return True

    async def _find_refused(self, nodes: Sequence[Node]) -> None:
        """Finds the nodes that the service refuses. In parts that remove none: many may be, all for the same reason."""
        left = list(nodes)
        while left:
            part = left[:_SEARCHED_AT_ONCE]
            try:
                await self._report_nodes(part, False)
            except InvalidRequestError as error:
                place = _place_of(error, part)
                if place is None:
                    raise
                self._refuse(part[place], error)
                del left[: place + 1]  # the full report repeats the nodes before it
            else:
                del left[: len(part)]

    def _refuse(self, node: Node, error: PlacewiseError) -> None:
        is_passing = ".telemetry" in error.metadata["field"]  # the next reading may be another
        self._refused_nodes[node.id] = b"" if is_passing else _without_telemetry(node)
        if node.id not in self._logged_refusals:  # once, not at every look
            self._logged_refusals.add(node.id)
            log.warning("node %s is left out, the service refuses it: %s", node.id, error)

    async def _report_nodes(self, nodes: Sequence[Node], full: bool) -> None:
        request = ReportNodesRequest(cluster=self.settings.cluster, full=full)
        now = timestamp(self.now())
        for node in nodes:
            observed = request.nodes.add()
            observed.CopyFrom(node)
            if not observed.telemetry.HasField("observe_time"):  # the time of this look, unless the host gives one
                observed.telemetry.observe_time.CopyFrom(now)
        timeout_s = _TIMEOUT_S + _TIMEOUT_S_PER_NODE * len(nodes)
        await self.client.report_nodes(request, timeout_s=timeout_s, retry=None)

    def _time(self, seconds: float) -> Timestamp:
        return timestamp(seconds or self.now())

    def _add(self, event: JobEvent) -> bool:
        sent = (event.job_id, event.kind)
        if sent in self._sent_events:
            return False
        self._sent_events.add(sent)
        if len(self._queue) >= _MOST_QUEUED:
            del self._queue[self._under_way]
            self.metrics.events_dropped.inc()
        self._queue.append(event)
        return True


def _place_of(error: PlacewiseError, nodes: Sequence[Node]) -> int | None:
    """Index of the node for which the service refused the report; None if it names none."""
    named = _NODE_FIELD.match(error.metadata.get("field", ""))
    place = int(named[1]) if named else len(nodes)
    return place if place < len(nodes) else None


def _without_telemetry(node: Node) -> bytes:
    """The node without its telemetry, which changes with every look."""
    copy = Node()
    copy.CopyFrom(node)
    copy.ClearField("telemetry")
    return copy.SerializeToString(deterministic=True)


def is_as_decided(job: NativeJob, decided: Placement) -> bool:
    """Whether the host kept to the decision: the same nodes, as many GPUs on each and, if exact, the same GPUs.

    Tasks may be cut differently (a host may show one task per node although the decision has one per GPU), so GPUs are
    compared per node; a job without GPUs is compared by its tasks per node.
    """
    if not job.placement:
        return True
    if job.are_gpus_exact and _indices_by_node(job.placement) != _indices_by_node(decided.assignments):
        return False
    really, wanted = _gpus_by_node(job.placement), _gpus_by_node(decided.assignments)
    if any(wanted.values()):
        return really == wanted
    return Counter(a.node for a in job.placement) == Counter(a.node for a in decided.assignments)


def _indices_by_node(assignments: Iterable[Assignment]) -> dict[str, set[int]]:
    indices: dict[str, set[int]] = {}
    for assignment in assignments:
        indices.setdefault(assignment.node, set()).update(assignment.gpu_indices)
    return indices


def _gpus_by_node(assignments: Iterable[Assignment]) -> dict[str, float]:
    gpus: dict[str, float] = {}
    for assignment in assignments:
        held = assignment.demand.gpus or len(assignment.gpu_indices)
        gpus[assignment.node] = gpus.get(assignment.node, 0.0) + held
    return gpus


def _tellable(reason: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in reason[:_MOST_REASON])


def _nodes_of(job: NativeJob) -> list[str]:
    return sorted({assignment.node for assignment in job.placement})
