"""The loop every adapter runs: watch the host, ask the service, apply its answer, report what really happened.

One coroutine, one pass at a time. It keeps no state that the host and the service do not have, so it may be killed at
any moment. It never touches a job that has started, and no failure of the service or the host ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placewise.v1.cluster_pb2 import Cluster, GetClusterRequest, Node, RunningJob
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.book import Book, News, Record
from placewise_client.adapter.breaker import Breaker
from placewise_client.adapter.decider import Decider
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import (
    AdapterSettings,
    Applied,
    End,
    HostUnreachableError,
    NativeJob,
    NativeScheduler,
    NoFit,
    Placed,
    Placement,
    Stage,
    Undecided,
    Verdict,
    Waiting,
)
from placewise_client.adapter.reporter import OutcomeReporter, is_as_decided
from placewise_client.aio import AsyncClient
from placewise_client.errors import NotFoundError, PlacewiseError

log = logging.getLogger(__name__)

# Placements applied to the host side by side.
_APPLY_AT_ONCE = 4
_RECOVER_TIMEOUT_S = 2.0
_RECOVER_TIMEOUT_S_PER_NODE = 0.002
_UNDECIDED_S = 5.0
_SOON_S = 60.0
NO_SHAPE = "NO_FEASIBLE_SHAPE"


@dataclass(slots=True)
class AdapterLoop:
    """Runs one native scheduler. Tests call `run_pass` with a clock of their own; `run` repeats passes."""

    native: NativeScheduler
    client: AsyncClient
    settings: AdapterSettings
    metrics: AdapterMetrics = field(default_factory=AdapterMetrics)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    decider: Decider = field(init=False)
    reporter: OutcomeReporter = field(init=False)
    book: Book = field(default_factory=Book)
    _breaker: Breaker = field(init=False)
    _is_host_away: bool = False
    _has_recovered: bool = False
    _has_looked: bool = False
    _known: frozenset[str] = frozenset()
    _ended_before: list[Record] = field(default_factory=list)
    _outages_seen: int = 0
    _nodes: Sequence[Node] = ()
    _are_nodes_due: bool = False
    _synced_at_s: float = float("-inf")
    _reporting: asyncio.Task[bool] | None = None

    def __post_init__(self) -> None:
        self._breaker = Breaker(clock=self.clock)
        parts = (self.client, self.settings, self.metrics, self._breaker, self.clock, self.now)
        self.decider = Decider(*parts, self.book)
        self.reporter = OutcomeReporter(*parts)

    async def run(self) -> None:
        """Passes until it is cancelled. Reports are sent while the loop waits for the next news."""
        try:
            while True:
                await self._look(full=self.clock() - self._synced_at_s >= self.settings.resync_s)
                self._report_meanwhile()
                await self.native_wait()
        finally:
            if self._reporting is not None:
                self._reporting.cancel()

    def _report_meanwhile(self) -> None:
        if self._reporting is not None and self._reporting.done():
            self._reporting.result()  # undelivered events stay queued; any other error ends the loop
            self._reporting = None
        if self._reporting is None and self.reporter.backlog:
            self._reporting = asyncio.create_task(self.reporter.flush())

    async def native_wait(self) -> None:
        """Sleeps until the host has news or something is due by time."""
        try:
            await self.native.wait(self._idle_s())
        except HostUnreachableError as error:
            self._host_failed(error)
            await asyncio.sleep(self._idle_s())

    async def run_pass(self, full: bool) -> None:
        """One look at the host and all that follows from it."""
        await self._look(full)
        await self.reporter.flush()

    async def _look(self, full: bool) -> None:
        """A pass without the reports that nobody waits for."""
        self.metrics.passes.inc()
        try:
            state = await self.native.observe(full)
        except HostUnreachableError as error:
            self._host_failed(error)
            return
        self._is_host_away = False
        news = self.book.update(state, self.clock())
        if state.is_complete:
            self._synced_at_s = self.clock()
        if not self._has_recovered and not self._breaker.is_open():
            await self._recover(len(state.nodes or self._nodes))
        if not self._has_looked:
            self._has_looked = True
            self._ended_before = [item.record for item in news if item.record.stage is Stage.ENDED]
            news = [item for item in news if item.record.stage is not Stage.ENDED]
        has_changed = self._note(news) | self._note_ended_before()
        for job in state.late:
            self.reporter.report_shares(job)
        is_reported = await self._report_changes(state.nodes)
        if has_changed or not is_reported:
            self.book.wake()
        await self._take_back_undecided()
        await self._serve_waiting()
        await self._leave_blocked()
        await self._take_back_overdue()

    def _idle_s(self) -> float:
        if self._is_host_away:
            return self.settings.retry_s
        now_s, retry_s = self.clock(), self.settings.retry_s
        until_resync_s = max(0.0, self._synced_at_s + self.settings.resync_s - now_s)
        is_due = self.reporter.backlog or self.book.waiting()
        # One that could not be taken back when it was due is tried again as anything else is.
        until_overdue_s = max(retry_s, self.book.next_overdue_s(self.settings.start_timeout_s) - now_s)
        return min(until_resync_s, until_overdue_s, *([retry_s] if is_due else []))

    def _host_failed(self, error: HostUnreachableError) -> None:
        self._is_host_away = True
        self.metrics.host_errors.inc()
        log.warning("the host scheduler does not answer: %s", error)

    def _note(self, news: list[News]) -> bool:
        """Queues the events that follow from the news. True if resources may have come free."""
        has_freed = False
        gone = []
        for item in news:
            record = item.record
            if record.stage is Stage.RUNNING:
                is_reported = self._note_start(record)
                has_freed |= is_reported and item.before is Stage.RUNNING
            elif item.before is Stage.RUNNING and record.stage is not Stage.ENDED:
                self._note_lost_start(record)
                has_freed = True
            elif record.stage is Stage.APPLIED:
                self._take_over(record)
            elif record.stage is Stage.WAITING and item.before is Stage.APPLIED:
                self._drop_decision(record, "the host took it back")
            elif record.stage is Stage.ENDED:
                has_freed |= self._note_end(record, item.before)
                if record.key not in self.book.records:
                    gone.append(record.key)
        if gone:
            self.reporter.forget(gone)
        return has_freed

    def _note_start(self, record: Record) -> bool:
        """Whether an event was queued."""
        self._take_over(record)
        return self.reporter.report_started(record.job, record.decided, left_because=record.left_because)

    def _note_lost_start(self, record: Record) -> None:
        """The host lets a job wait again that it has started, under the same name. It is decided again."""
        log.warning("job %s was started, and the host lets it wait again", record.key)
        ended = dataclasses.replace(record.job, end=End.CANCELLED, end_reason="put back into the host's queue")
        self.reporter.report_ended(ended, record.decided)
        self.reporter.forget([record.key])
        record.decided = None

    def _take_over(self, record: Record) -> None:
        """The host shows that a verdict was carried out, although its answer may have been lost."""
        if record.mark_taken_over() and record.decided is not None and is_as_decided(record.job, record.decided):
            self._log_placed(record.job, record.decided)

    def _log_placed(self, job: NativeJob, placement: Placement) -> None:
        log.info("job %s placed on %s (decision %s)", job.key, placement.nodes, placement.decision_id)

    def _note_end(self, record: Record, before: Stage | None) -> bool:
        """A job that was seen for the first time when it had ended is reported as started, too: its outcome joins."""
        if before is Stage.ENDED:
            return False
        record.mark_taken_over()
        if record.job.placement and record.job.end is not End.CANCELLED and before is not Stage.RUNNING:
            self.reporter.report_started(record.job, record.decided, left_because=record.left_because)
        self.reporter.report_ended(record.job, record.decided)
        return True

    def _note_ended_before(self) -> bool:
        """Jobs that had ended at the first look are reported if the service takes them for running or to come.

        Of the others an earlier run has told the end, or nobody has asked. True if one was reported.
        """
        if not self._has_recovered:
            return False
        ended = [record for record in self._ended_before if record.key in self._known]
        self._ended_before, self._known = [], frozenset()
        for record in ended:
            self._note_end(record, None)
        return bool(ended)

    async def _recover(self, nodes: int) -> None:
        """Reads the decisions of an earlier run of this adapter from the service. Tried until it works once."""
        timeout_s = _RECOVER_TIMEOUT_S + _RECOVER_TIMEOUT_S_PER_NODE * nodes
        try:
            request = GetClusterRequest(cluster=self.settings.cluster, full=True)
            cluster = await self.client.get_cluster(request, timeout_s=timeout_s, retry=None)
        except NotFoundError:
            cluster = Cluster()
        except PlacewiseError as error:
            log.warning("earlier decisions are not read from the service yet: %s", error)
            self._breaker.fail(error.reason)
            return
        self._known = frozenset(known.job_id for known in cluster.jobs)
        for known in cluster.jobs:
            self._recover_job(known)
        self._has_recovered = True

    def _recover_job(self, known: RunningJob) -> None:
        record = self.book.records.get(known.job_id)
        is_running = known.state == RunningJob.RUNNING
        if record is None:
            if is_running:
                end = NativeJob(known.job_id, Job(id=known.job_id), Stage.ENDED, end=End.FINISHED)
                self.reporter.report_ended(dataclasses.replace(end, end_reason="no longer known to the host"), None)
            return
        placement = _placement_of(known)
        if record.stage is Stage.WAITING:
            record.verdict = Placed(placement)
        else:
            record.decided = record.decided or placement
        if is_running and record.stage in (Stage.RUNNING, Stage.ENDED):
            self.reporter.note_started(record.key, known.assignments, known.start_time.seconds)

    async def _report_changes(self, nodes: Sequence[Node] | None) -> bool:
        """Reports changes of free resources before the next question. Failed reports are sent again later."""
        if self._breaker.outages != self._outages_seen:
            self._outages_seen = self._breaker.outages
            self._report_all_again()
        if nodes is not None:
            self._nodes, self._are_nodes_due = nodes, True
        # A large inventory is not compared again for every job that comes.
        if self._are_nodes_due or self.reporter.is_refresh_due():
            self._are_nodes_due = not await self.reporter.report_nodes(self._nodes)
        return not self._are_nodes_due and (not self.reporter.is_pressing or await self.reporter.flush())

    def _report_all_again(self) -> None:
        """After an outage the service may have lost its state; repeats cost it nothing."""
        running = {key: record for key, record in self.book.records.items() if record.stage is Stage.RUNNING}
        self.reporter.forget_all(running)
        self._are_nodes_due = True
        for record in running.values():
            left_because = record.left_because
            self.reporter.report_started(record.job, record.decided, left_because=left_because, in_full=True)

    async def _serve_waiting(self) -> None:
        now_s = self.now()
        waiting = [record for record in self.book.waiting() if record.job.begin_time_s <= now_s]
        if not waiting:
            return
        verdicts = await self.decider.decide([record.job for record in waiting])
        gate = asyncio.Semaphore(_APPLY_AT_ONCE)
        if len(waiting) == 1:  # nearly always; a new task would start after everything else that is ready
            await self._follow(waiting[0], verdicts[waiting[0].job.key], gate)
            return
        await asyncio.gather(*(self._follow(record, verdicts[record.key], gate) for record in waiting))

    async def _follow(self, record: Record, verdict: Verdict, gate: asyncio.Semaphore) -> None:
        """Carries out one verdict."""
        if self.settings.is_dry_run:
            log.info("dry run: job %s would be %s", record.key, describe(verdict))
            await self._release_by(gate, record, "dry_run")
            return
        match verdict:
            case Placed(placement):
                await self._apply(record, placement, gate)
            case NoFit() if self.settings.is_no_fit_released:
                await self._release_by(gate, record, "no_fit")
            case Waiting(reasons) if self.settings.is_unshapeable_released and NO_SHAPE in reasons:
                await self._release_by(gate, record, "no_fit")
            case Undecided(_, True):
                await self._release_by(gate, record, "no_decision")
            case Undecided() if not self._is_undecided_long(record):
                pass
            case _:
                await self._explain(record, describe(verdict))

    def _is_undecided_long(self, record: Record) -> bool:
        """Whether its user should know: the host holds it for as long as the service is away. A host that releases it
        soon need not write to each waiting job before."""
        if record.failing_since_s is None or 0 <= self.settings.release_after_s <= _SOON_S:
            return False
        return self.clock() - record.failing_since_s >= _UNDECIDED_S

    async def _apply(self, record: Record, placement: Placement, gate: asyncio.Semaphore) -> None:
        async with gate:
            started_s = self.clock()
            result = await self.native.apply(record.job, placement)
            self.metrics.apply_s.observe(self.clock() - started_s)
            await asyncio.sleep(0)  # who waits for it goes on before it is written down
        self.metrics.applied.labels(result.value).inc()
        if result is Applied.UNREACHABLE:
            return  # the verdict stands, and applying it again is harmless
        if result is Applied.DONE:
            record.mark_applied(placement, self.clock())
            self._log_placed(record.job, placement)
            return
        # GONE: the next look shows the job's stage; its end frees the reservation, found by `decided`.
        record.close_question()
        record.decided = placement
        if result is Applied.REFUSED:
            self._drop_decision(record, "the host refused it")

    def _drop_decision(self, record: Record, why: str) -> None:
        """The job will be decided again, so its reservation must go first."""
        if record.decided is not None:
            self.reporter.report_withdrawn(record.job, record.decided, why)
        record.decided = None

    async def _release_by(self, gate: asyncio.Semaphore, record: Record, reason: str) -> None:
        async with gate:
            await self._release(record, reason)

    async def _release(self, record: Record, reason: str, detail: str = "") -> None:
        result = await self.native.release(record.job)
        if result is Applied.GONE:
            record.close_question()
        elif result is Applied.REFUSED:
            record.explained = ""  # the host may give its user a reason of its own instead
        elif result is Applied.DONE:
            why = reason + (detail and f" ({detail})")
            record.mark_released(f"left to the host: {why}")
            self.metrics.released.labels(reason).inc()
            log.info("job %s left to the host's own scheduling: %s", record.key, why)

    async def _explain(self, record: Record, text: str) -> None:
        self.reporter.report_submitted(record.job)
        if text != record.explained:
            record.explained = text
            await self.native.explain(record.job, text)

    async def _take_back_overdue(self) -> None:
        for record in self.book.overdue(self.clock(), self.settings.start_timeout_s):
            if await self.native.withdraw(record.job) is Applied.DONE:
                log.warning("job %s did not start in time on its nodes; it will be decided again", record.key)
                self.metrics.withdrawn.inc()
                self._drop_decision(record, "it did not start in time")
                record.mark_withdrawn()

    async def _take_back_undecided(self) -> None:
        """Slurm queues a job again with the nodes of its last run. Before recovery the adapter knows no decisions."""
        for record in self.book.undecided() if self._has_recovered else ():
            if await self.native.withdraw(record.job) is Applied.DONE:
                log.info("job %s had nodes that nobody decided; it is decided again", record.key)
                self.metrics.withdrawn.inc()
                record.mark_withdrawn()

    async def _leave_blocked(self) -> None:
        """The host tells its user why the job waits; nothing stays reserved for it meanwhile."""
        for record in self.book.blocked():
            rule = record.job.blocked_by
            reason = "blocked" if rule else "outranked"
            if await self.native.withdraw(record.job) is Applied.DONE:
                self._drop_decision(record, f"blocked ({rule})" if rule else "others come first")
                record.mark_withdrawn()
                await self._release(record, reason, rule)


def describe(verdict: Verdict) -> str:
    """One line for a log or a user."""
    match verdict:
        case Placed(placement):
            return f"placed on {','.join(placement.nodes)}"
        case Waiting(_, text):
            return f"waiting: {text or 'for its turn'}"
        case NoFit(_, text):
            return f"impossible here: {text}"
        case Undecided(reason):
            return f"undecided: {reason}"


def _placement_of(known: RunningJob) -> Placement:
    expires = known.reservation_expire_time
    expire_time_s = expires.seconds + expires.nanos / 1e9
    return Placement(tuple(known.assignments), known.reservation_id, expire_time_s, known.decision_id)
