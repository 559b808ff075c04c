"""Draws from the distribution of Harmony's net, for exploration. Never runs into a dead end; its propensity is exact.

The role to place next is the likelier one, and only the node is drawn. A plan for the rest of the gang is kept. If the
node drawn leaves no plan, or the net has no node left, the rest goes as planned. So a placement comes about in one way
by draws alone, and perhaps after a draw that ended them at some step:

    q(a) = Π p(node of each task) + Σ over steps, if the plan there gives a: Π p(nodes so far) · (chance to end here)
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.gang.actions import decode_action
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.policy import NetRead, PlacementPolicy, Proposal, action_of
from placewise_core.policies.harmony import Harmony, NetSteps, drawn_from, node_odds
from placewise_core.policies.plan import Plan, plan_around, plan_of
from placewise_core.view.view import ClusterView


class HarmonyDraw(PlacementPolicy):
    """Explores with Harmony's net. Gangs on shared GPUs are placed as Harmony places them, without a draw. Proposes
    nothing if best fit finds no placement, or if the net fails before anything is drawn: that says nothing of the
    draws, so P(a) stays exact. Later failures may depend on what was drawn, so they are raised and leave P(a) unknown.
    """

    name = "harmony-sample"
    is_drawing = True

    def __init__(self, harmony: Harmony) -> None:
        self._harmony = harmony

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if not _is_countable(job, view, context):
            return self._harmony.propose(job, view, context)
        try:
            steps = self._harmony.steps(job, view, context)
            plan = plan_of(steps.candidates.gang)
            found = steps.odds() if plan is not None else None
        except Exception:  # nothing is drawn yet: the policy in force has the explorer's share
            return None
        if plan is None:
            return None
        drawn = _drawn(steps, plan, found, context)
        return replace(drawn, propensity=self.probability(drawn.assignments, job, view, context))

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        if not _is_countable(job, view, context):
            return self._harmony.probability(assignments, job, view, context)
        steps, wanted = self._harmony.steps(job, view, context), action_of(assignments)
        gang, nodes = steps.candidates.gang, {a.task: view.nodes.index.get(a.node, -1) for a in assignments}
        plan, total, so_far = plan_of(gang), 0.0, 1.0
        if plan is None:
            return 0.0
        while gang.remaining:
            found = steps.odds()
            if found is None:
                return total + so_far * (action_of(plan.rest()) == wanted)
            first, odds = found
            if gang.domains is not None:  # a node of another domain has a plan that gives another placement
                m = nodes.get(gang.next_name(_group_of(steps, first)), -1)
                plan = plan_around(gang, m) if m >= 0 and gang.usable[m] else None
                if plan is None:
                    return 0.0
                odds = np.where(gang.domains.around(m)[steps.candidates.rows], odds, 0.0)
            group, is_open = _open(steps, first, plan)
            closed = float(odds[~is_open].sum())
            if closed > 0 and action_of(plan.rest()) == wanted:
                total += so_far * closed
            m = nodes.get(gang.next_name(group), -1)
            c = _candidate_of(steps, m)
            if c is None or not is_open[c]:
                return total
            so_far *= float(odds[c])
            if not so_far:
                return total
            steps.take(first + c)
            plan.change(group, m)
            context.slices.pause()
        return total + so_far


def _drawn(steps: NetSteps, plan: Plan, found: tuple[int, FloatArray] | None, context: PlaceContext) -> Proposal:
    """A placement without its propensity; `found` are the odds of the first task. Raises the net's own errors."""
    gang = steps.candidates.gang
    while found is not None:
        first, odds = found
        c = drawn_from(odds, context.rng.random())
        if gang.domains is not None:
            plan = plan_around(gang, int(steps.candidates.rows[c])) or plan
        group, is_open = _open(steps, first, plan)
        if not is_open[c]:
            break
        steps.take(first + c)
        plan.change(group, int(steps.candidates.rows[c]))
        context.slices.pause()
        if not gang.remaining:
            return Proposal(gang.assignments(), read=steps.read)
        found = steps.odds()
    return Proposal(plan.rest(), read=steps.read)


@frozen
class Retraced:
    """A placement as the net would have come to it, task by task.

    `rows` (C,) are the candidates' places in the view, `tokens` (tasks, C, STEP_FEATURES), `odds` the net's probability
    of each task's node.
    """

    tasks: tuple[str, ...]
    rows: IntArray
    tokens: Float32
    odds: tuple[float, ...]


class _Reread:
    """A gang as the net placed it, task by task, from its recorded inputs and answers. For one use."""

    def __init__(self, read: NetRead, candidates: Candidates) -> None:
        self.candidates = candidates
        self._steps = list(zip(read.tokens, read.logits, strict=True))
        self._done = 0

    @property
    def features(self) -> Float32:
        return self._steps[self._done][0]

    def odds(self) -> tuple[int, FloatArray] | None:
        return None if self.candidates.is_stuck() else node_odds(self._steps[self._done][1], self.candidates.mask)

    def take(self, action: int) -> None:
        self.candidates.take(action)
        self._done += 1


def retraced(
    harmony: Harmony, proposal: Proposal, job: Job, view: ClusterView, context: PlaceContext
) -> Retraced | None:
    """By the net's recorded inputs and answers if it placed all tasks, else as it would come to the placement. Nodes
    whose GPUs are too slow to share have no part in the probabilities. None if a node is not among the candidates.
    Raises the net's own errors."""
    read, assignments = proposal.read, proposal.assignments
    steps: _Reread | NetSteps
    if read is not None and read.observation and len(read.logits) == len(assignments):
        steps = _Reread(read, Candidates(Gang(job, view, context), read.rows))
    else:
        steps = harmony.steps(job, view, context)
    gang, nodes = steps.candidates.gang, {a.task: view.nodes.index.get(a.node, -1) for a in assignments}
    tasks, tokens, chances = [], [], []
    while gang.remaining:
        steps.candidates.close_intolerant()
        found = steps.odds()
        if found is None:
            return None
        first, odds = found
        task = gang.next_name(_group_of(steps, first))
        c = _candidate_of(steps, nodes.get(task, -1))
        if c is None or not steps.candidates.mask[first + c]:
            return None
        tasks.append(task)
        tokens.append(steps.features.copy())
        chances.append(float(odds[c]))
        steps.take(first + c)
        context.slices.pause()
    return Retraced(tuple(tasks), steps.candidates.rows, np.stack(tokens), tuple(chances))


def _group_of(steps: NetSteps | _Reread, first: int) -> TaskGroup:
    role, _ = decode_action(first, len(steps.candidates.rows))
    return steps.candidates.turns[role].group


def _candidate_of(steps: NetSteps | _Reread, m: int) -> int | None:
    rows = steps.candidates.rows
    c = int(rows.searchsorted(m))
    return c if m >= 0 and c < len(rows) and rows[c] == m and steps.candidates.mask.reshape(2, -1)[:, c].any() else None


def _is_countable(job: Job, view: ClusterView, context: PlaceContext) -> bool:
    gang = Gang(job, view, context)
    return all(gang.wanted(group) is None or gang.is_countable(group) for group in job.groups)


def _open(steps: NetSteps, first: int, plan: Plan) -> tuple[TaskGroup, BoolArray]:
    """The group whose task is next in the role of action `first`, and (C,) the candidates that leave a plan."""
    group = _group_of(steps, first)
    return group, plan.open_to(group)[steps.candidates.rows]
