"""Decides Place commands that are too large for one go: in slices, between which everybody else has a turn.

Between two jobs the live view is ready for others: the decided gangs are assumed on it, and the next job sees
the others' decisions. A large gang is decided on a fork of the view and then put onto the view whole, if every
task still fits there; else it is decided again, now with nobody else deciding on the cluster. A dry run is decided on
one fork from its first job to its last: its answer is about the moment at which it began.
"""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import JobDecision
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.explore import Exploration
from placewise_core.policies.explorers.random_ahead import tasks_walked
from placewise_core.view.standing import may_share
from placewise_service.engine.canary.arming import Arming
from placewise_service.engine.parts import ATTEMPTS, EngineParts
from placewise_service.engine.place.drafting import Draft, Placer, answered
from placewise_service.engine.slicing import Slicing
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
        arming: Arming | None = None,
    ) -> Draft:
        """As Placer.draft; the draft's gangs are assumed on the live view.

        Raises DeadlineExceededError, and StaleSnapshotError if the cluster changes faster than a gang is decided.
        """
        draft = Draft(decision_id, live.view.version, live.view.epoch, context.now_s, interference=context.interference)
        draft.is_shadowed, draft.arming = is_shadowed, arming
        work = _Work(self.parts, placer, command, live, policy, context, draft, settled)
        if command.is_dry_run:
            await self.slicing.run(work.ask, context.deadline_s)
            return draft
        try:
            async with live.alone:  # two large requests on one cluster would undo each other's decisions
                try:
                    await self.slicing.run(work.decide_all, context.deadline_s)
                finally:
                    live.open()
            await asyncio.sleep(0)  # packing the request to the store takes a moment, too
        except BaseException:
            await live.give_back(draft.holds)
            raise
        return draft


@frozen
class _Work:
    """One command in slices."""

    parts: EngineParts
    placer: Placer
    command: PlaceCommand
    live: LiveView
    policy: PlacementPolicy
    context: PlaceContext
    draft: Draft
    settled: Mapping[JobId, JobDecision]

    def ask(self, slices: Slices) -> None:
        """Places all jobs on a fork, which is then forgotten with everything on it."""
        view, context = self.live.view.fork(), self.context
        self._begin(slices)
        for job in self.command.jobs:
            view.remove_job(job.id)
            slices.pause()
        self.placer.decide_all(self.command, view, self.policy, context, self.draft, self.settled)
        self.placer.complete(self.draft, slices)

    def _begin(self, slices: Slices) -> None:
        """Notes the view at the first slice. What co-runs it knows counts for all jobs."""
        draft, context, view = self.draft, self.context, self.live.view
        draft.reads += self.parts.read(self.live, context.now_s)
        context.slices = slices
        draft.interference = context.interference = self.placer.interference.of(view.co_runs, self.command.jobs)

    def decide_all(self, slices: Slices) -> None:
        """Decides every job of the command; what finds its place is assumed on the live view."""
        placer, context, draft, live = self.placer, self.context, self.draft, self.live
        self._begin(slices)
        exploration = placer.exploration(self.command, live.view, draft)
        jobs = self.policy.order(self.command.jobs, live.view.fork(), context)
        nodes, work = -1, list[int]()
        for i, job in enumerate(jobs):
            slices.pause()
            placer.check_deadline(draft, self.command, context)
            if live.view.nodes.size != nodes:  # nodes may come and go meanwhile
                nodes = live.view.nodes.size
                work = [looks(each, nodes, context.is_explaining, exploration.rate > 0) for each in jobs]
            most = max(work[i : i + _READ_AHEAD])
            if self._is_known(job):
                continue
            if most > _MOST_LOOKS:
                self._decide_apart(job, exploration)
            else:
                self._decide_here(job, exploration)
        draft.version = live.view.version

    def _is_known(self, job: Job) -> bool:
        answer = answered(job, self.live.view, self.settled)
        if answer is not None:
            self.draft.answers[job.id] = answer
        return answer is not None

    def _decide_here(self, job: Job, exploration: Exploration) -> None:
        """In one go, on the live view."""
        draft, view, context = self.draft, self.live.view, self.context
        before = len(draft.holds)
        draft.reads += self.parts.read(self.live, context.now_s, job.id)
        slices, context.slices = context.slices, ONE_SLICE
        try:
            self.placer.decide(job, view, self.policy, context, exploration, draft)
            self.placer.show(draft)
        finally:
            context.slices = slices
        self.live.assume(draft.holds[before:])

    def _decide_apart(self, job: Job, exploration: Exploration) -> None:
        """In slices, on a fork of the view, until the gang fits on the view as well."""
        live, context = self.live, self.context
        randomness, notes = copy.deepcopy(context.randomness), _copied(context.notes)
        for _ in range(ATTEMPTS):  # each as though there had been none before: the log repeats the last one alone
            context.randomness, context.notes = copy.deepcopy(randomness), _copied(notes)
            part = Draft(self.draft.decision_id, interference=self.draft.interference)
            part.held_before, part.is_observed = len(self.draft.holds), self.draft.is_observed
            part.is_seeded, part.arming = self.draft.is_seeded, self.draft.arming
            part.is_studied, part.is_shadowed = self.draft.is_studied, self.draft.is_shadowed
            part.sample = self.draft.sample
            view = live.view.fork()
            part.reads += self.parts.read(live, context.now_s, job.id)
            self.placer.decide(job, view, self.policy, context, exploration, part)
            self.placer.show(part, context.slices)
            if self._is_known(job):  # somebody else asked about the same job
                return
            if not part.holds or live.land(part.holds[0], view, context):
                part.expected_nodes.update(seen_nodes(part.holds[0], live.view) if part.holds else {})
                self.draft.take_over(part)
                return
            live.close()
        raise StaleSnapshotError(
            "the cluster changed during each of three attempts: try again", {"cluster": self.command.cluster}
        )


def _copied(notes: Mapping[object, Any]) -> dict[object, Any]:
    return {owner: copy.copy(note) for owner, note in notes.items()}
