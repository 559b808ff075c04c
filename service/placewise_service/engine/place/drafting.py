"""Decides one Place command on a view: gang by gang, each against the view with the earlier ones on it.

Synchronous: on a live view nothing else runs between the first look at it and the assumption of the result. Requests
that would take too long for that are decided in slices (sliced_drafting.py).
"""

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import random, sample
from time import monotonic
from types import MappingProxyType

import structlog

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.errors import DeadlineExceededError
from placewise_core.domain.job import Job, JobId
from placewise_core.gang import neighbours, why
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.guard import verdict
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.cluster import Encoder
from placewise_core.policies import explore
from placewise_core.policies.studies.alternatives import Study
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.speed.interference import GpuInterference, NoInterference
from placewise_core.view.heads import barred
from placewise_core.view.standing import held, may_share, with_groups
from placewise_core.view.view import ClusterView
from placewise_log.record import FAILED, Choice, Draw
from placewise_service.engine.canary.arming import Arming
from placewise_service.engine.ids import random_bits
from placewise_service.engine.place.observing import choice_of
from placewise_service.engine.shadows import PolicySet
from placewise_service.engine.view_log.notes import Noted
from placewise_service.state.holdings import SeenNode, seen_nodes

log = structlog.get_logger(__name__)

MOST_STUDIED = 4  # jobs of one request that are studied after the answer, drawn from all
NONE_SETTLED: Mapping[JobId, JobDecision] = MappingProxyType({})


@dataclass(slots=True)
class Draft:
    """A decision before the store has agreed: the answers, and the jobs to reserve.

    `last` is the job decided last, if it was placed, and the view it was decided on. Its answer is completed before the
    next job is decided, or while the store works. In the first case it goes onto the view; in the second it is assumed
    (LiveView.assume).
    """

    decision_id: str
    version: int = 0
    epoch: str = ""
    now_s: float = 0.0
    answers: dict[JobId, JobDecision] = field(default_factory=dict)
    last: tuple[RunningJob, Proposal, ClusterView] | None = None
    interference: GpuInterference = field(default_factory=NoInterference)
    holds: list[RunningJob] = field(default_factory=list)
    expected_tenants: dict[str, tuple[JobId, ...]] = field(default_factory=dict)
    expected_nodes: dict[str, SeenNode] = field(default_factory=dict)
    propensity: float = 1.0
    is_explored: bool = False
    is_observed: bool = False
    is_seeded: bool = False  # by the caller
    fallback_reason: str = ""
    choices: list[Choice] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    open_units: tuple[str, ...] | None = None
    is_studied: bool = False
    is_shadowed: bool = False
    studies: list[Study] = field(default_factory=list)
    decided: int = 0  # jobs, without those that were answered before
    held_before: int = 0  # gangs that an earlier part of the draft holds
    sample: Collection[JobId] = ()  # jobs that may be studied after the answer
    reads: list[Noted] = field(default_factory=list)
    settled: tuple[str, ...] = ()
    conflicts: tuple[tuple[str, str], ...] = ()  # node and reason of earlier attempts
    guards: dict[str, str] = field(default_factory=dict)  # verdicts for jobs that found no place
    arming: Arming | None = None  # of a cluster with a canary

    def takes_copy(self, job: JobId) -> bool:
        """Whether the inputs of the job are copied, for its alternatives, its shadow or its other arm."""
        is_mixed = self.arming is not None and not self.arming.is_tried
        return (self.is_studied or self.is_shadowed or is_mixed) and job in self.sample

    def take_over(self, part: "Draft") -> None:
        """Adds decisions that were made apart."""
        self.answers.update(part.answers)
        self.holds += part.holds
        self.expected_tenants.update(part.expected_tenants)
        self.expected_nodes.update(part.expected_nodes)
        self.propensity *= part.propensity
        self.is_explored |= part.is_explored
        self.fallback_reason = self.fallback_reason or part.fallback_reason
        self.choices += part.choices
        self.studies += part.studies
        self.decided += part.decided
        self.draws += part.draws
        self.guards.update(part.guards)
        self.reads += part.reads


@frozen
class Placer:
    """The policies in force and their inputs. `observe_share` of the decisions of a cluster that does not
    explore are logged with their observation; of one that explores, all."""

    policies: Mapping[str, PlacementPolicy]
    explorers: ChainMap[str, PlacementPolicy]
    fallback: PlacementPolicy
    interference: InterferenceSource
    solo_speed: neighbours.SoloSpeed = neighbours.declared_speed
    encoder: Encoder = field(default_factory=Encoder)
    observe_share: float = 0.0
    alternatives_share: float = 0.0
    slot_s: float = 10.0  # of queues without settings of their own
    monotonic_s: Callable[[], float] = monotonic

    def of(self, policies: PolicySet) -> "Placer":
        """The same with the policies of another bundle. Bundles that explore stay those that they are."""
        return replace(
            self,
            policies=policies.placement,
            explorers=ChainMap(dict(policies.explorers), *self.explorers.maps[1:]),
            fallback=policies.placement[self.fallback.name],
            interference=policies.interference,
            solo_speed=policies.solo_speed,
        )

    def draft(
        self,
        command: PlaceCommand,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        decision_id: str,
        settled: Mapping[JobId, JobDecision] = NONE_SETTLED,
        is_shadowed: bool = False,
        arming: Arming | None = None,
    ) -> Draft:
        """Decides every job of the command but those that the store knows better than the view: these are `settled`.
        If `is_shadowed`, the draft keeps copies of the inputs for a shadow. With `arming`, the arm of each job decides
        it in place of the policy.

        The draft's gangs are on the view, the last one once the caller has assumed them (LiveView.assume); a dry run
        leaves nothing.
        Raises DeadlineExceededError, with nothing left on the view, if the time is up before the last job's turn.
        """
        draft = Draft(decision_id, view.version, view.epoch, context.now_s, interference=context.interference)
        draft.is_shadowed, draft.arming = is_shadowed, arming
        if command.is_dry_run and any(job.id in view.jobs for job in command.jobs):
            # Asks "where would it go": as though it held nothing yet. The order of jobs on the view stays.
            view = view.fork()
            for job in command.jobs:
                view.remove_job(job.id)
        is_done = False
        try:
            self.decide_all(command, view, policy, context, draft, settled)
            if command.is_dry_run:
                self.complete(draft, context.slices)
            is_done = True
        finally:
            if command.is_dry_run or not is_done:
                for held_job in reversed(draft.holds):
                    view.remove_job(held_job.id)
        return draft

    def decide_all(
        self,
        command: PlaceCommand,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        draft: Draft,
        settled: Mapping[JobId, JobDecision],
    ) -> None:
        """Decides every job of the command; the gangs that found their places are on the view, `draft.last` aside."""
        exploration = self.exploration(command, view, draft)
        answers = draft.answers
        for job in policy.order(command.jobs, view, context):
            self.show(draft, context.slices)
            context.slices.pause()
            self.check_deadline(draft, command, context)
            if (answer := answered(job, view, settled)) is not None:
                answers[job.id] = answer
            else:
                self.decide(job, view, policy, context, exploration, draft)

    def exploration(self, command: PlaceCommand, view: ClusterView, draft: Draft) -> explore.Exploration:
        """How jobs of the command are explored, by the explorers that the bundle in force allows. Draws whether the
        draft is logged as it was seen, and which of its jobs may be studied: before anything is decided."""
        draft.is_seeded = command.seed is not None
        found = explore.NONE if command.is_dry_run else explore.exploration_of(view.settings, self.explorers)
        drawn = 1.0 if command.is_dry_run else random()
        draft.is_observed = found.rate > 0 or drawn < self.observe_share
        draft.is_studied = drawn < self.alternatives_share
        jobs = [job.id for job in command.jobs]
        draft.sample = jobs if len(jobs) <= MOST_STUDIED else frozenset(sample(jobs, MOST_STUDIED))
        return found

    def check_deadline(self, draft: Draft, command: PlaceCommand, context: PlaceContext) -> None:
        """Raises DeadlineExceededError between two jobs: nobody waits for the rest, and others do."""
        if draft.answers and self.monotonic_s() >= context.deadline_s:
            decided = f"{len(draft.answers)} of {len(command.jobs)} jobs"
            raise DeadlineExceededError(f"the deadline passed after {decided}")

    def answers(self, draft: Draft, command: PlaceCommand) -> tuple[JobDecision, ...]:
        """The decisions in the order of the request. The view is as the draft left it, or with its last job."""
        self.complete(draft)
        return tuple([draft.answers[job.id] for job in command.jobs])

    def decide(
        self,
        job: Job,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        exploration: explore.Exploration,
        draft: Draft,
    ) -> None:
        """Decides one job; a gang that found its place is in the draft's holds and its `last`."""
        job = with_groups(job, view)
        if draft.arming is not None:
            side = draft.arming.take(job.id)
            policy, exploration, context.interference = side.policy, side.exploration, side.interference
        context.barred = barred(view, job, job.gpus, context.now_s) if view.heads else None
        context.is_recording = draft.is_studied and draft.takes_copy(job.id)
        context.given = {} if context.is_recording else None
        seed = None
        if (exploration.rate > 0 or policy.is_drawing) and not draft.is_seeded:
            queue = view.settings.queues.get(job.queue)
            slot_s = queue.slot_s if queue is not None else self.slot_s
            seed = context.randomness = explore.seed_in_slot(view.cluster, job, context.now_s, slot_s)
        drawn = self._propose(job, view, policy, context, exploration, draft)
        context.slices.pause()
        draft.decided += 1
        if draft.takes_copy(job.id):
            draft.studies.append(self._study(job, view, policy, context, exploration, drawn, seed))
        if drawn is None:
            if draft.is_observed:
                self._observe(job, (), view, context, draft)
            if exploration.rate > 0 and (spared := verdict(exploration.guard, job, view, context)):
                draft.guards[job.id] = spared
            outcome, blockers = why.explain(job, view, context)
            draft.answers[job.id] = JobDecision(job_id=job.id, outcome=outcome, blockers=blockers)
            return
        proposal = drawn.proposal
        if draft.is_observed:
            self._observe(job, proposal.assignments, view, context, draft)
        draft.propensity *= proposal.propensity
        draft.is_explored |= bool(drawn.explorer)
        draft.draws.append(_draw_of(job.id, drawn, seed))
        draft.fallback_reason = draft.fallback_reason or proposal.fallback_reason
        running = RunningJob(
            job,
            proposal.assignments,
            RunState.RESERVED,
            reservation_id=f"{draft.decision_id}.{draft.held_before + len(draft.holds)}",
            decision_id=draft.decision_id,
        )
        draft.holds.append(running)
        if job.exclusive_network:
            draft.expected_nodes.update(seen_nodes(running, view))
        draft.last = (running, proposal, view)
        if view.usage.shared_gpus or may_share(job):
            view.add_job(running)
            context.slices.pause()
            draft.expected_tenants.update(_shared_tenants(running, view))

    def show(self, draft: Draft, slices: Slices = ONE_SLICE) -> None:
        """Puts the job decided last onto the view and completes its answer."""
        if draft.last is not None:
            running, _, view = draft.last
            view.add_job(running)
            self.complete(draft, slices)

    def complete(self, draft: Draft, slices: Slices = ONE_SLICE) -> None:
        """Completes the answer of the job decided last, before anything else is put onto the view."""
        if draft.last is None:
            return
        (running, proposal, view), draft.last = draft.last, None
        prediction = neighbours.predict(
            running.job, proposal.assignments, view, draft.interference, self.solo_speed, slices
        )
        draft.answers[running.job.id] = JobDecision(
            job_id=running.job.id,
            outcome=Outcome.PLACED,
            assignments=proposal.assignments,
            predicted_speed=prediction.speed,
            neighbours=prediction.neighbours,
            candidates=proposal.candidates,
            reservation_id=running.reservation_id,
            propensity=proposal.propensity,
        )

    def _study(
        self,
        job: Job,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        exploration: explore.Exploration,
        drawn: explore.Drawn | None,
        seed: int | None,
    ) -> Study:
        """Copies the inputs of a decision: its alternatives and its shadow's are worked out after the answer."""
        barred = None if context.barred is None else context.barred.copy()
        given = (exploration, drawn, context.now_s, seed or 0, context.interference, barred, context.given or {})
        return Study(job, view.fork(), policy, *given)

    def _observe(
        self, job: Job, tasks: Sequence[Assignment], view: ClusterView, context: PlaceContext, draft: Draft
    ) -> None:
        """The log must never fail a decision: a choice that cannot be encoded is missing from its record."""
        try:
            draft.choices.append(choice_of(job, tasks, view, context.now_s, self.encoder))
        except Exception:
            log.exception("a choice is missing from the log", decision_id=draft.decision_id, job=job.id)

    def _propose(
        self,
        job: Job,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        exploration: explore.Exploration,
        draft: Draft,
    ) -> explore.Drawn | None:
        """Never fails the call for a policy's error: the heuristic answers, flagged."""
        try:
            return explore.propose(policy, exploration, job, view, context)
        except Exception as error:
            failed = {"decision_id": draft.decision_id, "policy": policy.name, "job": job.id}
            log.exception("policy failed; the fallback answers", **failed)
            proposal = self.fallback.propose(job, view, context)
            if proposal is None:
                return None
            reason = f"{policy.name}: {type(error).__name__}"
            found = replace(proposal, is_fallback=True, fallback_reason=reason)
            guard = FAILED if exploration.rate > 0 else ""  # an explorer may have failed: then P(a) is unknown
            return explore.Drawn(found, proposal.propensity, guard=guard)


def _draw_of(job_id: JobId, drawn: explore.Drawn, seed: int | None) -> Draw:
    proposal = drawn.proposal
    return Draw(
        job_id,
        drawn.own_propensity,
        drawn.explorer,
        drawn.rate,
        drawn.guard,
        proposal.fallback_reason,
        proposal.info,
        seed,
        drawn.stops,
    )


def answered(job: Job, view: ClusterView, settled: Mapping[JobId, JobDecision]) -> JobDecision | None:
    """The job's present answer: the store's record, or its placement on the view."""
    if (answer := settled.get(job.id)) is not None:
        return answer
    known = view.jobs.get(job.id)
    return held(known) if known is not None else None


def _shared_tenants(running: RunningJob, view: ClusterView) -> dict[str, tuple[JobId, ...]]:
    """The tenants of each GPU that the job shares: the slowdown prediction depends on them."""
    shared: dict[str, tuple[JobId, ...]] = {}
    for assignment in running.assignments:
        m = view.nodes.index[assignment.node]
        for g in assignment.gpu_indices:
            tenants = view.usage.tenants(m, g)
            if len(tenants) > 1:
                shared[f"{assignment.node}/{g}"] = tuple(sorted(t.job_id for t in tenants if t.job_id != running.id))
    return shared


def seed_of(seed: int | None) -> int:
    """The request's seed, or a new one; the log keeps it, so that the decision can be repeated."""
    return random_bits(53) if seed is None else seed  # 53 bits: an integer that JSON keeps
