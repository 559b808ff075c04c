"""Bin packing: the node that is left with the least when the task is there."""

from collections.abc import Sequence

import numpy as np

from placewise_core.place.outlook import Outlook
from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.view import GPUS, FloatArray


class BinPacking(ScoredPolicy):
    """Score = −Σ_r ((free_r − demand_r) / capacity_r)² over the resources asked for: the norm-based best fit of vector
    bin packing. One of the two strategies of Harmony's job-aware exploration; the other is load balance."""

    name = "bin-packing"

    def scores(self, task: TaskContext) -> FloatArray:
        return _left_over(task.view.plain_free, task.demand[:, None], task.view.inverse_capacity)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("left_over", float(-self.scores(task)[m])),)

    def counted(self, outlook: Outlook) -> Sequence[int]:
        demand, inverse = outlook.gang.demand[:, None, None], outlook.gang.view.inverse_capacity[:, None]
        free = outlook.free.copy()
        free[GPUS] = outlook.free_gpus
        return outlook.greedy(_left_over(free, demand, inverse))


def _left_over(free: FloatArray, demand: FloatArray, inverse: FloatArray) -> FloatArray:
    """The scores, of nodes with so much free (R, …), GPUs counted as those that serve nobody."""
    left = free - demand
    left *= inverse
    left *= demand > 0
    left *= left
    scores: FloatArray = np.add.reduce(left, axis=0)
    return np.negative(scores, out=scores)
