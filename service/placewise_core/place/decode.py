"""Turns node scores into a whole placement: gang all-or-nothing, one task after the other against the claimed view.

The view is exactly as before when a function here returns. Tasks with the largest dominant share go first: large ones
are the hard ones to fit, and equal tasks stay in their order.
"""

from collections.abc import Callable, Iterator

import numpy as np

from placewise_core.cluster import Assignment
from placewise_core.decision import Candidate
from placewise_core.job import Job, NodeId, Role, TaskGroup
from placewise_core.place.gpus import pick_gpus
from placewise_core.place.policy import NodeScorer, PlaceContext, Proposal, TaskContext
from placewise_core.view import BoolArray, ClusterView, FloatArray

# Chooses a node for one task: (task, scores over all nodes) → (node index, probability of that choice).
Chooser = Callable[[TaskContext, FloatArray], tuple[int, float]]

_ROLE_NAMES = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "ps"}
_EXPLAINED_CANDIDATES = 8  # per task: enough to see why, small enough to read


def best(task: TaskContext, scores: FloatArray) -> tuple[int, float]:
    """The feasible node with the highest score; ties to the lowest index."""
    return int(np.argmax(np.where(task.mask, scores, -np.inf))), 1.0


def uniform(task: TaskContext, scores: FloatArray) -> tuple[int, float]:
    """Any feasible node, each equally likely."""
    nodes = np.flatnonzero(task.mask)
    return int(nodes[task.context.rng.integers(len(nodes))]), 1.0 / len(nodes)


def task_names(job: Job) -> list[tuple[TaskGroup, str]]:
    """Every task of the gang with its group, named "worker-0", "ps-1", … in the order of the request."""
    counts: dict[Role, int] = {}
    named = []
    for group in job.groups:
        for _ in range(group.count):
            i = counts.get(group.role, 0)
            counts[group.role] = i + 1
            named.append((group, f"{_ROLE_NAMES[group.role]}-{i}"))
    return named


def decode(
    scorer: NodeScorer, job: Job, view: ClusterView, context: PlaceContext, choose: Chooser = best
) -> Proposal | None:
    """Places every task of `job` by `scorer`, or None if the gang does not fit that way."""
    decoder = _Decoder(scorer, job, view, context, choose)
    try:
        return decoder.run()
    finally:
        decoder.give_back()


def can_fit(job: Job, view: ClusterView, context: PlaceContext) -> bool:
    """True if best-fit-decreasing finds room for the gang."""
    return decode(_BestFit(), job, view, context) is not None


class _BestFit:
    """Least free GPUs, then least free CPU: leaves the large holes for the large tasks."""

    def scores(self, task: TaskContext) -> FloatArray:
        view = task.view
        return np.asarray(-view.free_gpus() - view.free[0] / (1.0 + view.capacity[0]))

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("free_gpus", float(task.view.free_gpus()[m])),)


class _Decoder:
    """State of one decode: what was claimed so far."""

    def __init__(self, scorer: NodeScorer, job: Job, view: ClusterView, context: PlaceContext, choose: Chooser) -> None:
        self.scorer, self.job, self.view, self.context, self.choose = scorer, job, view, context, choose
        self.usable = view.usable(context.now_s)
        self.assignments: list[Assignment] = []
        self.placed: list[tuple[TaskGroup, int]] = []
        self.candidates: list[Candidate] = []
        self.propensity = 1.0

    def run(self) -> Proposal | None:
        remaining = self.job.task_count
        for group, demand, names in self._largest_first():
            if demand is None:
                return None
            mask = self.view.feasible(demand, group, self.job.gpu_sharing, self.usable)
            for name in names:
                task = self._task(group, name, demand, mask, remaining)
                m = self._place(task)
                if m is None:
                    return None
                mask[m] = mask[m] and self._still_fits(m, group, demand)
                remaining -= 1
        order = {name: i for i, (_, name) in enumerate(task_names(self.job))}
        self.assignments.sort(key=lambda a: order[a.task])
        placed = tuple(self.assignments)
        return Proposal(placed, propensity=self.propensity, candidates=tuple(self.candidates))

    def _largest_first(self) -> Iterator[tuple[TaskGroup, FloatArray | None, list[str]]]:
        grouped: list[tuple[TaskGroup, FloatArray | None, list[str]]] = []
        for group, name in task_names(self.job):
            if grouped and grouped[-1][0] is group:
                grouped[-1][2].append(name)
            else:
                grouped.append((group, self.view.demand_vector(group.demand), [name]))
        if len(grouped) > 1:
            largest = self.view.capacity.max(axis=1, initial=0.0)
            grouped.sort(key=lambda entry: -_dominant_share(entry[1], largest))
        yield from grouped

    def _task(self, group: TaskGroup, name: str, demand: FloatArray, mask: BoolArray, remaining: int) -> TaskContext:
        return TaskContext(
            job=self.job,
            group=group,
            task=name,
            demand=demand,
            sharing=self.job.gpu_sharing,
            mask=mask,
            view=self.view,
            placed=self.placed,
            remaining=remaining,
            context=self.context,
        )

    def _place(self, task: TaskContext) -> int | None:
        """Chooses a node and its GPUs, and claims them. A node whose GPUs turn out too slow to share is masked."""
        while task.mask.any():
            scores = self.scorer.scores(task)
            m, probability = self.choose(task, scores)
            gpus = pick_gpus(self.view, m, self.job, task.group, task.demand, self.context.interference)
            if gpus is None:
                task.mask[m] = False
                continue
            if self.context.is_explaining:
                self._explain(task, scores, m)
            self.propensity *= probability
            self._claim(task, m, gpus)
            return m
        return None

    def _claim(self, task: TaskContext, m: int, gpus: tuple[int, ...]) -> None:
        assignment = Assignment(
            task=task.task,
            role=task.group.role,
            node=NodeId(self.view.node_id(m)),
            gpu_indices=gpus,
            demand=task.group.demand,
        )
        self.view.claim(self.job, assignment)
        self.assignments.append(assignment)
        self.placed.append((task.group, m))

    def _still_fits(self, m: int, group: TaskGroup, demand: FloatArray) -> bool:
        if group.max_per_node and sum(g is group and n == m for g, n in self.placed) >= group.max_per_node:
            return False
        return self.view.feasible_on(m, demand, group, self.job.gpu_sharing)

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

    def give_back(self) -> None:
        for assignment in reversed(self.assignments):
            self.view.unclaim(self.job, assignment)


def _dominant_share(demand: FloatArray | None, largest: FloatArray) -> float:
    """Largest share any resource of `demand` takes of the largest node's."""
    if demand is None:
        return np.inf
    return float(np.max(demand / np.maximum(largest, 1e-9)))
