"""Parts that the three calls share: the view to decide on, the record of a decision, repeated answers."""

import difflib
import math
from collections.abc import Callable, Collection
from dataclasses import field

import structlog

from placewise_core.admit.pool import Pool
from placewise_core.basics.clock import Clock
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.decision import DecisionMeta, LearnedCapability, LearnedHeat, LearnedLength, LearnedSpeed
from placewise_core.domain.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidRequestError,
    StaleSnapshotError,
)
from placewise_log.record import DecisionRecord
from placewise_models.bundle import Bundle
from placewise_service.audit import AuditSink, NoAudit
from placewise_service.declog.asked import AskedJobs
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.answers import Decision, decode_answer, encode_answer
from placewise_service.engine.ids import uuid7
from placewise_service.engine.registry import BundleRegistry
from placewise_service.engine.view_log.notes import Noted
from placewise_service.engine.views import LiveView, Views
from placewise_service.state.store import Repeated, Reused, StateStore
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)

ATTEMPTS = 3  # the first decision and two more
_CATCH_UP_S = 0.05  # events reach a view within milliseconds; this bounds the wait if they do not
_SWEEP_ROUNDS = 20
NOT_THE_HOSTS = "must be left out: the cluster's time is the service's, unless its setting host_clock is on"


@frozen
class EngineOptions:
    """The operator's options for this service; a cluster's own settings come first."""

    place_policy: str = "consolidate"
    pipeline_policy: str = "ldwp"
    admit_policy: str = "proteus-qos"
    fallback_policy: str = "consolidate"
    reserve_ttl_s: float = 60.0
    stale_telemetry_after_s: float = 90.0
    log_buffer_records: int = 20_000
    observe_share: float = 0.0
    alternatives_share: float = 0.0
    study_time_share: float = 0.01
    queue: QueueSettings = QueueSettings()
    most_clusters: int = 1000
    most_queues: int = 1000
    most_profiles: int = 2000
    queue_idle_s: float = 604_800.0
    profile_idle_s: float = 7_776_000.0
    queue_series: int = 1000
    logs_views: bool = True


@frozen
class EngineParts:
    """The parts every decision uses. Owned by the engine."""

    store: StateStore
    clock: Clock
    views: Views
    sink: DecisionSink
    registry: BundleRegistry
    telemetry: Telemetry
    options: EngineOptions
    asked: AskedJobs = field(default_factory=AskedJobs)
    audit: AuditSink = field(default_factory=NoAudit)

    def begin(self, deadline_s: float) -> float:
        """Reading of the monotonic clock at the start of a decision. Raises DeadlineExceededError."""
        now_s = self.clock.monotonic_s()
        if now_s >= deadline_s:
            raise DeadlineExceededError("the deadline passed before the decision began")
        return now_s

    def now_s(self, live: LiveView, asked_s: float | None = None) -> float:
        """The cluster's time. A dry run does not move it, and brings its own, `asked_s`."""
        host_s = live.view.host_time_s
        if host_s is None:
            return self.clock.now_s()
        return host_s if asked_s is None else max(host_s, asked_s)

    async def hear_time(self, live: LiveView, asked_s: float | None, is_dry_run: bool = False) -> None:
        """Moves the clock of a cluster whose time is its host's to the time that the host states, and returns when the
        view is there. Raises InvalidRequestError if the host states none, or if the time is the store's."""
        host_s = live.view.host_time_s
        if host_s is None and asked_s is not None:
            raise InvalidRequestError(NOT_THE_HOSTS, "now")
        if host_s is None or is_dry_run:
            return
        if asked_s is None:
            raise InvalidRequestError("must be given: the cluster's time is its host's (host_clock)", "now")
        if asked_s > host_s:
            await self.sweep(live, asked_s)

    def elapsed_ms(self, started_s: float) -> float:
        return (self.clock.monotonic_s() - started_s) * 1000.0

    def meta(
        self,
        policy: str,
        live: LiveView,
        version: int,
        decide_ms: float,
        decision_id: str = "",
        propensity: float = 1.0,
        is_explored: bool = False,
        fallback_reason: str = "",
        caller: str = "",
        bundle: Bundle | None = None,
        lengths: tuple[LearnedLength, ...] = (),
        speeds: tuple[LearnedSpeed, ...] = (),
        heat: tuple[LearnedHeat, ...] = (),
        capabilities: tuple[LearnedCapability, ...] = (),
    ) -> DecisionMeta:
        """The metadata of a decision on the view at `version`, by a bundle; None for that of the cluster."""
        bundle = bundle or self.registry.bundle_of(live.cluster)
        return DecisionMeta(
            decision_id=decision_id or uuid7(),
            policy=policy,
            bundle=bundle.name,
            bundle_digest=bundle.digest,
            snapshot_version=version,
            propensity=propensity,
            is_fallback=bool(fallback_reason),
            fallback_reason=fallback_reason,
            decide_ms=decide_ms,
            is_stale=live.is_stale,
            is_explored=is_explored,
            caller=caller,
            lengths=lengths,
            speeds=speeds,
            heat=heat,
            capabilities=capabilities,
        )

    def read(self, live: LiveView, now_s: float, job_id: str = "") -> tuple[Noted, ...]:
        """The view as a decision reads it now, for the log; empty if views are not logged."""
        return (live.notes.read(live.view, now_s, job_id),) if self.options.logs_views else ()

    def prepare(self, live: LiveView) -> None:
        """Works ahead for the next request, unless a decision under way will change the view: counts slots, finds the
        shapes of the job admitted last, as many ask alike, and marks the view's state. The view keeps all of it."""
        if live.is_deciding:
            return
        view = live.view
        view.slots.count_ahead()
        if live.asked_last is not None:
            Pool.free(view, self.now_s(live)).options(live.asked_last)
        if self.options.logs_views:
            view.mark()

    def afterwards(self, act: Callable[..., None], *args: object) -> None:
        """Calls `act(*args)` when the answer is on its way, or the caller waits for the store anyway."""
        self.telemetry.afterwards.add(act, *args)

    def log(self, record: DecisionRecord, outcome: str) -> None:
        """Logs and counts one decision that was answered."""
        self.sink.offer(record)
        self.count(record, outcome)

    def count(self, record: DecisionRecord, outcome: str) -> None:
        """Counts one decision that was answered."""
        meta = record.meta
        self.telemetry.decision(record.rpc, meta.policy, outcome, meta.is_fallback, record.latency_ms / 1000.0)
        log.debug(
            "decided",
            decision_id=meta.decision_id,
            rpc=record.rpc,
            cluster=record.cluster,
            policy=meta.policy,
            outcome=outcome,
            latency_ms=record.latency_ms,
            request_id=record.request_id,
            caller=meta.caller,
        )

    async def catch_up(self, live: LiveView, deadline_s: float = math.inf) -> None:
        """Waits after a conflict until the view has newer events. Raises DeadlineExceededError."""
        left_s = deadline_s - self.clock.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceededError("the deadline passed before the decision could be made again after a conflict")
        await live.wait_changed(min(_CATCH_UP_S, left_s))

    async def remembered(
        self, cluster: str, request_id: str, is_dry_run: bool, decision: Decision, fingerprint: bytes
    ) -> Decision:
        """The decision, or the first one given under the same request_id. Raises AlreadyExistsError."""
        if not request_id or is_dry_run:
            return decision
        answer = await encode_answer(decision)
        first = await self.store.remember(cluster, request_id, answer, fingerprint)
        if isinstance(first, Repeated) and first.answer == answer:
            return decision
        return await decode_repeat(first, type(decision), request_id)

    async def sweep(self, live: LiveView, host_time_s: float | None = None) -> None:
        """Has the store move the host's clock, if that is asked for, and release expired reservations; waits until the
        view has applied all earlier events.

        Raises StaleSnapshotError if the view does not get there.
        """
        result = await self.store.expire(live.cluster, host_time_s)
        live.show(result.events)
        while result.applied:  # there may be more of them
            result = await self.store.expire(live.cluster)
            live.show(result.events)
        for _ in range(_SWEEP_ROUNDS):
            if live.view.version >= result.version:
                return
            await live.wait_changed(_CATCH_UP_S)
        raise StaleSnapshotError("the view has not caught up with the state: try again", {"cluster": live.cluster})


def check_policy_exists(name: str, policies: Collection[str], field: str) -> None:
    """Raises InvalidRequestError for a policy that does not exist; "" is the default and always does."""
    if name and name not in policies:
        raise InvalidRequestError(f"no policy {name!r}{nearest(name, policies)}", field)


def nearest(name: str, names: Collection[str]) -> str:
    """What to write instead, as the end of a sentence."""
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    return f"{hint} there are: {', '.join(sorted(names))}"


async def decode_repeat(first: Repeated | Reused, kind: type[Decision], request_id: str) -> Decision:
    """The first answer. Raises AlreadyExistsError if the id belongs to another question or caller, InvalidRequestError
    if it was used for another kind of request."""
    if isinstance(first, Reused):
        raise AlreadyExistsError(
            "the request_id was used for another question, or by another caller: send a new one with a new question",
            {"field": "request_id"},
        )
    decision = await decode_answer(first.answer, kind, first.expire_time_s)
    if decision is None:
        raise InvalidRequestError(
            f"request_id {request_id!r} was used for another kind of request: use a new one", "request_id"
        )
    return decision
