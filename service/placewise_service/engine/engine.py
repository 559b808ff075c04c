"""The request path: view → decide → reserve → log, for each of the three questions. Knows no transport and no Redis.

    place          view → Placer.draft → assume → store.reserve → settle → log
    partition      view → policy → log (a share is advice: nothing is held)
    admit_or_wait  view → policy → store.commit_queue → log

A conflict means that the view was behind: decide again on the newer one, at most twice, then ABORTED.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from placewise_core.admit.answers import with_shapes
from placewise_core.admit.lyapunov import renumbered
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.clock import Clock
from placewise_core.cluster import ClusterSettings, Node, QueueSettings, QueueState, RunState
from placewise_core.commands import AdmitCommand, JobEvent, PartitionCommand, PlaceCommand, Scope
from placewise_core.decision import (
    AdmitDecision,
    AdmitPlan,
    DecisionMeta,
    JobDecision,
    Outcome,
    PartitionDecision,
    PlaceDecision,
    Verdict,
)
from placewise_core.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_core.events import Event
from placewise_core.partition.policy import PartitionContext, PartitionPolicy
from placewise_core.place.iawp import SubtaskScheduler
from placewise_core.place.policy import PlaceContext, PlacementPolicy
from placewise_core.view import ClusterView
from placewise_service.declog.record import DecisionRecord, decode
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.answers import Decision, decode_answer, encode_answer
from placewise_service.engine.ids import uuid7
from placewise_service.engine.place import Draft, Placer, seed_of
from placewise_service.engine.reports import Reporter, ReportOutcome
from placewise_service.engine.views import LiveView, Views
from placewise_service.model.registry import BundleRegistry
from placewise_service.state.store import Conflict, Repeated, Reserved, ReserveRequest, StateStore
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)

_ATTEMPTS = 3  # the first decision and two more
_QUEUE_ATTEMPTS = 8  # replicas that decide on one queue at once take turns
_CATCH_UP_S = 0.05  # events reach a view within a millisecond; this bounds the wait where they do not
_EXPIRY_PERIOD_S = 0.5


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the operator chose for this service; a cluster's own settings come first."""

    place_policy: str = "consolidate"
    admit_policy: str = "proteus"
    fallback_policy: str = "consolidate"
    reserve_ttl_s: float = 60.0
    stale_telemetry_after_s: float = 90.0
    queue: QueueSettings = QueueSettings()


@dataclass(frozen=True, slots=True)
class _AdmitDraft:
    """An admission before the store has agreed, and the queue it was decided on."""

    plan: AdmitPlan
    before: QueueState
    now_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A view to be rendered at once: it changes with the next event."""

    view: ClusterView
    is_stale: bool


class Engine:
    """Answers where, how and when, on the view of each cluster."""

    def __init__(
        self,
        store: StateStore,
        clock: Clock,
        placer: Placer,
        subtasks: SubtaskScheduler,
        admission: Mapping[str, AdmissionPolicy],
        partitioner: PartitionPolicy,
        sink: DecisionSink,
        registry: BundleRegistry,
        telemetry: Telemetry,
        options: EngineOptions,
    ) -> None:
        self._store = store
        self._clock = clock
        self._placer = placer
        self._subtasks = subtasks
        self._admission = admission
        self._partitioner = partitioner
        self._sink = sink
        self._telemetry = telemetry
        self._options = options
        self.registry = registry
        self._views = Views(store, clock, options.stale_telemetry_after_s)
        self._reporter = Reporter(store, clock, sink)
        self._queue_locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._sweep: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the views of the clusters that exist, and begins to expire reservations."""
        for cluster in await self._store.clusters():
            await self._views.get(cluster)
        self._sink.start()
        self._sweep = asyncio.create_task(self._expire_reservations(), name="expire reservations")

    @property
    def is_ready(self) -> bool:
        return self._sweep is not None

    async def drain(self, timeout_s: float) -> None:
        """Writes out what the decision log still holds."""
        await self._sink.close(timeout_s)

    async def close(self) -> None:
        """Ends the background tasks and the store's connections."""
        if self._sweep is not None:
            self._sweep.cancel()
            await asyncio.gather(self._sweep, return_exceptions=True)
            self._sweep = None
        await self._views.close()
        await self._sink.close()
        await self._store.close()

    # -- where --------------------------------------------------------------------------------------------------

    async def place(self, command: PlaceCommand, deadline_s: float = math.inf) -> PlaceDecision:
        """Where do these jobs' tasks go? Holds what it answers for the reservation's time, unless it is a dry run."""
        started_s = self._begin(deadline_s)
        live = await self._views.get(command.cluster)
        policy = self._place_policy(command, live.view)
        if command.scope is Scope.NODE:
            decision = await self._place_on_node(command, live, started_s)
        elif command.is_dry_run:
            decision, draft = self._draft(command, live, policy, started_s, deadline_s)
            self._note_place(command, decision, draft.seed)
        else:
            decision = await self._place_and_hold(command, live, policy, started_s, deadline_s)
        return decision

    async def _place_and_hold(
        self, command: PlaceCommand, live: LiveView, policy: PlacementPolicy, started_s: float, deadline_s: float
    ) -> PlaceDecision:
        for _ in range(_ATTEMPTS):
            decision, draft = self._draft(command, live, policy, started_s, deadline_s)
            live.assume(draft.holds)
            is_held = False
            try:
                result = await self._hold(command, decision, draft)
                is_held = isinstance(result, Reserved)
            finally:
                live.settle(draft.holds, is_held)
            if isinstance(result, Reserved):
                self._apply(live, [result.event])
                decision = _held_until(decision, draft, result.expire_time_s)
            if isinstance(result, Repeated):
                return _repeated(result.answer, PlaceDecision, command.request_id)
            if not isinstance(result, Conflict):
                self._note_place(command, decision, draft.seed)
                return decision
            self._telemetry.conflict(command.cluster)
            await self._catch_up(live, deadline_s)
        raise StaleSnapshotError("the cluster changed under the decision three times", {"cluster": command.cluster})

    async def _hold(
        self, command: PlaceCommand, decision: PlaceDecision, draft: Draft
    ) -> Reserved | Conflict | Repeated | None:
        """One round trip to the store; none where there is nothing to hold and nothing to remember."""
        answer = encode_answer(decision) if command.request_id else b""
        if draft.holds:
            ttl_s = command.reserve_ttl_s or self._options.reserve_ttl_s
            request = ReserveRequest(tuple(draft.holds), ttl_s, command.request_id, answer, draft.expected_tenants)
            return await self._store.reserve(command.cluster, request)
        if command.request_id:
            first = await self._store.remember(command.cluster, command.request_id, answer)
            return Repeated(first) if first != answer else None
        return None

    def _draft(
        self, command: PlaceCommand, live: LiveView, policy: PlacementPolicy, started_s: float, deadline_s: float
    ) -> tuple[PlaceDecision, Draft]:
        seed = seed_of(command.seed)
        context = PlaceContext(
            now_s=self._clock.now_s(),
            randomness=seed,
            deadline_s=deadline_s,
            is_explaining=command.is_explaining,
            interference=self._placer.interference,
        )
        version = live.view.version
        draft = self._placer.draft(command, live.view, policy, context, decision_id := uuid7())
        meta = self._meta(policy.name, live, version, started_s, decision_id)
        meta = replace(
            meta,
            propensity=draft.propensity,
            is_explored=draft.is_explored,
            is_fallback=bool(draft.fallback_reason),
            fallback_reason=draft.fallback_reason,
        )
        draft.seed = seed
        return PlaceDecision(tuple(draft.decisions), meta), draft

    async def _place_on_node(self, command: PlaceCommand, live: LiveView, started_s: float) -> PlaceDecision:
        if command.node_id not in live.view.index:
            raise NotFoundError(
                f"no node {command.node_id!r} in cluster {command.cluster!r}", {"node": command.node_id}
            )
        decisions = self._subtasks.assign(command.jobs, command.node_id, live.view, self._clock.now_s())
        meta = self._meta(self._subtasks.name, live, live.view.version, started_s)
        decision = PlaceDecision(tuple(decisions), meta)
        self._note_place(command, decision, seed=0)
        return await self._remembered(command.cluster, command.request_id, command.is_dry_run, decision)

    # -- how ----------------------------------------------------------------------------------------------------

    async def partition(self, command: PartitionCommand, deadline_s: float = math.inf) -> PartitionDecision:
        """How is this divisible task split over the units that are idle, or spread anew over those at work?"""
        started_s = self._begin(deadline_s)
        live = await self._views.get(command.cluster)
        context = PartitionContext(self._clock.now_s(), command.units, command.is_explaining)
        if command.progress:
            plan = self._partitioner.reschedule(command.task, command.progress, live.view, context)
        else:
            plan = self._partitioner.partition(command.task, live.view, context)
        meta = self._meta(self._partitioner.name, live, live.view.version, started_s)
        decision = PartitionDecision(plan, meta)
        record = DecisionRecord.of_partition(
            command, decision, time_s=self._clock.now_s(), latency_ms=self._elapsed_ms(started_s)
        )
        self._note(record, plan.outcome)
        return await self._remembered(command.cluster, command.request_id, command.is_dry_run, decision)

    # -- when ---------------------------------------------------------------------------------------------------

    async def admit_or_wait(self, command: AdmitCommand, deadline_s: float = math.inf) -> AdmitDecision:
        """Does each job start now, with how many GPUs, or does it wait? Moves the queue once per slot."""
        started_s = self._begin(deadline_s)
        live = await self._views.get(command.cluster)
        policy = self._admit_policy(command, live.view)
        if command.is_dry_run:
            return self._note_admit(command, self._admit_draft(command, live, policy), live, policy.name, started_s)
        # One at a time per queue on this replica: it would only refuse itself the second commit.
        async with self._queue_locks.setdefault((command.cluster, command.queue), asyncio.Lock()):
            draft = await self._commit_admission(command, live, policy, deadline_s)
        decision = self._note_admit(command, draft, live, policy.name, started_s)
        return await self._remembered(command.cluster, command.request_id, command.is_dry_run, decision)

    async def _commit_admission(
        self, command: AdmitCommand, live: LiveView, policy: AdmissionPolicy, deadline_s: float
    ) -> _AdmitDraft:
        for _ in range(_QUEUE_ATTEMPTS):
            draft = self._admit_draft(command, live, policy)
            queue = draft.plan.queue
            if queue is draft.before:
                return draft
            event = await self._store.commit_queue(command.cluster, queue, draft.before.seq)
            if event is not None:
                self._apply(live, [event])
                return draft
            self._telemetry.conflict(command.cluster)
            await self._catch_up(live, deadline_s)
        raise StaleSnapshotError("the queue kept changing under the decision", {"queue": command.queue})

    def _admit_draft(self, command: AdmitCommand, live: LiveView, policy: AdmissionPolicy) -> _AdmitDraft:
        queue = live.view.queues.get(command.queue) or QueueState(command.queue)
        settings = self.queue_settings(command.cluster, command.queue)
        seed = seed_of(command.seed)
        now_s = self._clock.now_s()
        slot = max(queue.slot, math.floor(now_s / settings.slot_s))
        context = AdmitContext(now_s, slot, settings, seed, command.is_explaining)
        plan = with_shapes(policy.admit(command.jobs, live.view, queue, context), slot)
        if plan.queue is not queue:
            plan = replace(plan, queue=replace(plan.queue, seq=queue.seq + 1))
        return _AdmitDraft(plan, queue, now_s, seed)

    def _note_admit(
        self, command: AdmitCommand, draft: _AdmitDraft, live: LiveView, policy: str, started_s: float
    ) -> AdmitDecision:
        decision = AdmitDecision(draft.plan, self._meta(policy, live, live.view.version, started_s))
        self._telemetry.queue(command.cluster, draft.plan.queue)
        record = DecisionRecord.of_admit(
            command, decision, time_s=draft.now_s, seed=draft.seed, latency_ms=self._elapsed_ms(started_s)
        )
        self._note(record, _admit_outcome(decision))
        return decision

    def queue_settings(self, cluster: str, queue: str) -> QueueSettings:
        """The cluster's parameters of a queue, or the service's."""
        live = self._views.known(cluster)
        own = live.view.settings.queues.get(queue) if live is not None else None
        return own or self._options.queue

    # -- what schedulers report ---------------------------------------------------------------------------------

    async def report_nodes(self, cluster: str, nodes: Sequence[Node], full: bool) -> ReportOutcome:
        """Inserts or updates nodes. Creates the cluster."""
        outcome, events = await self._reporter.nodes(cluster, nodes, full)
        await self._show(cluster, events)
        return outcome

    async def report_job_events(self, cluster: str, events: Sequence[JobEvent]) -> ReportOutcome:
        """Takes what the host says happened. Raises NotFoundError for an unknown cluster."""
        live = await self._views.get(cluster)
        outcome, changes = await self._reporter.job_events(cluster, live.view, events)
        self._apply(live, changes)
        return outcome

    async def get_cluster(self, cluster: str) -> ClusterSnapshot:
        live = await self._views.get(cluster)
        return ClusterSnapshot(live.view, live.is_stale)

    async def clusters(self) -> Sequence[str]:
        """Names of the clusters the store knows, or, while it does not answer, those with a view."""
        try:
            return await self._store.clusters()
        except StateUnavailableError:
            return sorted(live.cluster for live in self._views)

    async def delete_cluster(self, cluster: str) -> None:
        if not await self._store.delete_cluster(cluster):
            raise NotFoundError(f"no cluster {cluster!r}", {"cluster": cluster})
        self._views.drop(cluster)

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> ClusterSettings:
        """Replaces the cluster's settings. Raises InvalidRequestError for an unknown policy."""
        self._known(settings.place_policy, self._placer.policies, "settings.place_policy")
        self._known(settings.admit_policy, self._admission, "settings.admit_policy")
        before = {name: self.queue_settings(cluster, name) for name in settings.queues}
        event = await self._store.update_settings(cluster, settings)
        await self._show(cluster, [event])
        for name, queue in settings.queues.items():
            if queue.slot_s != before[name].slot_s:
                await self._renumber(cluster, name)
        return settings

    async def _renumber(self, cluster: str, name: str) -> None:
        """Slot numbers of two lengths cannot be compared: a queue whose slots changed counts anew from now."""
        live = await self._views.get(cluster)
        for _ in range(_ATTEMPTS):
            queue = live.view.queues.get(name)
            if queue is None:
                return
            state = renumbered(queue, self._clock.now_s(), self.queue_settings(cluster, name))
            event = await self._store.commit_queue(cluster, replace(state, seq=queue.seq + 1), queue.seq)
            if event is not None:
                self._apply(live, [event])
                return
            await self._catch_up(live, math.inf)
        raise StaleSnapshotError("the queue changed while its slots were renumbered", {"queue": name})

    async def get_decision(self, cluster: str, decision_id: str) -> DecisionRecord:
        """A past decision that is still in the log's ring."""
        found = await self._store.find_decision(cluster, decision_id)
        if found is None:
            raise NotFoundError(f"no decision {decision_id!r} in the log of {cluster!r}", {"decision": decision_id})
        return decode(found)

    # -- parts --------------------------------------------------------------------------------------------------

    def _begin(self, deadline_s: float) -> float:
        now_s = self._clock.monotonic_s()
        if now_s >= deadline_s:
            raise DeadlineExceededError("the deadline had passed when the decision began")
        return now_s

    def _place_policy(self, command: PlaceCommand, view: ClusterView) -> PlacementPolicy:
        name = command.policy or view.settings.place_policy or self._options.place_policy
        self._known(name, self._placer.policies, "policy")
        return self._placer.policies[name]

    def _admit_policy(self, command: AdmitCommand, view: ClusterView) -> AdmissionPolicy:
        name = command.policy or view.settings.admit_policy or self._options.admit_policy
        self._known(name, self._admission, "policy")
        return self._admission[name]

    @staticmethod
    def _known(name: str, policies: Mapping[str, object], field: str) -> None:
        if name and name not in policies:
            raise InvalidRequestError(f"no policy {name!r}; there are: {', '.join(sorted(policies))}", field)

    def _meta(self, policy: str, live: LiveView, version: int, started_s: float, decision_id: str = "") -> DecisionMeta:
        return DecisionMeta(
            decision_id=decision_id or uuid7(),
            policy=policy,
            bundle=self.registry.active,
            snapshot_version=version,
            decide_ms=self._elapsed_ms(started_s),
            is_stale=live.is_stale,
        )

    def _elapsed_ms(self, started_s: float) -> float:
        return (self._clock.monotonic_s() - started_s) * 1000.0

    def _note_place(self, command: PlaceCommand, decision: PlaceDecision, seed: int) -> None:
        record = DecisionRecord.of_place(
            command, decision, time_s=self._clock.now_s(), seed=seed, latency_ms=decision.meta.decide_ms
        )
        self._note(record, _place_outcome(decision.decisions))

    def _note(self, record: DecisionRecord, outcome: str) -> None:
        """Counts and logs one decision that was answered."""
        meta = record.meta
        self._telemetry.decision(record.rpc, meta.policy, outcome, meta.is_fallback, record.latency_ms / 1000.0)
        self._sink.offer(record)

    async def _remembered(self, cluster: str, request_id: str, is_dry_run: bool, decision: Decision) -> Decision:
        """The decision, or the first one given under the same request_id."""
        if not request_id or is_dry_run:
            return decision
        answer = encode_answer(decision)
        first = await self._store.remember(cluster, request_id, answer)
        return decision if first == answer else _repeated(first, type(decision), request_id)

    def _apply(self, live: LiveView, events: Sequence[Event]) -> None:
        try:
            live.apply(events)
        except StaleSnapshotError:
            log.warning("the state began a new life; the view follows", cluster=live.cluster)

    async def _show(self, cluster: str, events: Sequence[Event]) -> None:
        """The caller's next decision on this replica sees what it reported."""
        live = await self._views.get(cluster)
        self._apply(live, events)

    async def _catch_up(self, live: LiveView, deadline_s: float) -> None:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceededError("the deadline passed while the decision was made again")
        await live.changed(min(_CATCH_UP_S, left_s))

    async def _expire_reservations(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_S)
            for live in self._views:
                self._telemetry.view_lag(live.cluster, live.lag_s)
                if any(job.state is RunState.RESERVED for job in live.view.jobs.values()):
                    await self._expire(live)

    async def _expire(self, live: LiveView) -> None:
        try:
            result = await self._store.expire(live.cluster)
        except StateUnavailableError:
            return  # the tail reports it; the next round tries again
        self._apply(live, result.events)


def _held_until(decision: PlaceDecision, draft: Draft, expire_time_s: float) -> PlaceDecision:
    held = {job.reservation_id for job in draft.holds}
    decisions = tuple(
        replace(d, expire_time_s=expire_time_s) if d.reservation_id in held else d for d in decision.decisions
    )
    return replace(decision, decisions=decisions)


def _repeated(answer: bytes, kind: type[Decision], request_id: str) -> Decision:
    decision = decode_answer(answer, kind)
    if decision is None:
        raise InvalidRequestError(f"request_id {request_id!r} was used for another kind of request", "request_id")
    return decision


def _place_outcome(decisions: Sequence[JobDecision]) -> str:
    """One word for the metric: the best any job of the request got."""
    outcomes = {d.outcome for d in decisions}
    return next((o for o in (Outcome.PLACED, Outcome.WAIT, Outcome.NO_FIT) if o in outcomes), Outcome.NO_FIT)


def _admit_outcome(decision: AdmitDecision) -> str:
    is_admitting = any(a.verdict is Verdict.ADMIT for a in decision.plan.admissions)
    return Verdict.ADMIT if is_admitting else Verdict.WAIT
