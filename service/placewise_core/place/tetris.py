"""Tetris (Harmony's baseline): the node whose free resources align best with what the task asks for."""

from collections.abc import Sequence

import numpy as np

from placewise_core.place.outlook import Outlook
from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.view import ClusterView, FloatArray

# Each more than any alignment (at most one per resource kind): they rank nodes before alignment does.
_BEING_FILLED, _IN_USE = 2e3, 1e3


class Tetris(ScoredPolicy):
    """Alignment = Σ_r (demand_r / capacity_r) · (free_r / capacity_r), each node normalised by itself.

    Tetris fills one machine before it turns to the next. For a gang that has to choose among machines this means: the
    node that took the gang's last task goes on being filled, and no empty node is opened while one in use takes the
    task; alignment decides among the rest. Without that the dot product alone would favour the emptiest node, and the
    policy would spread, which is not the packing Harmony compares itself with.
    """

    name = "tetris"
    fills_nodes = True
    counts_rooms = False

    def scores(self, task: TaskContext) -> FloatArray:
        scores = self._scores(task.view, task.demand)
        if task.placed:
            scores[task.placed[-1][1]] += _BEING_FILLED
        return scores

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (
            ("alignment", float(self._alignment(task.view, task.demand)[m])),
            ("in_use", float(task.view.task_count[m] > 0)),
            ("being_filled", float(bool(task.placed) and task.placed[-1][1] == m)),
        )

    def counted(self, outlook: Outlook) -> Sequence[int]:
        return outlook.filling(self._scores(outlook.gang.view, outlook.gang.demand))

    def _scores(self, view: ClusterView, demand: FloatArray) -> FloatArray:
        """(M,) with no node being filled."""
        scores = self._alignment(view, demand)
        scores += _IN_USE * (view.task_count > 0)
        return scores

    @staticmethod
    def _alignment(view: ClusterView, demand: FloatArray) -> FloatArray:
        # GPUs are counted as those that serve nobody: a shared one may be promised more than once.
        aligned = demand[:, None] * view.inverse_capacity
        aligned *= view.inverse_capacity
        aligned *= view.plain_free
        total: FloatArray = np.add.reduce(aligned, axis=0)
        return total
