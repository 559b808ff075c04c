"""Keeps one ClusterView per cluster up to date by tailing the store's events. Never reads the cluster per decision.

A view is owned by the event loop's thread. Gangs the engine has decided on are *assumed* at once, before the store
has agreed, so that the next decision on this replica already sees them; they are forgotten if the store refuses.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial

import structlog

from placewise_core.basics.clock import Clock
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.errors import DeadlineExceededError, NotFoundError, StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import ClusterRecords, Event, JobsChanged, JobsEnded, NodesReported
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.landing import land
from placewise_core.view.renewal import Renewal
from placewise_core.view.view import ClusterView
from placewise_service.aside import aside
from placewise_service.background import cancel_and_wait
from placewise_service.engine.reporting.departed import Departed
from placewise_service.engine.view_log.notes import ViewNotes
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.store import StateStore

log = structlog.get_logger(__name__)

_STALE_AFTER_S = 3.0  # the tail hears from a live store every second
# After a batch the tail rests: under load it then reads many events at once instead of waking up in the middle of every
# decision. Writes of other replicas are seen this much later. A decision that misses one is refused, and repeated as
# soon as the tail, which then rests no longer, has brought it. While nobody else writes, the tail rests longer.
_FOLLOW_EVERY_S = 0.005
_FOLLOW_QUIET_EVERY_S = 0.025
_STEP = 16  # gangs given back before others have their turn
_LARGE = 200  # nodes, and jobs, from which a view is built, or a report made ready, beside the loop
_MOST_TASKS = 1024  # of an event that claims or frees them in one go
_TASKS_PER_TURN = 256
_TURN_S = 0.005
_RENEWAL_S = 1.0  # a decision waits so long for events that come after a large report
_RETRY_S = 0.2  # back-off after a store error; a replica must recover within two seconds of its store


class LiveView:
    """One cluster's view, the gap between it and the store, and the gangs assumed on it."""

    def __init__(self, cluster: str, store: StateStore, clock: Clock, stale_telemetry_after_s: float) -> None:
        self.cluster = cluster
        self._store = store
        self._clock = clock
        self._stale_telemetry_after_s = stale_telemetry_after_s
        self._position = ""
        self._ahead: dict[int, Event] = {}  # own mutations whose predecessors the tail has not brought yet
        self._assumed: dict[JobId, RunningJob] = {}
        self._due: list[RunningJob | Event] = []  # gangs and own events that go onto the view before it is next read
        self._renewal: asyncio.Task[None] | None = None  # applies a large report, or a change of many jobs
        self._changed: asyncio.Event | None = None  # while somebody waits for the next events
        self._is_awaited = asyncio.Event()
        self._heard_s = clock.monotonic_s()
        self.is_lost = False
        self.departed = Departed()
        self.notes = ViewNotes()
        self.asked_last: Job | None = None  # the first job of the last question of admission
        self._view: ClusterView
        self.alone = asyncio.Lock()  # held by the decision that is made in slices
        self._opened = asyncio.Event()
        self._opened.set()

    @property
    def view(self) -> ClusterView:
        """The view, with all that is due."""
        if self._due:
            self._catch_up()
        return self._view

    def _catch_up(self) -> None:
        due, self._due = self._due, []
        for item in due:
            if isinstance(item, RunningJob):
                self._view.add_job(item)
            else:
                self.show((item,))

    @property
    def lag_s(self) -> float:
        """Seconds since the store was last heard of."""
        return self._clock.monotonic_s() - self._heard_s

    @property
    def is_stale(self) -> bool:
        """True if the view may miss other replicas' events: decisions on it reserve nothing and are marked stale."""
        return self.is_lost or self._clock.monotonic_s() - self._heard_s > _STALE_AFTER_S

    @property
    def is_deciding(self) -> bool:
        """True while the store has not answered for every gang that was decided on here."""
        return bool(self._assumed)

    async def load(self) -> bool:
        """Builds the view from the store; False if the cluster does not exist. Raises StateUnavailableError."""
        loaded = await self._store.load(self.cluster)
        if loaded is None:
            return False
        records, position = loaded
        is_large = len(records.nodes) + len(records.jobs) > _LARGE
        build = partial(_built, records, self._stale_telemetry_after_s)
        self._view = await aside(build) if is_large else build()
        self._due.clear()
        self._position = position
        self._ahead.clear()
        for job in self._assumed.values():
            if job.id not in self.view.jobs:
                self.view.add_job(job)
        on_it = [job for job in self._assumed.values() if self.view.jobs.get(job.id) is job]
        self.notes.begin(self.view, on_it, self._clock.now_s())
        self._note_heard()
        return True

    async def tail(self) -> None:
        """Follows the store until the cluster is deleted. Outlives every failure of the store."""
        while True:
            try:
                async for position, batch in self._store.tail(self.cluster, self._position):
                    events = await batch.after(await self._applied()) if batch else ()
                    is_quiet, self._position = position == self._position, position
                    self._note_heard()
                    if is_quiet:  # nothing was read that a rest could gather more of
                        self.apply(())
                        continue
                    await self._apply_in_turn(events)
                    await self._rest(_FOLLOW_EVERY_S if events else _FOLLOW_QUIET_EVERY_S)
            except (StateUnavailableError, StaleSnapshotError) as error:
                if isinstance(error, StateUnavailableError) and not self.is_lost:
                    log.warning("view lost its store", cluster=self.cluster, reason=error.message)
                self.is_lost = True
            if not await self._reload():
                return

    async def _applied(self) -> int:
        """The view's version, once a decision under way is answered. Redis sends the tail a reservation before it
        answers the caller, who must not wait while the tail reads events that the view has already."""
        if self._assumed:
            await self._rest(_FOLLOW_EVERY_S)
        return self.view.version

    async def _reload(self) -> bool:
        before, logged = self.view.jobs, ""
        while True:
            try:
                is_there = await self.load()
            except StateUnavailableError as error:
                if isinstance(error, CorruptStateError) and error.message != logged:
                    logged = error.message
                    log.error("view cannot be built", cluster=self.cluster, reason=logged)
                await asyncio.sleep(_RETRY_S)
            else:
                self.departed.note_missing(before, self.view.jobs)
                return is_there

    def apply(self, events: Sequence[Event]) -> None:
        """Applies the events after the view's version, keeps those further ahead, ignores known ones.

        Raises StaleSnapshotError for an event of another epoch of the state: load the view again.
        """
        for event in events:
            if event.epoch != self.view.epoch:
                raise StaleSnapshotError("the cluster was created again; load it again")
            if event.version > self.view.version:
                self._ahead[event.version] = event
        self._advance()

    def show(self, events: Sequence[Event]) -> None:
        """As apply, for own events. If the state began a new epoch meanwhile, the tail rebuilds the view."""
        try:
            self.apply(events)
        except StaleSnapshotError:
            log.warning("the state began a new epoch; the view follows", cluster=self.cluster)

    def show_soon(self, event: Event) -> None:
        """As show, before the view is next read: mostly once the answer is on its way."""
        self._due.append(event)
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._due:
            self._catch_up()

    def _advance(self) -> None:
        while self._renewal is None and (following := self._ahead.pop(self.view.version + 1, None)) is not None:
            change = following.change
            if isinstance(change, JobsEnded):
                self.departed.note(self.view.jobs, change)
            if isinstance(change, NodesReported) and len(change.nodes) > _LARGE:
                self._renewal = asyncio.create_task(self._renew(following, change), name="large report")
            elif isinstance(change, JobsChanged | JobsEnded) and self._moved_tasks(change) > _MOST_TASKS:
                self._renewal = asyncio.create_task(self._move(following, change), name="many jobs")
            else:
                self.view.apply(following)
                self.notes.apply(change, self.view)
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _moved_tasks(self, change: JobsChanged | JobsEnded) -> int:
        """Tasks that the change takes or gives back, without those that are on the view already; 0 if they are few."""
        jobs = self.view.jobs
        if isinstance(change, JobsEnded):
            return sum([len(jobs[job_id].assignments) for job_id in change.job_ids if job_id in jobs])
        if sum([len(job.assignments) for job in change.jobs]) <= _MOST_TASKS:
            return 0  # few, whichever they are
        pairs = [(job.assignments, jobs.get(job.id)) for job in change.jobs]
        return sum([len(new) for new, before in pairs if before is None or before.assignments is not new])

    async def _move(self, event: Event, change: JobsChanged | JobsEnded) -> None:
        """Applies a change of many jobs, each job whole; others have their turn in between. Later events wait for
        it."""
        view, tasks = self.view, 0
        is_end = isinstance(change, JobsEnded)
        jobs = change.jobs if isinstance(change, JobsChanged) else [view.jobs.get(job_id) for job_id in change.job_ids]
        try:
            for i, job in enumerate(jobs):
                self.notes.moved = i
                if job is None:
                    continue
                tasks += len(job.assignments)
                if tasks > _TASKS_PER_TURN:
                    tasks = len(job.assignments)
                    await asyncio.sleep(0)
                if self.view is not view:  # it was reloaded meanwhile
                    return
                if not is_end:
                    view.add_job(job)
                elif view.jobs.get(job.id) is job:  # else it asked again meanwhile, and is assumed
                    view.remove_job(job.id)
            if isinstance(change, JobsEnded):
                view.drop_heads(change)
            view.version = event.version
            self.notes.moved = 0
            self.notes.apply(change, view)
        finally:
            self._renewal = None
            self._advance()

    async def _renew(self, event: Event, change: NodesReported) -> None:
        """Makes a large report ready beside the loop and shows it at once. Later events wait for it."""
        view = self.view
        renewal = Renewal(view, change)
        try:
            await aside(renewal.prepare)
            if self.view is view:  # else it was reloaded meanwhile
                self._view = renewal.show()
                self.view.version = event.version
        finally:
            self._renewal = None
            self._advance()

    async def wait_shown(self) -> None:
        """Returns when every event that was applied can be seen: a large one takes a moment."""
        while (renewal := self._renewal) is not None:
            await asyncio.shield(renewal)

    async def _apply_in_turn(self, events: Sequence[Event]) -> None:
        """As apply; others have their turn between two events that take long."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for event in events:
            self.apply((event,))
            if loop.time() - began_s > _TURN_S:
                await asyncio.sleep(0)
                began_s = loop.time()
        if not events:
            self.apply(())

    async def end(self) -> None:
        """Cancels a renewal under way."""
        await cancel_and_wait((self._renewal,))

    def assume(self, jobs: Sequence[RunningJob]) -> None:
        """Takes the gangs on the view before the store has confirmed them; those that are on it already, stay. The
        others are claimed while the caller waits for the store, or sooner if somebody looks at the view. A gang that
        was assumed before is passed over: an event of its job may have taken its place since."""
        view = self._view
        for job in jobs:
            if self._assumed.get(job.id) is job:
                continue
            self._assumed[job.id] = job
            self.notes.assume(job, view.version)
            if view.jobs.get(job.id) is not job:
                self._due.append(job)
        if self._due:
            asyncio.get_running_loop().call_soon(self._look)

    def land(self, running: RunningJob, seen: ClusterView, context: PlaceContext) -> bool:
        """Assumes a gang decided on the fork `seen`. If it does not fit, assumes nothing and returns False."""
        if not land(running, seen, self.view, context):
            return False
        self.view.hold(running)
        self.assume((running,))
        return True

    @property
    def is_closed(self) -> bool:
        """True while a gang that others keep from its place is decided: nobody else decides then."""
        return not self._opened.is_set()

    def close(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    async def wait_opened(self, timeout_s: float) -> None:
        """Returns when the view is open, or raises DeadlineExceededError after the timeout."""
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s):
                await self._opened.wait()
        except TimeoutError:
            raise DeadlineExceededError("the deadline passed before a large gang was decided") from None

    def settle(self, jobs: Sequence[RunningJob], is_held: bool) -> None:
        """Ends an assumption: the event stands for it now, or nothing does."""
        for job in jobs:
            if self._assumed.get(job.id) is job:
                del self._assumed[job.id]
            if is_held:
                continue
            if self.view.jobs.get(job.id) is job:
                self.view.remove_job(job.id)
            self.notes.refuse(job)  # also if another event of its job has taken it off: decisions may have seen it

    async def give_back(self, jobs: Sequence[RunningJob]) -> None:
        """Ends the assumption of gangs that nobody holds, in steps, others having their turn. All of it is done on
        return, also if the caller is cancelled."""
        left = list(jobs)
        try:
            while left:
                job = left.pop()
                self.settle((job,), is_held=False)
                if len(jobs) > 1 and len(left) % _STEP == 0:
                    await asyncio.sleep(0)
        finally:
            self.settle(left, is_held=False)

    async def wait_changed(self, timeout_s: float) -> None:
        """Returns after the next batch of events, or after the timeout."""
        changed = self._changed = self._changed or asyncio.Event()
        self._is_awaited.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s if self._renewal is None else max(timeout_s, _RENEWAL_S)):
                await changed.wait()

    async def _rest(self, seconds: float) -> None:
        """Waits until then, or until somebody needs the tail's events."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_awaited.wait()
        self._is_awaited.clear()

    def _note_heard(self) -> None:
        self._heard_s = self._clock.monotonic_s()
        self.is_lost = False


def _built(records: ClusterRecords, stale_telemetry_after_s: float) -> ClusterView:
    view = ClusterView(records, stale_telemetry_after_s)
    view.digest()  # whose first time takes long
    return view


class Views:
    """The live views of every cluster this replica was asked about."""

    def __init__(self, store: StateStore, clock: Clock, stale_telemetry_after_s: float) -> None:
        self._store = store
        self._clock = clock
        self._stale_telemetry_after_s = stale_telemetry_after_s
        self._live: dict[str, LiveView] = {}
        self._tails: dict[str, asyncio.Task[None]] = {}
        self._opening: dict[str, asyncio.Task[LiveView]] = {}

    def __iter__(self) -> Iterator[LiveView]:
        return iter(list(self._live.values()))

    def find(self, cluster: str) -> LiveView | None:
        """The view if it is loaded."""
        return self._live.get(cluster)

    async def get(self, cluster: str) -> LiveView:
        """The cluster's view, loaded at the first call. Raises NotFoundError, StateUnavailableError."""
        live = self._live.get(cluster)
        return live if live is not None else await self._open(cluster)

    async def _open(self, cluster: str) -> LiveView:
        """Loads the view; who asks meanwhile shares the attempt, and its failure."""
        opening = self._opening.get(cluster)
        if opening is None:
            opening = self._opening[cluster] = asyncio.create_task(self._load(cluster), name=f"load {cluster}")
            opening.add_done_callback(partial(self._end_opening, cluster))
        return await asyncio.shield(opening)

    def _end_opening(self, cluster: str, opening: asyncio.Task[LiveView]) -> None:
        del self._opening[cluster]
        if not opening.cancelled():
            opening.exception()  # looked at, should everybody who waited for it have left

    async def _load(self, cluster: str) -> LiveView:
        live = LiveView(cluster, self._store, self._clock, self._stale_telemetry_after_s)
        if not await live.load():
            raise NotFoundError(f"no cluster {cluster!r}: report its nodes first", {"cluster": cluster})
        self._live[cluster] = live
        self._tails[cluster] = asyncio.create_task(self._follow(live), name=f"tail {cluster}")
        return live

    async def _follow(self, live: LiveView) -> None:
        try:
            await live.tail()
        finally:
            if self._live.get(live.cluster) is live:  # else it was dropped, and perhaps loaded again meanwhile
                self._live.pop(live.cluster)
                self._tails.pop(live.cluster)

    def drop(self, cluster: str) -> None:
        """Forgets a deleted cluster's view."""
        self._live.pop(cluster, None)
        if (task := self._tails.pop(cluster, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        views = list(self)
        await cancel_and_wait((*self._opening.values(), *self._tails.values()))
        for live in views:
            await live.end()
