"""Random: every task to a feasible node, each equally likely. Its propensity is exact."""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.cluster import Assignment
from placewise_core.job import Job
from placewise_core.place.decode import decode
from placewise_core.place.gpus import takers
from placewise_core.place.policy import PlaceContext, Proposal, TaskContext
from placewise_core.view import BoolArray, ClusterView, FloatArray


class Random:
    """Uniform over the nodes that can take the task now, task by task.

    The sequence of choices is a function of the placement, so the propensity of a placement is the product of 1/n over
    its tasks. A gang that runs into a dead end is not placed: a second try would make that product wrong.
    """

    name = "random"

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context, _uniform)

    def claim(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context, _uniform, keeps_claims=True)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        """Probability with which `propose` gives exactly these assignments; 0 if it cannot."""
        replayed = decode(self, job, view, context, _Follow({a.task: view.index.get(a.node, -1) for a in assignments}))
        return replayed.propensity if replayed and replayed.assignments == tuple(assignments) else 0.0

    def scores(self, task: TaskContext) -> FloatArray:
        return np.zeros(task.view.size)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("probability", 1.0 / max(1, int(task.mask.sum()))),)


def _uniform(task: TaskContext, scores: FloatArray) -> tuple[int, float]:
    nodes = _takers(task).nonzero()[0]
    if not len(nodes):
        return -1, 1.0
    return int(nodes[task.context.rng.integers(len(nodes))]), 1.0 / len(nodes)


class _Follow:
    """Chooses the given node of each task, with the probability `_uniform` has for it."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        self._nodes = nodes

    def __call__(self, task: TaskContext, scores: FloatArray) -> tuple[int, float]:
        m = self._nodes.get(task.task, -1)
        takers = _takers(task)
        return (m, 1.0 / int(takers.sum())) if m >= 0 and takers[m] else (-1, 0.0)


def _takers(task: TaskContext) -> BoolArray:
    """(M,) nodes that really take the task, slowdown limits of shared GPUs included."""
    return takers(task.view, task.mask, task.job, task.group, task.demand, task.context.interference)
