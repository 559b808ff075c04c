"""Repeats logged Place decisions: the views as they were, the logged seeds, and a policy give the logged placements.

Another policy may be asked instead: this shows its placements. Nothing here reads a file.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, QueueSettings, RunningJob, RunState
from placewise_core.domain.commands import Scope
from placewise_core.domain.decision import Blocker, Outcome
from placewise_core.domain.job import Job, JobId
from placewise_core.gang import why
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies import explore
from placewise_core.policies.trial.arms import Arm, Side
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.view.heads import barred
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, Draw


@frozen
class Policies:
    """The policies of one bundle: those that can be in force and those that explore, by name; the slowdown of jobs on
    one GPU; the policy that answers when another raises an error."""

    in_force: Mapping[str, PlacementPolicy]
    explorers: Mapping[str, PlacementPolicy]
    interference: InterferenceSource
    fallback: PlacementPolicy


@frozen
class Repeat:
    """One job of a repeated decision. `tasks` is None if it found no place; `blockers` say why then."""

    job_id: str
    tasks: tuple[Assignment, ...] | None
    propensity: float | None
    outcome: Outcome = Outcome.PLACED
    blockers: tuple[Blocker, ...] = ()


def jobs_decided(record: DecisionRecord, view: ClusterView) -> list[Job]:
    """The jobs that the decision chose places for: not those that the store settled or that the view has already."""
    settled = record.asked.settled if record.asked is not None else ()
    return [job for job in record.jobs if job.id not in settled and job.id not in view.jobs]


def before(record: DecisionRecord, view: ClusterView, job_id: str) -> ClusterView:
    """The view as the job found it: with the earlier jobs of its request on it, which it changes in place.

    Raises ValueError for a job that the decision placed nowhere."""
    given = {decided.job_id: decided for decided in record.place.decisions} if record.place is not None else {}
    by_id = {job.id: job for job in record.jobs}
    for draw in record.draws:
        if draw.job_id == job_id:
            return view
        answer = given[JobId(draw.job_id)]
        held = with_groups(by_id[answer.job_id], view)
        view.add_job(RunningJob(held, answer.assignments, RunState.RESERVED, answer.reservation_id))
    raise ValueError(f"decision {record.decision_id} placed no job {job_id!r}")


def decide_again(
    record: DecisionRecord, views: Iterable[ClusterView], bundles: Mapping[str, Policies], policy: str = ""
) -> list[Repeat]:
    """Decides the jobs of a Place decision again, on the views that it read, in their order; they are changed. There is
    one, or, if the request was decided in slices, the one that it began with and one for each job. `bundles`: by name,
    those that decided. `policy`: another than the logged one.

    Raises ValueError for other records, and if a bundle is missing.
    """
    if record.place is None or record.scope == Scope.NODE or not record.reads:
        raise _not_repeated(record, "it is no Place on a known view")
    heuristic = (record.asked is not None and record.asked.heuristic) or ""
    if not heuristic and any(draw.fallback_reason.endswith(": kill switch") for draw in record.draws):
        raise _not_repeated(record, "an older version logged no heuristic of its kill switch")
    deciding = {arm: _policies_of(arm, record, bundles) for arm in {*_arms_of(record).values()} or {Arm.INCUMBENT}}
    return list(_Repeating(record, deciding, policy or heuristic or record.meta.policy).run(iter(views)))


def _not_repeated(record: DecisionRecord, why: str) -> ValueError:
    return ValueError(f"decision {record.decision_id} cannot be repeated: {why}")


def _arms_of(record: DecisionRecord) -> dict[str, Arm]:
    """By job, as they were decided. Empty without a canary."""
    return {each.job_id: Arm(each.arm) for each in record.canary.arms} if record.canary is not None else {}


def _policies_of(arm: Arm, record: DecisionRecord, bundles: Mapping[str, Policies]) -> Policies:
    canary = record.canary
    bundle = canary.bundle if canary is not None and arm is Arm.CANARY else record.meta.bundle
    if bundle not in bundles:
        raise _not_repeated(record, f"it needs the policies of the bundle {bundle!r}")
    return bundles[bundle]


class _Repeating:
    """One record, by the policies of the arms that decided it: the incumbent alone without a canary."""

    def __init__(self, record: DecisionRecord, deciding: Mapping[Arm, Policies], policy: str) -> None:
        self._record = record
        self._deciding = deciding
        self._policy = policy
        self._arms = _arms_of(record)
        self._sides: Mapping[Arm, Side] = {}
        self._context = PlaceContext(record.reads[0].now_s, record.seed)

    def run(self, views: Iterator[ClusterView]) -> Iterator[Repeat]:
        record, view = self._record, next(views)
        self._sides = {arm: self._side(policies, view) for arm, policies in self._deciding.items()}
        if len(record.reads) > 1:
            yield from self._in_slices(view, views)
            return
        if record.is_dry_run:  # asks "where would it go", as though its jobs held nothing
            for job in record.jobs:
                view.remove_job(job.id)
        decided = {job.id for job in jobs_decided(record, view)}
        for job in self._ordered(view):
            if job.id in decided:
                yield self._decide(with_groups(job, view), view)

    def _in_slices(self, view: ClusterView, others: Iterator[ClusterView]) -> Iterator[Repeat]:
        """In the logged order. The policy is asked for its own all the same, as it takes notes of the request then."""
        jobs = {job.id: job for job in self._record.jobs}
        self._ordered(view.fork())
        for read, seen in zip(self._record.reads[1:], others, strict=True):
            if _are_alike(view, seen):
                seen.lineage = view.lineage  # a net reads the nodes once for several jobs, as in the service
            yield self._decide(with_groups(jobs[JobId(read.job_id)], seen), seen)

    def _side(self, policies: Policies, view: ClusterView) -> Side:
        record, exploration = self._record, explore.NONE
        if not record.is_dry_run:
            is_killed = record.asked is not None and record.asked.heuristic
            exploration = explore.exploration_of(view.settings, {} if is_killed else policies.explorers)
        interference = policies.interference.of(view.co_runs, record.jobs)
        return Side(policies.in_force[self._policy], exploration, interference)

    def _ordered(self, view: ClusterView) -> Sequence[Job]:
        """As the incumbent's policy orders them; as logged if the canary had all of them."""
        incumbent = self._sides.get(Arm.INCUMBENT)
        if incumbent is None:
            jobs = {job.id: job for job in self._record.jobs}
            return [jobs[JobId(job_id)] for job_id in self._arms]
        self._context.interference = incumbent.interference
        return incumbent.policy.order(self._record.jobs, view, self._context)

    def _decide(self, job: Job, view: ClusterView) -> Repeat:
        context, arm = self._context, self._arms.get(job.id, Arm.INCUMBENT)
        side, context.interference = self._sides[arm], self._sides[arm].interference
        draw = self._record.draw_of(job.id) or Draw(job.id)
        context.barred = barred(view, job, job.gpus, context.now_s) if view.heads else None
        policy, exploration = self._as_logged(draw, side)
        if (exploration.rate > 0 or policy.is_drawing) and not self._is_seeded:
            context.randomness = explore.seed_in_slot(view.cluster, job, context.now_s, self._slot_s(job, view))
        proposal = self._proposal(policy, exploration, job, view, self._deciding[arm].fallback)
        if proposal is None:
            return Repeat(job.id, None, None, *why.explain(job, view, context))
        view.add_job(RunningJob(job, proposal.assignments, RunState.RESERVED))
        return Repeat(job.id, proposal.assignments, proposal.propensity)

    def _proposal(
        self,
        policy: PlacementPolicy,
        exploration: explore.Exploration,
        job: Job,
        view: ClusterView,
        fallback: PlacementPolicy,
    ) -> Proposal | None:
        try:
            drawn = explore.propose(policy, exploration, job, view, self._context)
        except Exception:  # as in the service
            return fallback.propose(job, view, self._context)
        return drawn.proposal if drawn is not None else None

    def _as_logged(self, draw: Draw, side: Side) -> tuple[PlacementPolicy, explore.Exploration]:
        """The policy and the explorers, each stopped as the clock had stopped it."""
        stops, policy, exploration = draw.stops or self._stops_before(draw), side.policy, side.exploration
        if not stops:
            return policy, exploration
        asked = (policy, *(each.policy for each in exploration.explorers))
        as_logged = {id(each): _stopped(each, stops.get(each.name)) for each in asked}
        explorers = [explore.Explorer(as_logged[id(each.policy)], each.weight) for each in exploration.explorers]
        return as_logged[id(policy)], explore.Exploration(exploration.rate, explorers, exploration.guard)

    def _stops_before(self, draw: Draw) -> Mapping[str, explore.Stop]:
        """Of a record of before `stops` came: of the policy that placed the job alone."""
        stop = explore.stop_of(Proposal((), info=draw.info, fallback_reason=draw.fallback_reason))
        return {} if stop is None else {draw.explorer or self._record.meta.policy: stop}

    @property
    def _is_seeded(self) -> bool:
        return self._record.asked is not None and self._record.asked.is_seeded

    def _slot_s(self, job: Job, view: ClusterView) -> float:
        queue = view.settings.queues.get(job.queue)
        asked = self._record.asked
        if queue is not None:
            return queue.slot_s
        return asked.slot_s if asked is not None else QueueSettings().slot_s


def _are_alike(view: ClusterView, other: ClusterView) -> bool:
    """True for views with the same nodes and GPUs; measurements may differ."""
    return view.nodes.layout_stamp == other.nodes.layout_stamp and _layout(view) == _layout(other)


def _layout(view: ClusterView) -> list[object]:
    return [(node.id, node.capacity, [(gpu.index, gpu.model) for gpu in node.gpus]) for node in view.nodes.records]


def _stopped(policy: PlacementPolicy, stop: explore.Stop | None) -> PlacementPolicy:
    if stop is None:
        return policy
    if stop.asked is not None:
        policy = policy.stopped_after(stop.asked)
    return _OutOfTime(policy) if stop.is_late else policy


class _OutOfTime(PlacementPolicy):
    """A policy that has no time left."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self.name = policy.name
        self.is_drawing = policy.is_drawing
        self._policy = policy

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        context.deadline_s = -math.inf
        try:
            return self._policy.propose(job, view, context)
        finally:
            context.deadline_s = math.inf

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        return self._policy.probability(assignments, job, view, context)
