"""Decides one Place command on a view: gang by gang, each against the view with the earlier ones on it.

Synchronous: on a live view nothing else runs between the first look at it and the assumption of the result. Requests
that would take too long for that are decided in slices (sliced_drafting.py).
"""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from random import random, sample
from time import monotonic
from types import MappingProxyType

import structlog

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import RunningJob, RunState
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.errors import DeadlineExceededError
from placewise_core.domain.job import Job, JobId
from placewise_core.gang import neighbours, why
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.guard import verdict
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.inputs.cluster import Encoder
from placewise_core.policies import explore
from placewise_core.policies.studies.alternatives import Study
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.heads import barred
from placewise_core.view.standing import held, may_share, with_groups
from placewise_core.view.view import ClusterView
from placewise_log.record import FAILED, Choice, Draw
from placewise_service.engine.canary.arming import ArmingOn
from placewise_service.engine.ids import random_bits
from placewise_service.engine.place.draft import (
    DecidedJob,
    Draft,
    PlacedGang,
    Terms,
)
from placewise_service.engine.place.observing import choice_of
from placewise_service.engine.shadows import PolicySet
from placewise_service.engine.view_log.notes import Noted
from placewise_service.state.holdings import seen_nodes

log = structlog.get_logger(__name__)

MOST_STUDIED = 4  # jobs of one request that are studied after the answer, drawn from all
NONE_SETTLED: Mapping[JobId, JobDecision] = MappingProxyType({})


@frozen
class Placer:
    """The policies in force and their inputs. `observe_share` of the decisions of a cluster that does not
    explore are logged with their observation; of one that explores, all."""

    policies: Mapping[str, PlacementPolicy]
    explorers: ChainMap[str, PlacementPolicy]
    fallback: PlacementPolicy
    interference: InterferenceSource
    solo_speed: neighbours.SoloSpeed = neighbours.declared_speed
    profile_model: neighbours.ProfileModel = neighbours.no_profile
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
            profile_model=policies.profile_model,
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
        arming_on: ArmingOn | None = None,
        reads: tuple[Noted, ...] = (),
    ) -> Draft:
        """Decides every job of the command but those that the store knows better than the view: these are `settled`.
        If `is_shadowed`, the draft keeps copies of the inputs for a shadow. With `arming_on`, the arm of each job
        decides it in place of the policy.

        The draft's gangs are on the view, the last one once the caller has assumed them (LiveView.assume); a dry run
        leaves nothing.
        Raises DeadlineExceededError, with nothing left on the view, if the time is up before the last job's turn.
        """
        version = view.version
        if command.is_dry_run and any(job.id in view.jobs for job in command.jobs):
            # Asks "where would it go": as though it held nothing yet. The order of jobs on the view stays.
            view = view.fork()
            for job in command.jobs:
                view.remove_job(job.id)
        terms = self.terms(command, view, decision_id, context.interference, is_shadowed, arming_on)
        decided = self.decide_all(command, view, policy, context, terms, settled)
        if command.is_dry_run:
            decided[-1] = replace(decided[-1], answer=self.answer(decided[-1], terms, context.slices))
            _take_off(decided, view)
        return Draft(terms, version, view.epoch, context.now_s, tuple(decided), reads)

    def decide_all(
        self,
        command: PlaceCommand,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        terms: Terms,
        settled: Mapping[JobId, JobDecision],
    ) -> list[DecidedJob]:
        """Decides every job of the command. Each gang goes onto the view before the next job's turn, so the last one is
        not on it. With an error nothing is left there."""
        decided, holds = list[DecidedJob](), 0
        try:
            for job in policy.order(command.jobs, view, context):
                if decided:
                    decided[-1] = self.show(decided[-1], terms, context.slices)
                context.slices.pause()
                self.check_deadline(len(decided), command, context)
                found = standing(job, view, settled) or self.decide(job, view, policy, context, terms, holds)
                holds += found.placed is not None
                decided.append(found)
        except BaseException:
            _take_off(decided, view)
            raise
        return decided

    def terms(
        self,
        command: PlaceCommand,
        view: ClusterView,
        decision_id: str,
        interference: GpuInterference,
        is_shadowed: bool,
        arming_on: ArmingOn | None,
    ) -> Terms:
        """How jobs of the command are explored, by the explorers that the bundle in force allows. Draws whether the
        decision is logged as it was seen, and which of its jobs may be studied: before anything is decided."""
        exploration = explore.NONE if command.is_dry_run else explore.exploration_of(view.settings, self.explorers)
        drawn = 1.0 if command.is_dry_run else random()
        jobs = [job.id for job in command.jobs]
        return Terms(
            decision_id,
            exploration,
            interference,
            is_seeded=command.seed is not None,
            is_observed=exploration.rate > 0 or drawn < self.observe_share,
            is_studied=drawn < self.alternatives_share,
            is_shadowed=is_shadowed,
            sample=jobs if len(jobs) <= MOST_STUDIED else frozenset(sample(jobs, MOST_STUDIED)),
            arming=None if arming_on is None else arming_on(view),
        )

    def check_deadline(self, decided: int, command: PlaceCommand, context: PlaceContext) -> None:
        """Raises DeadlineExceededError between two jobs: nobody waits for the rest, and others do."""
        if decided and self.monotonic_s() >= context.deadline_s:
            raise DeadlineExceededError(f"the deadline passed after {decided} of {len(command.jobs)} jobs")

    def answers(self, draft: Draft, command: PlaceCommand) -> tuple[JobDecision, ...]:
        """The decisions in the order of the request. The view is as the draft left it, or with its last job."""
        found = {job.job_id: self.answer(job, draft.terms) for job in draft.decided}
        return tuple([found[job.id] for job in command.jobs])

    def decide(
        self,
        job: Job,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        terms: Terms,
        holds: int,
    ) -> DecidedJob:
        """Decides one job, after `holds` gangs of the request. Its speed is not predicted yet."""
        job = with_groups(job, view)
        exploration = terms.exploration
        if terms.arming is not None:
            side = terms.arming.take(job.id)
            policy, exploration, context.interference = side.policy, side.exploration, side.interference
        context.barred = barred(view, job, job.gpus, context.now_s) if view.heads else None
        takes_copy = _takes_copy(job.id, terms)
        is_studied = terms.is_studied and takes_copy
        context.is_recording = terms.is_observed or is_studied
        context.given = {} if is_studied else None
        seed = None
        if (exploration.rate > 0 or policy.is_drawing) and not terms.is_seeded:
            queue = view.settings.queues.get(job.queue)
            slot_s = queue.slot_s if queue is not None else self.slot_s
            seed = context.randomness = explore.seed_in_slot(view.cluster, job, context.now_s, slot_s)
        drawn = self._propose(job, view, policy, context, exploration, terms.decision_id)
        context.slices.pause()
        study = self._study(job, view, policy, context, exploration, drawn, seed) if takes_copy else None
        choice = self._observe(job, drawn, view, context, terms.decision_id) if terms.is_observed else None
        if drawn is None:
            spared = verdict(exploration.guard, job, view, context) if exploration.rate > 0 else ""
            outcome, blockers = why.explain(job, view, context)
            answer = JobDecision(job_id=job.id, outcome=outcome, blockers=blockers)
            return DecidedJob(job.id, answer, choice=choice, study=study, guard=spared)
        running = RunningJob(
            job,
            drawn.proposal.assignments,
            RunState.RESERVED,
            reservation_id=f"{terms.decision_id}.{holds}",
            decision_id=terms.decision_id,
        )
        return DecidedJob(
            job.id,
            placed=PlacedGang(running, drawn.proposal, view),
            draw=_draw_of(job.id, drawn, seed),
            choice=choice,
            study=study,
            nodes=seen_nodes(running, view) if job.exclusive_network else None,
            tenants=self._tenants(running, view, context) if view.usage.shared_gpus or may_share(job) else None,
        )

    def _tenants(self, running: RunningJob, view: ClusterView, context: PlaceContext) -> dict[str, tuple[JobId, ...]]:
        """Puts the gang onto the view, to see with whom it shares GPUs."""
        view.add_job(running)
        context.slices.pause()
        return _shared_tenants(running, view)

    def show(self, job: DecidedJob, terms: Terms, slices: Slices = ONE_SLICE) -> DecidedJob:
        """Puts the job's gang onto the view that it was decided on. Returns the job with its answer."""
        if job.placed is None:
            return job
        job.placed.view.add_job(job.placed.running)
        return replace(job, answer=self.answer(job, terms, slices))

    def answer(self, job: DecidedJob, terms: Terms, slices: Slices = ONE_SLICE) -> JobDecision:
        """The job's answer. Predicts the speed of its gang, and nothing else may have come onto its view by then."""
        if job.answer is not None:
            return job.answer
        assert job.placed is not None
        running, proposal, view = job.placed.running, job.placed.proposal, job.placed.view
        prediction = neighbours.predict(
            running.job, proposal.assignments, view, terms.interference, self.solo_speed, slices
        )
        return JobDecision(
            job_id=running.job.id,
            outcome=Outcome.PLACED,
            assignments=proposal.assignments,
            predicted_speed=prediction.speed,
            neighbours=prediction.neighbours,
            candidates=proposal.candidates,
            reservation_id=running.reservation_id,
            propensity=proposal.propensity,
            profile_model=self.profile_model(running.job, proposal.assignments, view),
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
        self, job: Job, drawn: explore.Drawn | None, view: ClusterView, context: PlaceContext, decision_id: str
    ) -> Choice | None:
        """The log must never fail a decision: a choice that cannot be encoded is missing from its record."""
        try:
            proposal = None if drawn is None else drawn.proposal
            return choice_of(job, proposal, view, context.now_s, self.encoder)
        except Exception:
            log.exception("a choice is missing from the log", decision_id=decision_id, job=job.id)
            return None

    def _propose(
        self,
        job: Job,
        view: ClusterView,
        policy: PlacementPolicy,
        context: PlaceContext,
        exploration: explore.Exploration,
        decision_id: str,
    ) -> explore.Drawn | None:
        """Never fails the call for a policy's error: the heuristic answers, flagged."""
        try:
            return explore.propose(policy, exploration, job, view, context)
        except Exception as error:
            failed = {"decision_id": decision_id, "policy": policy.name, "job": job.id}
            log.exception("policy failed; the fallback answers", **failed)
            proposal = self.fallback.propose(job, view, context)
            if proposal is None:
                return None
            reason = f"{policy.name}: {type(error).__name__}"
            found = replace(proposal, is_fallback=True, fallback_reason=reason)
            guard = FAILED if exploration.rate > 0 else ""  # an explorer may have failed: then P(a) is unknown
            return explore.Drawn(found, proposal.propensity, guard=guard)


def _takes_copy(job: JobId, terms: Terms) -> bool:
    """Whether the inputs of the job are copied, for its alternatives, its shadow or its other arm."""
    is_mixed = terms.arming is not None and not terms.arming.is_tried
    return (terms.is_studied or terms.is_shadowed or is_mixed) and job in terms.sample


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


def standing(job: Job, view: ClusterView, settled: Mapping[JobId, JobDecision]) -> DecidedJob | None:
    """The job with its present answer: the store's record, or its placement on the view. None if it has none."""
    answer = settled.get(job.id)
    if answer is None and (known := view.jobs.get(job.id)) is not None:
        answer = held(known)
    return None if answer is None else DecidedJob(job.id, answer, is_standing=True)


def _take_off(decided: Sequence[DecidedJob], view: ClusterView) -> None:
    for job in reversed(decided):
        if job.placed is not None:
            view.remove_job(job.job_id)


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
