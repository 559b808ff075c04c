"""Where: view → draft → reserve → log. A conflict means that the view was behind: decide again on the newer one."""

import asyncio
import math
from collections import ChainMap
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import random

from msgspec import UNSET

from placewise_core.basics.frozen import frozen
from placewise_core.domain.commands import PlaceCommand, Scope
from placewise_core.domain.decision import JobDecision, Outcome, PlaceDecision
from placewise_core.domain.errors import NotFoundError, StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_core.domain.job import Architecture, Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.explore import NONE, exploration_of
from placewise_core.policies.studies.alternatives import Study
from placewise_core.policies.trial.arms import Arm, Side
from placewise_core.policies.trial.stand_in import StandIn
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.lengths import with_lengths
from placewise_core.view.speeds import of_placed
from placewise_core.view.standing import held
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, Draw, PlaceSeen
from placewise_models.bundle import Bundle
from placewise_service.engine.answers import Standing, encode_answer, held_until, standing_of
from placewise_service.engine.canary.arming import Arming, ArmingOn
from placewise_service.engine.canary.mixtures import MixtureStudy, with_tried
from placewise_service.engine.canary.watching import Watching
from placewise_service.engine.ids import uuid7
from placewise_service.engine.parts import ATTEMPTS, EngineParts, check_policy_exists, decode_repeat
from placewise_service.engine.pending import Pending
from placewise_service.engine.place.alternatives import AlternativesStudy
from placewise_service.engine.place.draft import DecidedJob, Draft, Terms
from placewise_service.engine.place.drafting import NONE_SETTLED, Placer, seed_of
from placewise_service.engine.place.shadowing import Shadowing
from placewise_service.engine.place.sliced_drafting import SlicedPlacer, is_large
from placewise_service.engine.place.studying import Studying
from placewise_service.engine.registry import Canary
from placewise_service.engine.shadowing.questions import NodeQuestion
from placewise_service.engine.shadowing.studies import offer
from placewise_service.engine.views import LiveView
from placewise_service.state.store import Conflict, Repeated, Reserved, ReserveRequest, ReserveResult, Reused

NODE_POLICY = "iawp"  # of NODE scope, if the request names none


@frozen
class _PlaceCall:
    """One call: its command and view, the policies of its cluster's bundle, its start and its deadline, the canary
    that answers some of its jobs, None for none, and the heuristic that a kill switch leaves, "" without one."""

    command: PlaceCommand
    live: LiveView
    placer: Placer
    policy: PlacementPolicy
    started_s: float
    deadline_s: float
    canary: Canary | None = None
    heuristic: str = ""


@frozen
class _Attempt:
    """A decision that the view assumes. `result` comes from the store; None if there is nothing to hold or remember.
    `settled` are jobs that the store knows better than the view, `conflicts` node and reason of earlier attempts."""

    draft: Draft
    seed: int
    decision: PlaceDecision
    settled: Mapping[JobId, JobDecision]
    conflicts: tuple[tuple[str, str], ...] = ()
    result: Awaitable[ReserveResult | None] | None = None


@frozen
class Placing:
    """Answers Place."""

    parts: EngineParts
    placer: Placer
    sliced: SlicedPlacer
    studying: Studying
    shadowing: Shadowing
    mixing: Studying
    watching: Watching

    async def place(self, command: PlaceCommand, deadline_s: float) -> Pending[PlaceDecision]:
        started_s = self.parts.begin(deadline_s)
        live = await self.parts.views.get(command.cluster)
        await self.parts.hear_time(live, command.now_s, command.is_dry_run)
        view = live.view
        if view.settings.learn_durations:
            jobs, lengths = with_lengths(command.jobs, view)
            command = replace(command, jobs=jobs, lengths=lengths)
        if command.scope is Scope.NODE:
            return Pending(await self._on_node(command, live, started_s))
        placer = self.placer_for(command.cluster)
        policy = self._policy(command, view, placer)
        asked = _PlaceCall(command, live, placer, policy, started_s, deadline_s)
        if self.parts.registry.canaries or self.parts.registry.kills:
            asked = self._tried(asked)
        if command.is_dry_run:
            return Pending(await self._try_out(asked))
        attempt = await self._attempt(asked, NONE_SETTLED)
        return Pending(attempt.decision, self._settle(asked, attempt))

    async def _try_out(self, asked: _PlaceCall) -> PlaceDecision:
        """The decision of a dry run."""
        draft, seed = await self._draft(asked, NONE_SETTLED)
        decision = self._decision(asked, draft, self.parts.elapsed_ms(asked.started_s))
        decision = replace(decision, decisions=tuple(replace(d, reservation_id="") for d in decision.decisions))
        self._note(asked, _Attempt(draft, seed, decision, NONE_SETTLED), decision)
        return decision

    def placer_for(self, cluster: str) -> Placer:
        """With the policies of the bundle that answers for the cluster."""
        own = self.parts.registry.own
        return self.placer.of(own[cluster].policies) if cluster in own else self.placer

    def _tried(self, asked: _PlaceCall) -> _PlaceCall:
        """The call under a canary or a kill switch. A kill switch comes first, and keeps bundles from
        exploring, too."""
        registry, cluster, name = self.parts.registry, asked.command.cluster, asked.policy.name
        if heuristic := registry.kill_of(cluster):
            placer = replace(asked.placer, explorers=ChainMap({}))
            is_learned = name in registry.policies_of(cluster).learned.by_name
            if not is_learned:
                return replace(asked, placer=placer, heuristic=name)
            return replace(asked, placer=placer, policy=StandIn(placer.policies[heuristic], name), heuristic=heuristic)
        canary = registry.canary_of(cluster)
        has_policy = canary is not None and name in canary.serving.policies.placement
        return replace(asked, canary=canary) if has_policy else asked

    def _arming(self, asked: _PlaceCall, canary: Canary, context: PlaceContext, view: ClusterView) -> Arming:
        """The arms of the call's jobs."""
        policies, is_tried = canary.serving.policies, asked.command.is_dry_run
        others = self.placer.of(policies)
        interference = others.interference.of(view.co_runs, asked.command.jobs)

        def side(policy: PlacementPolicy, explorers: Mapping[str, PlacementPolicy], by: GpuInterference) -> Side:
            return Side(policy, NONE if is_tried else exploration_of(view.settings, explorers), by)

        sides = {
            Arm.INCUMBENT: side(asked.policy, asked.placer.explorers, context.interference),
            Arm.CANARY: side(policies.placement[asked.policy.name], others.explorers, interference),
        }
        return Arming(canary, context.now_s, sides, is_tried)

    def _policy(self, command: PlaceCommand, view: ClusterView, placer: Placer) -> PlacementPolicy:
        name = command.policy or view.settings.place_policy or self._default_policy(command.jobs, placer)
        check_policy_exists(name, placer.policies, "policy")
        return placer.policies[name]

    def _default_policy(self, jobs: Sequence[Job], placer: Placer) -> str:
        options = self.parts.options
        are_pipelines = all(job.architecture is Architecture.PIPELINE for job in jobs)
        wanted = [options.pipeline_policy] * are_pipelines + [options.place_policy, options.fallback_policy]
        return next(name for name in wanted if name in placer.policies)  # the bundle may be one of a site

    async def _attempt(
        self,
        asked: _PlaceCall,
        settled: Mapping[JobId, JobDecision],
        over: bytes = b"",
        conflicts: tuple[tuple[str, str], ...] = (),
    ) -> _Attempt:
        """Decides, assumes the decision on the view and asks the store to hold it."""
        jobs = asked.live.view.jobs
        if known := [job.id for job in asked.command.jobs if job.id in jobs and job.id not in settled]:
            settled = {**settled, **await self._confirmed(asked.live, known)}
        draft, seed = await self._draft(asked, settled)
        decide_ms = self.parts.elapsed_ms(asked.started_s)
        try:
            answer, decision = b"", None
            if asked.command.request_id:
                decision = self._decision(asked, draft, decide_ms)
                asked.live.assume(draft.holds)  # after it: the view takes the gang while the store works
                answer = await encode_answer(decision, _reservations(draft))
            result = self._ask(asked.command, draft, answer, over)
            if decision is None:  # the store works meanwhile
                asked.live.assume(draft.holds)
                decision = self._decision(asked, draft, decide_ms)
        except BaseException:
            await asked.live.give_back(draft.holds)
            raise
        return _Attempt(draft, seed, decision, settled, conflicts, result)

    async def _settle(self, asked: _PlaceCall, attempt: _Attempt) -> PlaceDecision:
        """The answer, once the store has agreed to the attempt or to one of those that follow it."""
        command, live = asked.command, asked.live
        over, attempts, conflicts = b"", ATTEMPTS - 1, tuple[tuple[str, str], ...]()
        while True:
            result = await self._result(asked, attempt)
            if isinstance(result, Reserved):
                draft = attempt.draft
                # The view has the gang already; that the store agrees it hears when the answer is on its way.
                asyncio.get_running_loop().call_soon(self._show, asked, draft, result.event)
                decision = held_until(attempt.decision, _reservations(draft), result.expire_time_s)
                self._note(asked, attempt, decision)
                return decision
            if isinstance(result, Repeated | Reused):
                standing = await self._standing(asked, result)
                if standing.decision is not None:
                    return standing.decision
                attempts += not over  # a repeated decision has as many attempts as a first one
                over, settled = standing.answer, standing.settled
                await self.parts.sweep(live)
            elif isinstance(result, Conflict):
                self.parts.telemetry.conflict(command.cluster)
                conflicts += ((result.node, result.reason),)
                settled = {**attempt.settled, **{job.id: held(job) for job in result.running}}
                if not result.running:  # else the store's answer has all there is to know
                    await self.parts.catch_up(live, asked.deadline_s)
            else:
                self._note(asked, attempt, attempt.decision)
                return attempt.decision
            if not attempts:
                message = "the cluster changed during each of three attempts: try again"
                raise StaleSnapshotError(message, {"cluster": command.cluster})
            attempts -= 1
            attempt = await self._attempt(asked, settled, over, conflicts)

    async def _confirmed(self, live: LiveView, known: Sequence[JobId]) -> Mapping[JobId, JobDecision]:
        """The store's record of these jobs: another replica may have given away their resources on the view."""
        now = await self.parts.store.look_up(live.cluster, known)
        holding = {job_id: held(job) for job_id, job in now.items() if job is not None}
        if len(holding) < len(known):
            await self.parts.sweep(live)
        return holding

    async def _result(self, asked: _PlaceCall, attempt: _Attempt) -> ReserveResult | None:
        """The store's word on the attempt, which stays on the view unless the store refuses."""
        draft, result = attempt.draft, None
        try:
            if attempt.result is not None:
                result = await attempt.result
        except BaseException as error:
            await asked.live.give_back(draft.holds)
            # It may be held all the same, and be the answer to a repeat of the question: the log has to know it.
            if asked.command.request_id and isinstance(error, asyncio.CancelledError | StateUnavailableError):
                self._note(asked, attempt, attempt.decision)
            raise
        if not isinstance(result, Reserved):
            await asked.live.give_back(draft.holds)
        return result

    async def _standing(self, asked: _PlaceCall, first: Repeated | Reused) -> Standing:
        """The parts of the first answer that still hold. Raises AlreadyExistsError."""
        decision = await decode_repeat(first, PlaceDecision, asked.command.request_id)
        assert isinstance(first, Repeated)
        placed = [d.job_id for d in decision.decisions if d.outcome is Outcome.PLACED]
        now = await self.parts.store.look_up(asked.command.cluster, placed) if placed else {}
        return standing_of(first.answer, decision, now, [job.id for job in asked.command.jobs])

    def _ask(
        self, command: PlaceCommand, draft: Draft, answer: bytes, over: bytes
    ) -> Awaitable[ReserveResult | None] | None:
        """One round trip to the store; None if there is nothing to hold and nothing to remember."""
        if draft.holds:
            ttl_s = command.reserve_ttl_s or self.parts.options.reserve_ttl_s
            request = ReserveRequest(
                tuple(draft.holds),
                ttl_s,
                command.request_id,
                answer,
                draft.tenants,
                command.fingerprint,
                over,
                draft.nodes,
            )
            return self.parts.store.reserve(command.cluster, request)
        return self._remember(command, answer, over) if command.request_id else None

    async def _remember(self, command: PlaceCommand, answer: bytes, over: bytes) -> Repeated | Reused | None:
        """The first answer; None if it is this one."""
        request_id, fingerprint = command.request_id, command.fingerprint
        first = await self.parts.store.remember(command.cluster, request_id, answer, fingerprint, over)
        return None if isinstance(first, Repeated) and first.answer == answer else first

    def _show(self, asked: _PlaceCall, draft: Draft, event: Event) -> None:
        asked.live.settle(draft.holds, is_held=True)
        asked.live.show((event,))
        self._prepare(asked.policy, asked.live)

    async def _draft(self, asked: _PlaceCall, settled: Mapping[JobId, JobDecision]) -> tuple[Draft, int]:
        """The draft, and the seed it was drawn with."""
        command, live, policy = asked.command, asked.live, asked.policy
        if live.is_closed:
            await live.wait_opened(asked.deadline_s - self.parts.clock.monotonic_s())
        seed, view = seed_of(command.seed), live.view
        context = PlaceContext(
            now_s=self.parts.now_s(live, command.now_s),
            randomness=seed,
            deadline_s=asked.deadline_s,
            is_explaining=command.is_explaining,
            interference=asked.placer.interference.of(view.co_runs, command.jobs),
        )
        is_shadowed = bool(self.parts.registry.shadows.by_cluster) and self.shadowing.wants(command)
        arming_on: ArmingOn | None = None
        if asked.canary is not None:
            arming_on = partial(self._arming, asked, asked.canary, context)
        given = (policy, context, uuid7(), settled, is_shadowed, arming_on)
        is_exploring = view.settings.exploration_rate > 0 and not command.is_dry_run
        if is_large(command.jobs, view.nodes.size, command.is_explaining, is_exploring):
            return await self.sliced.draft(asked.placer, command, live, *given), seed
        reads = self.parts.read(live, context.now_s)
        return asked.placer.draft(command, view, *given, reads), seed

    def _decision(self, asked: _PlaceCall, draft: Draft, decide_ms: float) -> PlaceDecision:
        """The decision of a draft. The view is as the draft left it, or has its last job."""
        decisions = asked.placer.answers(draft, asked.command)
        learned = self.parts.registry.policies_of(asked.command.cluster).learned_speed
        meta = self.parts.meta(
            asked.policy.name,
            asked.live,
            draft.version,
            decide_ms,
            draft.terms.decision_id,
            propensity=draft.propensity,
            is_explored=any(draw.explorer for draw in draft.draws),
            fallback_reason=next((draw.fallback_reason for draw in draft.draws if draw.fallback_reason), ""),
            caller=asked.command.caller,
            bundle=_bundle_of(draft),
            lengths=asked.command.lengths,
            speeds=of_placed(asked.command.jobs, decisions, asked.live.view, learned),
        )
        return PlaceDecision(decisions, meta)

    async def _on_node(self, command: PlaceCommand, live: LiveView, started_s: float) -> PlaceDecision:
        """Ready subtasks on the computing units of one node. Advice: nothing is held."""
        if command.node_id not in live.view.nodes.index:
            raise NotFoundError(
                f"no node {command.node_id!r} in cluster {command.cluster!r}", {"node": command.node_id}
            )
        name = command.policy or NODE_POLICY
        subtasks = self.parts.registry.policies_of(command.cluster).subtasks
        check_policy_exists(name, subtasks, "policy")
        seed = seed_of(command.seed) if name == "random" else 0
        scheduler, now_s = subtasks[name], self.parts.now_s(live, command.now_s)
        reads = self.parts.read(live, now_s)
        question = None
        if self.shadowing.wants_copy(command.cluster, command.is_dry_run):
            question = NodeQuestion(command, live.view.fork(), now_s, seed)
        decisions = scheduler.assign(command.jobs, command.node_id, live.view, now_s, seed=seed)
        elapsed_ms = self.parts.elapsed_ms(started_s)
        reason = scheduler.caveat(command.jobs, live.view)
        meta = self.parts.meta(
            name,
            live,
            live.view.version,
            elapsed_ms,
            propensity=math.prod([given.propensity for given in decisions]),
            fallback_reason=reason,
            caller=command.caller,
        )
        decision = PlaceDecision(tuple(decisions), meta)
        decided = tuple(
            [
                DecidedJob(given.job_id, draw=Draw(given.job_id, given.propensity, fallback_reason=reason))
                for given in decisions
                if given.assignments
            ]
        )
        draft = Draft(Terms(meta.decision_id), live.view.version, live.view.epoch, now_s, decided, reads)
        seen = PlaceSeen()
        if not command.is_dry_run and random() < self.placer.observe_share:
            seen = PlaceSeen(open_units=scheduler.open_units(command.jobs, command.node_id, live.view, now_s))
        self.parts.afterwards(self._log, command, live, decision, seed, draft, seen, question)
        return await self.parts.remembered(
            command.cluster, command.request_id, command.is_dry_run, decision, command.fingerprint
        )

    def _prepare(self, policy: PlacementPolicy, live: LiveView) -> None:
        """Shows the policy the cluster as the next request will find it, as EngineParts.prepare."""
        if live.is_deciding:
            return
        policy.prepare(live.view, self.parts.now_s(live))
        self.parts.prepare(live)

    def _note(self, asked: _PlaceCall, attempt: _Attempt, decision: PlaceDecision) -> None:
        self.parts.afterwards(self._log_attempt, asked, attempt, decision)

    def _log_attempt(self, asked: _PlaceCall, attempt: _Attempt, decision: PlaceDecision) -> None:
        seen = PlaceSeen(
            settled=tuple(attempt.settled),
            conflicts=attempt.conflicts,
            guards=attempt.draft.guards,
            heuristic=asked.heuristic or UNSET,
        )
        self._log(asked.command, asked.live, decision, attempt.seed, attempt.draft, seen)

    def _log(
        self,
        command: PlaceCommand,
        live: LiveView,
        decision: PlaceDecision,
        seed: int,
        draft: Draft,
        seen: PlaceSeen,
        question: NodeQuestion | None = None,
    ) -> None:
        known, cluster, jobs = self.parts.asked, command.cluster, command.jobs
        repeats = () if command.is_dry_run else known.repeats(cluster, jobs)
        record = DecisionRecord.of_place(
            command,
            decision,
            time_s=draft.now_s,
            seed=seed,
            latency_ms=decision.meta.decide_ms,
            choices=draft.choices,
            draws=draft.draws,
            epoch=draft.epoch,
            asked=replace(
                seen,
                repeats=repeats,
                admit_decisions=known.admitted_by(cluster, jobs, live.view.queues),
                is_seeded=command.seed is not None,
                slot_s=self.placer.slot_s,
            ),
            reads=tuple([noted.read() for noted in draft.reads]),
        )
        self.parts.count(record, _outcome(decision.decisions))
        arming = draft.terms.arming
        if arming is not None and arming.taken and arming.is_tried:
            self._complete(draft, with_tried(record, arming))
        elif arming is not None and arming.taken:
            self.watching.count_place(record, arming)
            hand_on = partial(self._complete, draft)
            self.mixing.offer(MixtureStudy(record, draft.studies, arming, hand_on, self.parts.telemetry))
        else:
            self._complete(draft, record)
        if command.scope is Scope.CLUSTER:
            self.shadowing.offer(record, draft)
        else:
            offer(self.shadowing, NodeQuestion, question, record)

    def _complete(self, draft: Draft, record: DecisionRecord) -> None:
        """Logs the record, with its alternatives if they were drawn."""
        if draft.terms.is_studied and (studies := draft.studies):
            self.studying.offer(self._alternatives(record, studies))
        else:
            self.parts.sink.offer(record)

    def _alternatives(self, record: DecisionRecord, studies: Sequence[Study]) -> AlternativesStudy:
        policies = self.parts.registry.policies_of(record.cluster)
        return AlternativesStudy(record, studies, policies, self.parts.sink, self.parts.telemetry.alternatives_shed)


def _bundle_of(draft: Draft) -> Bundle | None:
    """The canary's bundle if it decided every job, else None for the incumbent's."""
    arming = draft.terms.arming
    return arming.canary.serving.bundle if arming is not None and arming.is_all_canary else None


def _reservations(draft: Draft) -> tuple[str, ...]:
    return tuple([job.reservation_id for job in draft.holds])


def _outcome(decisions: Sequence[JobDecision]) -> str:
    """One word for the metric: the best any job of the request got."""
    outcomes = {d.outcome for d in decisions}
    return next((o for o in (Outcome.PLACED, Outcome.WAIT, Outcome.NO_FIT) if o in outcomes), Outcome.NO_FIT)
