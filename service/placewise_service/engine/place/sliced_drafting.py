"""Decides Place commands that are too large for one go: in slices, between which everybody else has a turn.

Between two jobs the live view is ready for others: the decided gangs are assumed on it, and the next job sees
the others' decisions. A large gang is decided on a fork of the view and then put onto the view whole, if every
task still fits there; else it is decided again, now with nobody else deciding on the cluster. A dry run is decided on
one fork from its first job to its last: its answer is about the moment at which it began.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import JobDecision
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.explorers.random_ahead import tasks_walked
from placewise_core.view.standing import may_share
from placewise_service.engine.canary.arming import ArmingOn
from placewise_service.engine.parts import ATTEMPTS, EngineParts
from placewise_service.engine.place.draft import DecidedJob, Draft, Terms
from placewise_service.engine.place.drafting import Placer, standing
from placewise_service.engine.slicing import Slicing
from placewise_service.engine.view_log.notes import Noted
from placewise_service.engine.views import LiveView
from placewise_service.state.holdings import seen_nodes

# Most work to decide in one go, in looks of a task at a node: some ten milliseconds.
_MOST_LOOKS = 600_000
# Cost of each task, counted as nodes: on a cluster of any size, and for each further task of its gang (nets look at so
# many candidates).
_BESIDE_NODES, _BESIDE_TASKS = 1000, 32
# Candidates are ranked, and GPUs in use looked at one by one.
_EXPLAINING, _SHARING = 8, 8
_READ_AHEAD = 16  # jobs of a request that a net reads together: the largest of them says what that costs


def looks(job: Job, nodes: int, is_explaining: bool, is_exploring: bool) -> int:
    """How much work it is to place the job, as against _MOST_LOOKS."""
    tasks, is_sharing = job.task_count, may_share(job)
    factor = (_EXPLAINING if is_explaining else 1) * (_SHARING if is_sharing else 1)
    walked = tasks_walked(tasks, nodes) if is_exploring and is_sharing else 0
    return (tasks + walked) * (nodes + _BESIDE_NODES + _BESIDE_TASKS * tasks) * factor


def is_large(jobs: Sequence[Job], nodes: int, is_explaining: bool, is_exploring: bool = False) -> bool:
    """True for jobs that are not to be decided in one go."""
    tasks = sum([job.task_count for job in jobs])
    if (
        not is_exploring
        and tasks * (nodes + _BESIDE_NODES + _BESIDE_TASKS * tasks) * _EXPLAINING * _SHARING <= _MOST_LOOKS
    ):
        return False
    return sum([looks(job, nodes, is_explaining, is_exploring) for job in jobs]) > _MOST_LOOKS


@frozen
class SlicedPlacer:
    """Places what is_large."""

    parts: EngineParts
    slicing: Slicing

    async def draft(
        self,
        placer: Placer,
        command: PlaceCommand,
        live: LiveView,
        policy: PlacementPolicy,
        context: PlaceContext,
        decision_id: str,
        settled: Mapping[JobId, JobDecision],
        is_shadowed: bool = False,
        arming_on: ArmingOn | None = None,
    ) -> Draft:
        """As Placer.draft; the draft's gangs are assumed on the live view.

        Raises DeadlineExceededError, and StaleSnapshotError if the cluster changes faster than a gang is decided.
        """
        work = _Work(self.parts, placer, command, live, policy, context, settled, decision_id, is_shadowed, arming_on)
        if command.is_dry_run:
            return await self.slicing.run(work.ask, context.deadline_s)
        try:
            async with live.alone:  # two large requests on one cluster would undo each other's decisions
                try:
                    draft = await self.slicing.run(work.decide_all, context.deadline_s)
                finally:
                    live.open()
            await asyncio.sleep(0)  # packing the request to the store takes a moment, too
        except BaseException:
            await live.give_back(work.holds)
            raise
        return draft


@frozen
class _Work:
    """One command in slices. `decided` and `reads` grow job by job."""

    parts: EngineParts
    placer: Placer
    command: PlaceCommand
    live: LiveView
    policy: PlacementPolicy
    context: PlaceContext
    settled: Mapping[JobId, JobDecision]
    decision_id: str
    is_shadowed: bool
    arming_on: ArmingOn | None
    decided: list[DecidedJob] = field(default_factory=list)
    reads: list[Noted] = field(default_factory=list)

    @property
    def holds(self) -> list[RunningJob]:
        """The gangs that are on the live view by now."""
        return [job.placed.running for job in self.decided if job.placed is not None]

    def ask(self, slices: Slices) -> Draft:
        """Places all jobs on a fork, which is then forgotten with everything on it."""
        live, placer, context = self.live, self.placer, self.context
        version, view = live.view.version, live.view.fork()
        terms = self._begin(slices)
        for job in self.command.jobs:
            view.remove_job(job.id)
            slices.pause()
        *decided, last = placer.decide_all(self.command, view, self.policy, context, terms, self.settled)
        self.decided.extend([*decided, replace(last, answer=placer.answer(last, terms, slices))])
        return self._draft(terms, version)

    def _begin(self, slices: Slices) -> Terms:
        """Notes the view at the first slice. The co-runs that it knows count for all jobs."""
        context, view = self.context, self.live.view
        self.reads.extend(self.parts.read(self.live, context.now_s))
        context.slices = slices
        context.interference = self.placer.interference.of(view.co_runs, self.command.jobs)
        given = (self.decision_id, context.interference, self.is_shadowed, self.arming_on)
        return self.placer.terms(self.command, view, *given)

    def _draft(self, terms: Terms, version: int) -> Draft:
        return Draft(terms, version, self.live.view.epoch, self.context.now_s, tuple(self.decided), tuple(self.reads))

    def decide_all(self, slices: Slices) -> Draft:
        """Decides every job of the command; what finds its place is assumed on the live view."""
        placer, context, live = self.placer, self.context, self.live
        terms = self._begin(slices)
        jobs = self.policy.order(self.command.jobs, live.view.fork(), context)
        nodes, work = -1, list[int]()
        for i, job in enumerate(jobs):
            slices.pause()
            placer.check_deadline(i, self.command, context)
            if live.view.nodes.size != nodes:  # nodes may come and go meanwhile
                nodes, is_exploring = live.view.nodes.size, terms.exploration.rate > 0
                work = [looks(each, nodes, context.is_explaining, is_exploring) for each in jobs]
            most = max(work[i : i + _READ_AHEAD])
            decide = self._decided_apart if most > _MOST_LOOKS else self._decided_here
            self.decided.append(standing(job, live.view, self.settled) or decide(job, terms))
        return self._draft(terms, live.view.version)

    def _decided_here(self, job: Job, terms: Terms) -> DecidedJob:
        """In one go, on the live view."""
        live, context = self.live, self.context
        self.reads.extend(self.parts.read(live, context.now_s, job.id))
        slices, context.slices = context.slices, ONE_SLICE
        try:
            found = self.placer.decide(job, live.view, self.policy, context, terms, len(self.holds))
            found = self.placer.show(found, terms)
        finally:
            context.slices = slices
        if found.placed is not None:
            live.assume([found.placed.running])
        return found

    def _decided_apart(self, job: Job, terms: Terms) -> DecidedJob:
        """In slices, on a fork of the view, until the gang fits on the view as well."""
        live, context = self.live, self.context
        randomness, notes = copy.deepcopy(context.randomness), _copied(context.notes)
        for _ in range(ATTEMPTS):  # each as though there had been none before: the log repeats the last one alone
            context.randomness, context.notes = copy.deepcopy(randomness), _copied(notes)
            view = live.view.fork()
            reads = self.parts.read(live, context.now_s, job.id)
            found = self.placer.decide(job, view, self.policy, context, terms, len(self.holds))
            found = self.placer.show(found, terms, context.slices)
            if (known := standing(job, live.view, self.settled)) is not None:  # somebody else asked about the same job
                return known
            if found.placed is None or live.land(found.placed.running, view, context):
                self.reads.extend(reads)
                seen = None if found.placed is None else seen_nodes(found.placed.running, live.view)
                return replace(found, nodes=seen)
            live.close()
        raise StaleSnapshotError(
            "the cluster changed during each of three attempts: try again", {"cluster": self.command.cluster}
        )


def _copied(notes: Mapping[object, Any]) -> dict[object, Any]:
    return {owner: copy.copy(note) for owner, note in notes.items()}
