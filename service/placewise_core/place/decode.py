"""Turns node scores into a whole placement: gang all-or-nothing, one task after the other against the claimed view.

The view is exactly as before when a function here returns. Tasks with the largest dominant share go first: large ones
are the hard ones to fit, and equal tasks stay in their order.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np

from placewise_core.cluster import Assignment
from placewise_core.decision import Candidate
from placewise_core.job import Job, Role, TaskGroup
from placewise_core.place.gpus import pick_gpus, takers
from placewise_core.place.policy import NodeScorer, PlaceContext, Proposal, TaskContext
from placewise_core.view import GPUS, BoolArray, ClusterView, FloatArray

# Chooses a node for one task: (task, scores over all nodes) → (node index or -1, probability of that choice).
Chooser = Callable[[TaskContext, FloatArray], tuple[int, float]]

# `info` key of a proposal that best fit had to find, because the policy's own order of nodes led into a dead end.
RESCUED = "best_fit_rescue"

_ROLE_NAMES = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "ps"}
_LOWEST = np.array(-np.inf)  # as an array: a float would be converted at every task
_COUNTED_SINGLY = 6  # nodes with room up to which asking one by one is faster than counting all
_EXPLAINED_CANDIDATES = 8  # per task: enough to see why, small enough to read


def best(task: TaskContext, scores: FloatArray) -> tuple[int, float]:
    """The feasible node with the highest score; ties to the lowest index; -1 if no node is feasible."""
    if not len(scores):
        return -1, 1.0
    m = int(scores.argmax())
    if not task.mask[m]:  # mostly it is feasible, and masking takes longer than all the rest here
        m = int(np.where(task.mask, scores, _LOWEST).argmax())
    return (m if task.mask[m] else -1), 1.0


def task_names(job: Job) -> list[tuple[TaskGroup, str]]:
    """Every task of the gang with its group, named "worker-0", "ps-1", … in the order of the request."""
    return [(group, name) for group, names in _named_groups(job) for name in names]


def decode(
    scorer: NodeScorer,
    job: Job,
    view: ClusterView,
    context: PlaceContext,
    choose: Chooser = best,
    keeps_claims: bool = False,
) -> Proposal | None:
    """Places every task of `job` by `scorer`, or None if the gang does not fit that way.

    A greedy order may run into a dead end where another would not: then best fit is tried, and `info` says so. That
    holds for `best` alone: a chooser that draws must be able to state its probabilities.

    `keeps_claims` leaves a proposal claimed on the view (ClaimingPolicy); without a proposal nothing is.
    """
    decoder = _Decoder(scorer, job, view, context, choose)
    proposal = decoder.decode(keeps_claims)
    if proposal is None and choose is best and decoder.placed:
        proposal = _Decoder(_BestFit(), job, view, context, best).decode(keeps_claims)
        return None if proposal is None else replace(proposal, info={RESCUED: 1.0})
    return proposal


def can_fit(job: Job, view: ClusterView, context: PlaceContext) -> bool:
    """True if best-fit-decreasing finds room for the gang."""
    return _Decoder(_BestFit(), job, view, context, best).decode() is not None


@contextmanager
def obstacle(job: Job, view: ClusterView, context: PlaceContext) -> Iterator[TaskContext | None]:
    """The first task that best-fit-decreasing finds no node for, with the tasks before it claimed on the view; None
    if the gang fits. The view is as before on leaving. Every demand must be one the view can express."""
    decoder = _Decoder(_BestFit(), job, view, context, best)
    with decoder.claiming():
        yield None if decoder.place_all() else decoder.current


class _BestFit:
    """Least free GPUs, then least free CPU: leaves the large holes for the large tasks."""

    def scores(self, task: TaskContext) -> FloatArray:
        view = task.view
        return np.asarray(-view.free_gpus() - view.free[0] / (1.0 + view.capacity[0]))

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("free_gpus", float(task.view.free_gpus()[m])),)


class _Decoder:
    """State of one decode: what was claimed so far. For one use."""

    def __init__(self, scorer: NodeScorer, job: Job, view: ClusterView, context: PlaceContext, choose: Chooser) -> None:
        self.scorer, self.job, self.view, self.context, self.choose = scorer, job, view, context, choose
        self.usable = view.usable(context.now_s)
        self.assignments: list[Assignment] = []
        self.placed: list[tuple[TaskGroup, int]] = []
        self.candidates: list[Candidate] = []
        self.propensity = 1.0
        self.remaining = job.task_count
        self.current: TaskContext | None = None
        self._claimed = 0
        self._is_reordered = False
        self._counts_first = False
        # Explaining asks for the candidates of every task.
        self._fills = choose is best and not context.is_explaining and getattr(scorer, "fills_nodes", False)
        self._counts_rooms = self._fills and getattr(scorer, "counts_rooms", False)

    def decode(self, keeps_claims: bool = False) -> Proposal | None:
        self._counts_first = self.choose is best  # a chooser that draws draws as often as tasks are looked at
        is_whole = False
        try:  # not `claiming`: a context manager is dear for what is done a million times
            is_whole = self.place_all()
        finally:
            if not (keeps_claims and is_whole):
                self._give_back()
        if not is_whole:
            return None
        if keeps_claims and self._claimed < len(self.assignments):
            self.view.claim_alike(self.job, self.assignments[self._claimed :])
        if self._is_reordered:
            order = {name: i for i, (_, name) in enumerate(task_names(self.job))}
            self.assignments.sort(key=lambda a: order[a.task])
        return Proposal(
            tuple(self.assignments),
            propensity=self.propensity,
            candidates=tuple(self.candidates),
            is_claimed=keeps_claims,
        )

    @contextmanager
    def claiming(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        for assignment in reversed(self.assignments[: self._claimed]):
            self.view.unclaim(self.job, assignment)

    def place_all(self) -> bool:
        for group, names in self._largest_first(_named_groups(self.job)):  # noqa: SIM110 - a generator costs more
            if not self._place_group(group, names):
                return False
        return True

    def _largest_first(self, groups: list[tuple[TaskGroup, Sequence[str]]]) -> list[tuple[TaskGroup, Sequence[str]]]:
        if len(groups) < 2:
            return groups
        found = sorted(groups, key=lambda entry: -self.view.dominant_share(entry[0].demand))
        self._is_reordered = found != groups
        return found

    def _place_group(self, group: TaskGroup, names: Sequence[str]) -> bool:
        demand = self.view.demand_vector(group.demand)
        if demand is None:
            return False
        is_plain = self.view.is_plain(demand, group, self.job.gpu_sharing)
        rooms = self.view.plain_rooms(demand) if is_plain and self._counts_rooms else None
        mask = self._mask(demand, group, is_plain, rooms)
        if self._counts_first and is_plain and self._lacks_rooms(demand, mask, len(names)):
            return False
        task = TaskContext(
            job=self.job,
            group=group,
            task="",
            demand=demand,
            gpus=math.ceil(demand[GPUS]),
            sharing=self.job.gpu_sharing,
            mask=mask,
            view=self.view,
            placed=self.placed,
            remaining=self.remaining,
            context=self.context,
            is_plain=is_plain,
            rooms=rooms,
        )
        self.current = task
        on_node: dict[int, int] = {}
        left = len(names)
        while left:
            task.task, task.remaining = names[-left], self.remaining
            m, gpus = self._choose(task)
            if m < 0:
                return False
            count, is_full = 1, False
            if left > 1 and is_plain and self._fills:
                at_most = min(left, group.max_per_node - on_node.get(m, 0)) if group.max_per_node else left
                room = self.view.plain_rooms_on(m, demand)
                count, is_full = int(min(at_most, room)), room <= at_most
                if count > 1:
                    gpus = self.view.first_free_gpus(m, count * len(gpus))
            self._claim(task, m, names[-left:][:count], gpus)
            left -= count
            if left:
                self.context.slices.pause()
                task.mask[m] = not is_full and self._takes_more(task, m, on_node, count)
                if rooms is not None:
                    task.rooms = self.view.plain_rooms(demand)
        return True

    def _mask(self, demand: FloatArray, group: TaskGroup, is_plain: bool, rooms: FloatArray | None) -> BoolArray:
        """(M,) nodes that one task of the group may go to."""
        if not is_plain:
            return self.view.feasible(demand, group, self.job.gpu_sharing, self.usable)
        has_room = self.view.plain_feasible(demand) if rooms is None else rooms >= 1.0
        has_room &= self.usable
        return has_room if not group.node_selector else has_room & self.view.selected(group)

    def _lacks_rooms(self, demand: FloatArray, mask: BoolArray, count: int) -> bool:
        """True where so many tasks of a plain demand fit in no way: nothing need be claimed to see that."""
        nodes = mask.nonzero()[0]
        if len(nodes) >= count:
            return False
        if len(nodes) > _COUNTED_SINGLY:
            return bool(self.view.plain_rooms(demand).sum(where=mask) < count)
        return sum([self.view.plain_rooms_on(m, demand) for m in nodes.tolist()]) < count

    def _takes_more(self, task: TaskContext, m: int, on_node: dict[int, int], count: int) -> bool:
        """Whether another task of the group may go to node m, which just got `count` of them."""
        most = task.group.max_per_node
        if most:
            on_node[m] = on_node.get(m, 0) + count
            if on_node[m] >= most:
                return False
        if task.is_plain:
            return self.view.plain_feasible_on(m, task.demand)
        return self.view.feasible_on(m, task.demand, task.group, task.sharing)

    def _choose(self, task: TaskContext) -> tuple[int, tuple[int, ...]]:
        """A node and its GPUs; -1 if nothing is left. Where GPUs turn out too slow to share, all such nodes are masked
        at once."""
        last = self.placed[-1][1] if self._fills and self.placed else -1
        while True:
            if last >= 0 and task.mask[last]:
                m, probability = last, 1.0
            else:
                scores = self.scorer.scores(task)
                m, probability = self.choose(task, scores)
                if m < 0:
                    return -1, ()
            if task.is_plain:  # then the node has the GPUs
                gpus: tuple[int, ...] | None = self.view.first_free_gpus(m, task.gpus)
            else:
                gpus = pick_gpus(self.view, m, self.job, task.group, task.demand, self.context.interference)
            if gpus is not None:
                break
            task.mask[m] = False
            interference = self.context.interference
            task.mask &= takers(self.view, task.mask, self.job, task.group, task.demand, interference)
            self.context.slices.pause()
        if self.context.is_explaining:
            self._explain(task, scores, m)
        self.propensity *= probability
        return m, gpus

    def _claim(self, task: TaskContext, m: int, names: Sequence[str], gpus: tuple[int, ...]) -> None:
        """Gives the tasks of these names node m, and each its part of the GPUs."""
        group, node = task.group, self.view.nodes[m].id
        if len(names) == 1:
            self.assignments.append(Assignment(names[0], group.role, node, gpus, group.demand))
            self.placed.append((group, m))
        else:
            each = len(gpus) // len(names)
            self.assignments += [
                Assignment(name, group.role, node, gpus[i * each : (i + 1) * each], group.demand)
                for i, name in enumerate(names)
            ]
            self.placed += [(group, m)] * len(names)
        self.remaining -= len(names)
        if self.remaining:  # nothing reads the view after the last task
            self.view.claim_alike(self.job, self.assignments[self._claimed :])
            self._claimed = len(self.assignments)

    def _explain(self, task: TaskContext, scores: FloatArray, chosen: int) -> None:
        masked = np.where(task.mask, scores, -np.inf)
        top = [int(m) for m in np.argsort(-masked, kind="stable")[:_EXPLAINED_CANDIDATES] if task.mask[m]]
        for m in top if chosen in top else [*top, chosen]:
            self.candidates.append(
                Candidate(
                    task=task.task,
                    node=self.view.node_id(m),
                    score=float(scores[m]),
                    terms=self.scorer.terms(task, m),
                    is_chosen=m == chosen,
                )
            )


def _named_groups(job: Job) -> list[tuple[TaskGroup, Sequence[str]]]:
    """Names count on per role, so that two groups of workers share one numbering."""
    counts: dict[Role, int] = {}
    named = []
    for group in job.groups:
        first = counts.get(group.role, 0)
        counts[group.role] = first + group.count
        named.append((group, _names(group.role, first, group.count)))
    return named


@lru_cache(maxsize=1024)  # gangs of a few sizes come again and again
def _names(role: Role, first: int, count: int) -> Sequence[str]:
    stem = _ROLE_NAMES[role]
    return tuple([f"{stem}-{i}" for i in range(first, first + count)])
