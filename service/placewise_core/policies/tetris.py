"""Tetris (Harmony's baseline): the node whose free resources align best with the task's demand."""

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer

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

    def scores(self, offer: Offer) -> FloatArray:
        scores = self._alignment(offer)
        np.add(scores, _IN_USE, out=scores, where=offer.task_count > 0)
        if offer.last >= 0 and offer.nodes is None:
            scores[:, offer.last] += _BEING_FILLED
        return scores

    def terms(self, offer: Offer, m: int) -> Terms:
        return (
            ("alignment", float(self._alignment(offer)[0, m])),
            ("in_use", float(offer.task_count[0, m] > 0)),
            ("being_filled", float(offer.last == m)),
        )

    @staticmethod
    def _alignment(offer: Offer) -> FloatArray:
        """(J, N)"""
        aligned = offer.demand[:, None, None] * offer.inverse_capacity
        aligned *= offer.inverse_capacity
        total: FloatArray = np.add.reduce(aligned * offer.whole_free, axis=0)
        return total
