"""Bin packing: the node that is left with the least when the task is there."""

import numpy as np

from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.view import GPUS, FloatArray


class BinPacking(ScoredPolicy):
    """Score = −Σ_r ((free_r − demand_r) / capacity_r)² over the resources asked for: the norm-based best fit of vector
    bin packing. One of the two strategies of Harmony's job-aware exploration; the other is load balance."""

    name = "bin-packing"

    def scores(self, task: TaskContext) -> FloatArray:
        view, demand = task.view, task.demand[:, None]
        free = view.free.copy()
        free[GPUS] = view.free_gpus()
        free -= demand
        free *= view.inverse_capacity
        free *= demand > 0
        free *= free
        scores: FloatArray = free.sum(axis=0)
        return np.negative(scores, out=scores)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("left_over", float(-self.scores(task)[m])),)
