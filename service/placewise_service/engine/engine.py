"""The engine: answers where, how and when on the view of each cluster. Knows no transport and no Redis.

    place          placing.py       view → Placer.draft → assume → store.reserve → settle → log
    partition      here             view → policy → log (a share is advice: nothing is held)
    admit_or_wait  admitting.py     view → policy → store.commit_queue → log

A conflict means that the view was behind: decide again on the newer one, at most twice, then ABORTED.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog

from placewise_core.admit.registry import CHANGED_ORDERS
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.cluster import ClusterSettings, Node, QueueSettings, QueueState, RunState
from placewise_core.domain.commands import AdmitCommand, JobEvent, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import (
    AdmitDecision,
    LearnedCapability,
    LearnedCoRun,
    LearnedHeat,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
)
from placewise_core.domain.errors import InvalidRequestError, NotFoundError, PlacewiseError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_core.partition.policy import PartitionContext, PartitionPolicy, partitioned
from placewise_core.speed.completed_interference import learned_co_runs
from placewise_core.view.view import ClusterView
from placewise_log.logs import Log, LogState
from placewise_log.record import DecisionRecord, decode
from placewise_service.audit import NoAudit
from placewise_service.background import cancel_and_wait
from placewise_service.declog.asked import AskedJobs
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.admitting import Admitting
from placewise_service.engine.bundles import SharedBundles
from placewise_service.engine.canary.calls import CallArm, CallMixture, arm_of_task
from placewise_service.engine.canary.watching import Watching
from placewise_service.engine.explorers import BundleExplorers
from placewise_service.engine.growth import Growth
from placewise_service.engine.parts import NOT_THE_HOSTS, EngineParts, check_policy_exists
from placewise_service.engine.pending import Pending
from placewise_service.engine.place.drafting import Placer
from placewise_service.engine.place.placing import Placing
from placewise_service.engine.place.shadowing import Shadowing
from placewise_service.engine.place.sliced_drafting import SlicedPlacer
from placewise_service.engine.place.studying import Studying
from placewise_service.engine.reporting.drift import DriftWatch
from placewise_service.engine.reporting.reports import Reporter, ReportOutcome, portions
from placewise_service.engine.shadowing.questions import PartitionQuestion
from placewise_service.engine.shadowing.studies import offer
from placewise_service.engine.slicing import Slicing
from placewise_service.engine.view_log.notes import Noted
from placewise_service.engine.view_log.writing import ViewLog
from placewise_service.engine.views import LiveView, Views
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.store import StateStore
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)

_EXPIRY_PERIOD_S = 0.5
_FORGETTING_ROUNDS = 60  # of expiry: every half minute
_CLUSTERS_PERIOD_S = 1.0
_COSTS = 3.0  # of a study: at 1 % of the time, counted once, Place took 3.7 % longer at half of saturation
# Propensities over both arms of a canary: up to a fifth of the time, and so many waiting.
_MIXING_TIME_SHARE, _MOST_MIXED = 0.2, 64
PARTITION_POLICY = "heat-island"  # if the request names none


# Nodes, and units that a question names, up to which it is answered in one go.
_MOST_IN_ONE_GO = 2000


def _partition_in_slices(
    policy: PartitionPolicy, command: PartitionCommand, view: ClusterView, context: PartitionContext, slices: Slices
) -> PartitionPlan:
    context.slices = slices
    return partitioned(policy, command.task, command.progress, view, context)


@frozen
class ClusterSnapshot:
    """A view to be rendered at once, as it changes with the next event; and what it has learned."""

    view: ClusterView
    is_stale: bool
    heat: tuple[LearnedHeat, ...] = ()
    capabilities: tuple[LearnedCapability, ...] = ()
    co_runs: tuple[LearnedCoRun, ...] = ()


class Engine:
    """One per process; everything runs on one event loop."""

    def __init__(
        self,
        parts: EngineParts,
        placer: Placer,
        explorers: BundleExplorers,
    ) -> None:
        self._parts = parts
        self._explorers = explorers
        slicing = self._slicing = Slicing(parts.clock.monotonic_s)
        time_share = parts.options.study_time_share
        self._studying, self._shadowed = (Studying(parts.clock, time_share, costs=_COSTS) for _ in range(2))
        shadowing = Shadowing(parts.registry, self._shadowed, parts.sink, parts.telemetry, parts.clock)
        self._mixing = Studying(parts.clock, _MIXING_TIME_SHARE, _MOST_MIXED)
        self.bundles = SharedBundles(parts.store, parts.registry, parts.clock, parts.audit)
        self._watching = Watching(parts.store, parts.registry, self.bundles, parts.telemetry)
        sliced, after = SlicedPlacer(parts, slicing), (self._studying, shadowing, self._mixing, self._watching)
        self._placing = Placing(parts, placer, sliced, *after)
        self._admitting = Admitting(parts, slicing, shadowing, self._mixing, self._watching)
        self._shadowing = shadowing
        self._growth = Growth(parts)
        self._view_log = ViewLog(parts.views, parts.store, parts.clock, parts.telemetry.view_log_drops)
        self._reporter = Reporter(
            parts.store, parts.sink, parts.options.most_profiles, parts.telemetry.profiles_refused
        )
        self._following: list[asyncio.Task[None]] = []
        self._drift = DriftWatch(parts.sink, parts.views, parts.registry, parts.telemetry)
        self._damaged: dict[str, str] = {}  # cluster → why, as logged
        self._logged: set[str] = set()  # clusters whose admission policy has another order now, once logged

    def twin(self, store: StateStore, telemetry: Telemetry) -> "Engine":
        """The same policies and bundles on another store, which knows nothing of this one. Not to be started."""
        parts = replace(
            self._parts,
            store=store,
            telemetry=telemetry,
            views=Views(store, self._parts.clock, self._parts.options.stale_telemetry_after_s),
            sink=DecisionSink(store),
            asked=AskedJobs(),
            audit=NoAudit(),
        )
        return Engine(parts, self._placing.placer, self._explorers)

    async def start(self) -> None:
        """Takes up the bundles in force, loads the views of the clusters that exist, begins to expire reservations."""
        await self.bundles.refresh()
        options = self._parts.options
        if (default := options.place_policy) not in self.place_policies:
            log.warning("the bundle has no net for the default policy: the fallback policy decides", policy=default)
        if (default := options.pipeline_policy) not in self.place_policies:
            log.warning("the bundle has no net for the default policy of pipelines", policy=default)
        for cluster in await self._parts.store.clusters():
            await self._take_up(cluster)
        await self._explorers.follow(self._named_explorers())
        self._parts.sink.start()
        if self._parts.options.logs_views:
            self._view_log.start()
        self._parts.telemetry.show_queues(self._queues, self._parts.options.queue_series)
        self._following = [
            asyncio.create_task(self._meet_clusters(), name="meet clusters"),
            asyncio.create_task(self.bundles.follow(), name="follow bundles"),
            asyncio.create_task(self._watching.follow(), name="guard canaries"),
            asyncio.create_task(self._drift.follow(), name="watch drift"),
            asyncio.create_task(self._expire_reservations(), name="expire reservations"),
        ]

    @property
    def is_ready(self) -> bool:
        return bool(self._following)

    def problem(self) -> str:
        """A problem that an operator has to solve before this replica decides as the others do; "" for none."""
        return self.bundles.problem

    async def drain(self, timeout_s: float) -> None:
        """Writes out the queue of the decision log."""
        self._parts.telemetry.afterwards.run()
        await self._mixing.finish()  # hands on to the others
        await self._studying.finish()
        await self._shadowed.finish()
        await self._parts.sink.close(timeout_s)
        if self._parts.options.logs_views:
            await self._view_log.write()

    async def close(self) -> None:
        """Ends the background tasks and the store's connections."""
        self._parts.telemetry.afterwards.run()
        await cancel_and_wait(self._following)
        self._following = []
        await self._mixing.close()
        await self._studying.close()
        await self._shadowed.close()
        await self._view_log.close()
        await self._parts.views.close()
        await self._parts.sink.close()
        await self._parts.store.close()

    async def place(self, command: PlaceCommand, deadline_s: float = math.inf) -> Pending[PlaceDecision]:
        """Where do these jobs' tasks go? Reserves each placement for the reservation's time, unless it is a dry run."""
        return await self._placing.place(command, deadline_s)

    async def partition(self, command: PartitionCommand, deadline_s: float = math.inf) -> PartitionDecision:
        """Splits a divisible task over the idle units, or moves late shares to those at work."""
        parts, policies = self._parts, self._parts.registry.policies_of(command.cluster).partition
        check_policy_exists(command.policy, policies, "policy")
        name = command.policy or PARTITION_POLICY
        started_s = parts.begin(deadline_s)
        live = await parts.views.get(command.cluster)
        await parts.hear_time(live, command.now_s, command.is_dry_run)
        context = PartitionContext(parts.now_s(live, command.now_s), command.units, command.is_explaining)
        arm = arm_of_task(parts.registry, command.cluster, command.task.id, context.now_s)
        is_mixed = arm is not None and not command.is_dry_run and self._mixing.has_room
        question = None
        if is_mixed or self._shadowing.wants_copy(command.cluster, command.is_dry_run):
            question = PartitionQuestion(command, live.view.fork(), context.now_s)
        reads = parts.read(live, context.now_s)
        try:
            policy = (policies if arm is None else arm.policies.partition)[name]
            plan, version = await self._split(policy, command, live.view, context, deadline_s)
        except PlacewiseError:
            raise
        except Exception as error:
            if arm is None:
                raise
            arm, policy = arm.failed(name, error), policies[name]
            plan, version = await self._split(policy, command, live.view, context, deadline_s)
        elapsed_ms = parts.elapsed_ms(started_s)
        meta = parts.meta(
            policy.name, live, version, elapsed_ms, caller=command.caller,
            fallback_reason="" if arm is None else arm.error, bundle=None if arm is None else arm.bundle,
            heat=policy.learned(live.view), capabilities=policy.capabilities(live.view, command.task.kind),
        )  # fmt: skip
        decision = PartitionDecision(plan, meta)
        latency_ms = parts.elapsed_ms(started_s)
        seen = (live.view.epoch, reads, question, arm)
        parts.afterwards(self._log_partition, command, decision, context.now_s, latency_ms, *seen)
        return await parts.remembered(
            command.cluster, command.request_id, command.is_dry_run, decision, command.fingerprint
        )

    async def _split(
        self,
        policy: PartitionPolicy,
        command: PartitionCommand,
        view: ClusterView,
        context: PartitionContext,
        deadline_s: float,
    ) -> tuple[PartitionPlan, int]:
        """The plan, and the version of the view it was made on."""
        if view.nodes.size + len(command.units) + len(command.progress) <= _MOST_IN_ONE_GO:
            return partitioned(policy, command.task, command.progress, view, context), view.version
        view = view.fork()
        ask = partial(_partition_in_slices, policy, command, view, context)
        return await self._slicing.run(ask, deadline_s), view.version

    def _log_partition(
        self,
        command: PartitionCommand,
        decision: PartitionDecision,
        time_s: float,
        latency_ms: float,
        epoch: str,
        reads: tuple[Noted, ...],
        question: PartitionQuestion | None,
        arm: CallArm | None,
    ) -> None:
        seen = tuple([noted.read() for noted in reads])
        record = DecisionRecord.of_partition(
            command, decision, time_s=time_s, latency_ms=latency_ms, epoch=epoch, reads=seen
        )
        if arm is None or command.is_dry_run:
            self._parts.log(record, decision.plan.outcome)
        else:
            self._parts.count(record, decision.plan.outcome)
            self._watching.count_call(record, arm)
            hand_on, telemetry = self._parts.sink.offer, self._parts.telemetry
            self._mixing.offer(CallMixture(record, arm, question, hand_on, telemetry))
        offer(self._shadowing, PartitionQuestion, question, record)

    async def admit_or_wait(self, command: AdmitCommand, deadline_s: float = math.inf) -> Pending[AdmitDecision]:
        """Does each job start now, with how many GPUs, or does it wait? Moves the queue once per slot."""
        return await self._admitting.admit_or_wait(command, deadline_s)

    def queue_settings(self, cluster: str, queue: str) -> QueueSettings:
        """The cluster's parameters of a queue, or the service's."""
        return self._admitting.queue_settings(cluster, queue)

    @property
    def place_policies(self) -> Collection[str]:
        """Names of the placement policies that the bundle in force allows."""
        return self._placing.placer.policies.keys()

    def check_place_policy(self, cluster: str, name: str, field: str) -> None:
        """Raises InvalidRequestError for a placement policy that does not exist there, as `place` would."""
        check_policy_exists(name, self._parts.registry.policies_of(cluster).placement, field)

    async def report_nodes(
        self, cluster: str, nodes: Sequence[Node], full: bool, now_s: float | None = None
    ) -> ReportOutcome:
        """Inserts or updates nodes. Creates the cluster. `now_s` is the host's time, if it states one."""
        await self._growth.check_cluster(cluster)
        time_s = await self._time_of_report(cluster, now_s)
        live = self._parts.views.find(cluster)
        view = live.view if live is not None else None
        outcome, events = await self._reporter.nodes(cluster, view, nodes, full, time_s)
        await self._show(cluster, events)
        return outcome

    async def _time_of_report(self, cluster: str, asked_s: float | None) -> float:
        """The time of a report of nodes, which may be about a cluster that does not exist yet, or repair its record."""
        try:
            live = await self._parts.views.get(cluster)
        except CorruptStateError:
            return self._parts.clock.now_s() if asked_s is None else asked_s
        except NotFoundError:
            if asked_s is not None:
                raise InvalidRequestError(NOT_THE_HOSTS, "now") from None
            return self._parts.clock.now_s()
        await self._parts.hear_time(live, asked_s)
        return self._parts.now_s(live)

    async def report_job_events(
        self, cluster: str, events: Sequence[JobEvent], now_s: float | None = None
    ) -> ReportOutcome:
        """Applies the host's events. `now_s` as in report_nodes. Raises NotFoundError for an unknown cluster."""
        live = await self._parts.views.get(cluster)
        await self._parts.hear_time(live, now_s)
        if self._parts.registry.canaries:
            self._watching.count_reports(cluster, events)
        total = ReportOutcome(0, 0, 0)
        for portion in portions(events):
            outcome, changes = await self._reporter.job_events(cluster, live, portion, self._parts.now_s(live))
            self._parts.telemetry.overcommits(cluster, len(outcome.overcommits))
            self._parts.telemetry.unknown_starts(cluster, len(outcome.unknown))
            live.show(changes)
            total = total.followed_by(outcome)
            await live.wait_shown()
        asyncio.get_running_loop().call_soon(self._parts.prepare, live)  # once the answer is on its way
        return total

    async def get_cluster(self, cluster: str) -> ClusterSnapshot:
        live = await self._parts.views.get(cluster)
        policy = self._parts.registry.policies_of(cluster).partition.get(PARTITION_POLICY)
        heat, capabilities = (policy.learned(live.view), policy.capabilities(live.view, None)) if policy else ((), ())
        cells = live.view.estimates.pairs.cells() if live.view.settings.learn_co_runs else ()
        co_runs = learned_co_runs(cells, self._placing.placer_for(cluster).interference.table)
        return ClusterSnapshot(live.view, live.is_stale, heat, capabilities, co_runs)

    async def clusters(self) -> Sequence[str]:
        """Names of the clusters the store knows, or, while it does not answer, those with a view."""
        try:
            return await self._parts.store.clusters()
        except StateUnavailableError:
            return sorted(live.cluster for live in self._parts.views)

    async def delete_cluster(self, cluster: str) -> None:
        """Forgets a cluster and everything held on it. Raises NotFoundError."""
        if not await self._parts.store.delete_cluster(cluster):
            raise NotFoundError(f"no cluster {cluster!r}", {"cluster": cluster})
        self._parts.views.drop(cluster)
        with contextlib.suppress(StateUnavailableError):  # the cluster is gone, as the caller wanted
            await self.bundles.forget(cluster)

    async def update_settings(self, cluster: str, settings: ClusterSettings) -> ClusterSettings:
        """Replaces the cluster's settings. Raises InvalidRequestError for an unknown policy."""
        policies = self._parts.registry.policies_of(cluster)
        check_policy_exists(settings.place_policy, policies.placement, "settings.place_policy")
        check_policy_exists(settings.admit_policy, policies.admission, "settings.admit_policy")
        for i, explorer in enumerate(settings.explorers):
            await self._check_explorer(cluster, explorer.policy, f"settings.explorers[{i}].policy")
        before = {name: self.queue_settings(cluster, name) for name in settings.queues}
        await self._growth.check_cluster(cluster)
        await self._check_clock(cluster, settings)
        event = await self._parts.store.update_settings(cluster, settings)
        await self._show(cluster, [event])
        for name, queue in settings.queues.items():
            if queue.slot_s != before[name].slot_s:
                await self._admitting.renumber(cluster, name)
        return settings

    async def _check_clock(self, cluster: str, settings: ClusterSettings) -> None:
        """Raises InvalidRequestError for another clock while times of the present one are kept."""
        try:
            view = (await self._parts.views.get(cluster)).view
        except NotFoundError:
            return
        if settings.host_clock != view.settings.host_clock and (view.jobs or view.queues):
            raise InvalidRequestError(
                "cannot change while the cluster has jobs or queues: choose the clock before the first job, or delete "
                "the cluster and begin it anew",
                "settings.host_clock",
            )

    async def get_decision(self, cluster: str, decision_id: str) -> DecisionRecord:
        """A past decision that is still in the log's ring. Raises NotFoundError."""
        found = await self._parts.store.find_decision(cluster, decision_id)
        if found is None:
            raise NotFoundError(f"no decision {decision_id!r} in the log of {cluster!r}", {"decision": decision_id})
        return decode(found)

    async def read_log(
        self, cluster: str, log: Log, after: str, count: int, exported: str
    ) -> tuple[Sequence[tuple[str, bytes]], LogState]:
        """(position, entry) pairs of a log after a position, "" for the beginning, and facts about the log.
        `exported` is acknowledged first, unless it is "". Raises NotFoundError, StateUnavailableError.
        """
        store = self._parts.store
        if cluster not in await store.clusters():
            raise NotFoundError(f"no cluster {cluster!r}", {"cluster": cluster})
        if exported:
            await store.mark_exported(cluster, exported, log)
        found = await store.read_decisions(cluster, after or "0", count, log)
        return found, await store.log_state(cluster, log)

    async def _show(self, cluster: str, events: Sequence[Event]) -> None:
        """Shows the caller's report to its next decision on this replica."""
        live = await self._parts.views.get(cluster)
        live.show(events)
        await live.wait_shown()

    def _queues(self) -> Iterator[tuple[str, QueueState]]:
        for live in self._parts.views:
            for state in live.view.queues.values():
                yield live.cluster, state

    async def _meet_clusters(self) -> None:
        """Takes up clusters that were reported to other replicas, as if this one had been asked about them."""
        while True:
            await asyncio.sleep(_CLUSTERS_PERIOD_S)
            with contextlib.suppress(StateUnavailableError):  # the next round tries again
                clusters = await self._parts.store.clusters()
                for cluster in clusters:
                    await self._take_up(cluster)
                self._damaged = {cluster: why for cluster, why in self._damaged.items() if cluster in clusters}
                self._logged.intersection_update(clusters)
            await self._explorers.follow(self._named_explorers())

    def _named_explorers(self) -> Collection[str]:
        """Explorers of all clusters that are no policies: bundles."""
        named = {each.policy for live in self._parts.views for each in live.view.settings.explorers}
        registry = self._parts.registry
        in_force = (registry.shadows.active, *(own.policies for own in registry.own.values()))
        return named - {name for policies in in_force for name in policies.explorers}

    async def _check_explorer(self, cluster: str, name: str, field: str) -> None:
        """Raises InvalidRequestError unless the name is that of a policy or of a bundle, which it loads."""
        explorers = self._placing.placer_for(cluster).explorers
        if name in explorers:
            return
        try:
            await self._explorers.load(name)
        except NotFoundError:
            check_policy_exists(name, explorers, field)
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message, field) from error

    async def _take_up(self, cluster: str) -> None:
        """Loads the view of a cluster. One that is damaged is logged once, and keeps no other back."""
        try:
            live = await self._parts.views.get(cluster)
        except NotFoundError:
            pass  # deleted in this moment
        except CorruptStateError as error:
            if self._damaged.get(cluster) != error.message:
                self._damaged[cluster] = error.message
                log.error("view cannot be built", cluster=cluster, reason=error.message)
        else:
            self._damaged.pop(cluster, None)
            changed = CHANGED_ORDERS.get(live.view.settings.admit_policy)
            if changed is not None and cluster not in self._logged:
                self._logged.add(cluster)
                log.warning(f"the settings name a policy whose order changed: {changed}", cluster=cluster)

    async def _expire_reservations(self) -> None:
        for rounds in itertools.count(1):
            await asyncio.sleep(_EXPIRY_PERIOD_S)
            if rounds % _FORGETTING_ROUNDS == 0:
                await self._forget_idle()
            self._parts.telemetry.forget_all_but({live.cluster for live in self._parts.views})
            for live in self._parts.views:
                self._parts.telemetry.view_lag(live.cluster, live.lag_s)
                if any(job.state is RunState.RESERVED for job in live.view.jobs.values()):
                    await self._expire(live)

    async def _forget_idle(self) -> None:
        for live in self._parts.views:
            await self._growth.forget_idle_queues(live, partial(self.queue_settings, live.cluster))
            await self._growth.forget_idle_profiles(live)

    async def _expire(self, live: LiveView) -> None:
        try:
            result = await self._parts.store.expire(live.cluster)
        except StateUnavailableError:
            return  # the tail reports it; the next round tries again
        live.show(result.events)
