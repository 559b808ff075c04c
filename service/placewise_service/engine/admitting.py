"""When: view → policy → commit of the queue → log. Q and Z move once per slot, however many callers ask."""

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from placewise_core.admit import slot_exploring
from placewise_core.admit.facts import FactsCache
from placewise_core.admit.policies.lyapunov import numbered, renumbered, with_shapes
from placewise_core.admit.policy import NOT_EXPLORED, AdmissionPolicy, AdmitContext, exploration_of, slot_of
from placewise_core.admit.seen import ShapeNotes
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import AdmitDecision, AdmitPlan, DecisionMeta, LearnedSpeed, Verdict
from placewise_core.domain.errors import PlacewiseError, StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_core.domain.job import Job
from placewise_core.view.lengths import with_lengths
from placewise_core.view.speeds import of_admitted
from placewise_core.view.view import ClusterView
from placewise_log.record import AdmitSeen, DecisionRecord
from placewise_service.declog.refusals import Refusals
from placewise_service.engine.canary.calls import CallArm, CallMixture, arm_of_slot
from placewise_service.engine.canary.watching import Watching
from placewise_service.engine.growth import check_queue
from placewise_service.engine.parts import EngineParts, check_policy_exists, decode_repeat
from placewise_service.engine.pending import Pending
from placewise_service.engine.place.drafting import seed_of
from placewise_service.engine.place.shadowing import Shadowing
from placewise_service.engine.place.studying import Studying
from placewise_service.engine.shadowing.questions import AdmitQuestion
from placewise_service.engine.shadowing.studies import offer
from placewise_service.engine.slicing import Slicing
from placewise_service.engine.view_log.notes import Noted
from placewise_service.engine.views import LiveView
from placewise_service.fail_together import FailTogether

_ATTEMPTS = 8  # replicas that decide on one queue at once take turns
# Jobs times nodes, and so many for each job, that are decided in one go: some ten milliseconds.
_MOST_IN_ONE_GO, _BESIDE_NODES = 100_000, 1000


@frozen
class AdmitDraft:
    """An admission before the store has agreed, and the queue it was decided on."""

    decision: AdmitDecision
    before: QueueState
    now_s: float
    seed: int
    epoch: str
    free: tuple[int, int]  # GPUs, and nodes with any
    noted: ShapeNotes
    settings: QueueSettings
    is_logged: bool
    reads: tuple[Noted, ...]
    question: AdmitQuestion | None = None
    arm: CallArm | None = None
    is_drawn: bool = False

    @property
    def is_settled(self) -> bool:
        """True if the queue did not change: there is nothing to commit."""
        return self.decision.plan.queue is self.before


class _Turns(FailTogether):
    """Who decides on one queue, and how many do or want to."""

    users = 0


@frozen
class _AdmitCall:
    """One call: its command, view and policy, its start and its deadline."""

    command: AdmitCommand
    live: LiveView
    policy: AdmissionPolicy
    started_s: float
    deadline_s: float


@frozen
class Admitting:
    """Answers AdmitOrWait."""

    parts: EngineParts
    slicing: Slicing
    shadowing: Shadowing
    mixing: Studying
    watching: Watching
    turns: dict[tuple[str, str], _Turns] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    facts: FactsCache = field(default_factory=FactsCache)

    async def admit_or_wait(self, command: AdmitCommand, deadline_s: float) -> Pending[AdmitDecision]:
        started_s = self.parts.begin(deadline_s)
        live = await self.parts.views.get(command.cluster)
        await self.parts.hear_time(live, command.now_s, command.is_dry_run)
        if command.request_id and not command.is_dry_run:  # first: neither a repeat nor a mistake moves the queue
            first = await self.parts.store.recall(command.cluster, command.request_id, command.fingerprint)
            if first is not None:
                return Pending(await decode_repeat(first, AdmitDecision, command.request_id))
        if live.view.settings.learn_durations:
            jobs, lengths = with_lengths(command.jobs, live.view)
            command = replace(command, jobs=jobs, lengths=lengths)
        asked = _AdmitCall(command, live, self._policy(command, live.view), started_s, deadline_s)
        draft = None
        key = (command.cluster, command.queue)
        if command.is_dry_run or key not in self.turns:
            draft = await self._draft(asked)
            if command.is_dry_run or draft.is_settled:  # policies that keep no queue need no turn
                return Pending(await self._answer(asked, draft))
        await self._begin_turn(key)
        try:
            draft = draft or await self._draft(asked)
            result = self._commit(asked, draft)
        except BaseException:
            self._end_turn(key)
            raise
        return Pending(draft.decision, self._settle(asked, key, draft, result))

    def queue_settings(self, cluster: str, queue: str) -> QueueSettings:
        """The cluster's parameters of a queue, or the service's."""
        live = self.parts.views.find(cluster)
        own = live.view.settings.queues.get(queue) if live is not None else None
        return own or self.parts.options.queue

    async def renumber(self, cluster: str, name: str) -> None:
        """Restarts the slots of a queue whose slot length changed: slot numbers of two lengths cannot be compared."""
        live = await self.parts.views.get(cluster)
        for _ in range(_ATTEMPTS):
            queue = live.view.queues.get(name)
            if queue is None:
                return
            state = renumbered(queue, self.parts.now_s(live), self.queue_settings(cluster, name))
            state = replace(state, seq=queue.seq + 1)
            if await self._is_committed(live, self.parts.store.commit_queue(live.cluster, state, queue.seq)):
                return
            await self.parts.catch_up(live)
        raise StaleSnapshotError("the queue changed while its slots were renumbered", {"queue": name})

    def _policy(self, command: AdmitCommand, view: ClusterView) -> AdmissionPolicy:
        name = command.policy or view.settings.admit_policy or self.parts.options.admit_policy
        policies = self.parts.registry.policies_of(command.cluster).admission
        check_policy_exists(name, policies, "policy")
        return policies[name]

    async def _begin_turn(self, key: tuple[str, str]) -> None:
        """One call at a time per queue on this replica: it would only refuse itself the second commit."""
        turns = self.turns.get(key)
        if turns is None:
            turns = self.turns[key] = _Turns()
        turns.users += 1
        try:
            await turns.acquire()
        except BaseException:
            self._leave(key)
            raise

    def _end_turn(self, key: tuple[str, str]) -> None:
        self.turns[key].release()
        self._leave(key)

    def _leave(self, key: tuple[str, str]) -> None:
        turns = self.turns[key]
        turns.users -= 1
        if not turns.users:
            del self.turns[key]

    def _commit(self, asked: _AdmitCall, draft: AdmitDraft) -> Awaitable[Event | None] | None:
        """The store's word on the draft, which is on its way; None if there is nothing to commit."""
        if draft.is_settled:
            return None
        queue = draft.decision.plan.queue
        check_queue(queue, asked.live.view, self.parts.options.most_queues)
        return self.parts.store.commit_queue(asked.live.cluster, queue, draft.before.seq)

    async def _settle(
        self, asked: _AdmitCall, turn: tuple[str, str], draft: AdmitDraft, result: Awaitable[Event | None] | None
    ) -> AdmitDecision:
        """The answer, once the store has agreed to the draft or to one of those that follow it. Ends the turn."""
        command, live, left = asked.command, asked.live, _ATTEMPTS
        try:
            while result is not None and not await self._is_committed(live, result):
                self.parts.telemetry.conflict(command.cluster)
                await self.parts.catch_up(live, asked.deadline_s)
                left -= 1
                if not left:
                    raise StaleSnapshotError(
                        "the queue changed during each attempt: try again", {"queue": command.queue}
                    )
                draft = await self._draft(asked)
                result = self._commit(asked, draft)
        except StateUnavailableError as error:
            self.turns[turn].fail(error)
            raise
        finally:
            self._end_turn(turn)
        return await self._answer(asked, draft)

    async def _is_committed(self, live: LiveView, result: Awaitable[Event | None]) -> bool:
        event = await result
        if event is None:
            return False
        live.show_soon(event)
        asyncio.get_running_loop().call_soon(self.parts.prepare, live)
        return True

    async def _answer(self, asked: _AdmitCall, draft: AdmitDraft) -> AdmitDecision:
        command, decision = asked.command, draft.decision
        left_out = 0
        if draft.is_logged:
            left_out = self.refusals.take_up(command, decision.plan, decision.meta)
        else:
            self.refusals.leave_out(command)
        self.parts.afterwards(self._log, command, draft, self.parts.elapsed_ms(asked.started_s), left_out)
        if not command.request_id or command.is_dry_run:
            return decision
        return await self.parts.remembered(
            command.cluster, command.request_id, command.is_dry_run, decision, command.fingerprint
        )

    async def _draft(self, asked: _AdmitCall) -> AdmitDraft:
        command, live, seen = asked.command, asked.live, asked.live.view
        live.asked_last = next(iter(command.jobs), None)
        queue = seen.queues.get(command.queue) or QueueState(command.queue)
        settings = seen.settings.queues.get(command.queue) or self.parts.options.queue
        seed = seed_of(command.seed)
        now_s = self.parts.now_s(live, command.now_s)
        slot, noted = slot_of(queue, now_s, settings), ShapeNotes()
        context = AdmitContext(
            now_s,
            slot,
            settings,
            seed,
            command.is_explaining,
            exploration=NOT_EXPLORED if command.is_dry_run else exploration_of(seen.settings, command.seed),
            noted=noted,
        )
        arm = arm_of_slot(self.parts.registry, command.cluster, command.queue, slot, now_s)
        is_mixed = arm is not None and not command.is_dry_run and self.mixing.has_room
        question = None
        if is_mixed or self.shadowing.wants_copy(command.cluster, command.is_dry_run):
            unexplored = replace(context, exploration=NOT_EXPLORED, noted=None)
            question = AdmitQuestion(command, seen.fork(), queue, unexplored)
        reads = self.parts.read(live, now_s)
        try:
            policy = asked.policy if arm is None else arm.policies.admission[asked.policy.name]
            admitted, view = await self._admitted(asked, policy, queue, context)
        except PlacewiseError:
            raise
        except Exception as error:
            if arm is None:
                raise
            arm, policy = arm.failed(asked.policy.name, error), asked.policy
            noted = ShapeNotes()
            context = replace(context, randomness=seed, noted=noted)
            admitted, view = await self._admitted(asked, policy, queue, context)
        is_drawn = context.exploration.rate > 0 or not isinstance(context.randomness, int)
        plan = with_shapes(admitted, command.jobs, slot)
        meta = self._meta(asked, arm, policy.name, plan, view)
        if plan.queue is not queue:
            decisions = _admitted_by(plan.queue, queue, meta.decision_id)
            plan = AdmitPlan(plan.admissions, numbered(plan.queue, queue.seq + 1, decisions))
        if first := self.refusals.first(command, plan, meta):  # the log has that one
            meta = replace(meta, decision_id=first)
        decision = AdmitDecision(plan, meta)
        given = (queue, now_s, seed, view.epoch, _free(view, now_s), noted, settings, not first, reads)
        return AdmitDraft(decision, *given, question, arm, is_drawn)

    def _meta(
        self, asked: _AdmitCall, arm: CallArm | None, policy: str, plan: AdmitPlan, view: ClusterView
    ) -> DecisionMeta:
        """The answer's facts. Its learned speeds are those that the arm's own policies read."""
        command, draws = asked.command, [given.draw for given in plan.admissions if given.draw is not None]
        speeds: tuple[LearnedSpeed, ...] = ()
        if view.settings.learn_throughput:
            read = self.parts.registry.policies_of(command.cluster) if arm is None else arm.policies
            gpu_type = self.facts.of(view).gpu_model
            speeds = of_admitted(command.jobs, plan.admissions, gpu_type, view, read.learned_speed)
        return self.parts.meta(
            policy,
            asked.live,
            view.version,
            self.parts.elapsed_ms(asked.started_s),
            propensity=math.prod([draw.propensity for draw in draws], start=1.0),
            is_explored=any(draw.explorer for draw in draws),
            fallback_reason="" if arm is None else arm.error,
            caller=command.caller,
            bundle=None if arm is None else arm.bundle,
            lengths=command.lengths,
            speeds=speeds,
        )

    async def _admitted(
        self, asked: _AdmitCall, policy: AdmissionPolicy, queue: QueueState, context: AdmitContext
    ) -> tuple[AdmitPlan, ClusterView]:
        """The plan, and the view that it is of."""
        view, jobs = asked.live.view, asked.command.jobs
        if len(jobs) * (view.nodes.size + _BESIDE_NODES) <= _MOST_IN_ONE_GO:
            return slot_exploring.admit(policy, jobs, view, queue, context), view
        view = view.fork()
        ask = partial(_in_slices, policy, jobs, view, queue, context)
        return await self.slicing.run(ask, asked.deadline_s), view

    def _log(self, command: AdmitCommand, draft: AdmitDraft, latency_ms: float, left_out: int) -> None:
        decision, before = draft.decision, draft.before
        has_asked = self.parts.asked.has_asked
        repeats = [
            job.id
            for job in command.jobs
            if job.id in before.waiting or job.id in before.admitted or has_asked(command.cluster, job.id)
        ]
        seen = replace(
            _seen(draft),
            repeats=tuple(repeats),
            left_out=left_out,
            settings=draft.settings,
            is_seeded=command.seed is not None,
        )
        record = DecisionRecord.of_admit(
            command,
            decision,
            time_s=draft.now_s,
            seed=draft.seed,
            latency_ms=latency_ms,
            seen=seen,
            epoch=draft.epoch,
            reads=tuple([noted.read() for noted in draft.reads]),
        )
        if not command.is_dry_run:
            self.parts.asked.admit(command.cluster, decision)
        if draft.arm is not None and draft.is_logged and not command.is_dry_run:
            self.parts.count(record, _outcome(decision))
            self.watching.count_call(record, draft.arm)
            hand_on, telemetry = self.parts.sink.offer, self.parts.telemetry
            is_drawn = draft.is_drawn
            self.mixing.offer(CallMixture(record, draft.arm, draft.question, hand_on, telemetry, is_drawn=is_drawn))
        else:
            (self.parts.log if draft.is_logged else self.parts.count)(record, _outcome(decision))
        if draft.is_logged:
            offer(self.shadowing, AdmitQuestion, draft.question, record)


def _in_slices(
    policy: AdmissionPolicy,
    jobs: Sequence[Job],
    view: ClusterView,
    queue: QueueState,
    context: AdmitContext,
    slices: Slices,
) -> AdmitPlan:
    context.slices = slices
    return slot_exploring.admit(policy, jobs, view, queue, context)


def _admitted_by(after: QueueState, before: QueueState, decision_id: str) -> Mapping[str, str]:
    """The decision behind each answer that the queue keeps: this one for those that it changed."""
    known, kept, new = before.decisions, before.admitted, {}
    for job, answer in after.admitted.items():
        if kept.get(job) != answer:
            new[job] = decision_id
        elif job in known:
            new[job] = known[job]
    return new


def _free(view: ClusterView, now_s: float) -> tuple[int, int]:
    """Idle GPUs, and the nodes with any."""
    free = view.usage.free_gpus[view.usable(now_s)]
    return int(free.sum()), int((free > 0).sum())


def _seen(draft: AdmitDraft) -> AdmitSeen:
    """The state behind the decision. Of an unchanged refusal, which the log leaves out, without the shapes."""
    if not draft.is_logged:
        return AdmitSeen((), *draft.free)
    known = draft.noted.work_out()
    return AdmitSeen((), *draft.free, known.scores, tables=known.tables, jobs=known.jobs)


def _outcome(decision: AdmitDecision) -> str:
    is_admitting = any(a.verdict is Verdict.ADMIT for a in decision.plan.admissions)
    return Verdict.ADMIT if is_admitting else Verdict.WAIT
