"""A heuristic policy of one file: the node with most memory left. docs/placement.md shows it."""

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer
from placewise_core.view.view import MEMORY


class MostMemory(ScoredPolicy):
    """Score = memory left once the task is there, in GiB."""

    name = "most-memory"

    def scores(self, offer: Offer) -> FloatArray:
        return np.asarray(offer.free[MEMORY] - offer.demand[MEMORY])

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("memory_left_gib", float(self.scores(offer)[0, m])),)
