"""Bin packing: the node that is left with the least when the task is there."""

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer


class BinPacking(ScoredPolicy):
    """Score = −Σ_r ((free_r − demand_r) / capacity_r)² over the resources asked for: the norm-based best fit of vector
    bin packing. One of the two strategies of Harmony's job-aware exploration; the other is load balance."""

    name = "bin-packing"

    def scores(self, offer: Offer) -> FloatArray:
        demand = offer.demand[:, None, None]
        left = offer.whole_free - demand
        left *= offer.inverse_capacity
        left *= demand > 0
        left *= left
        scores: FloatArray = np.add.reduce(left, axis=0)
        return np.negative(scores, out=scores)

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("left_over", float(-self.scores(offer)[0, m])),)
