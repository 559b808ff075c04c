"""Load balance (Harmony's LB baseline): every task goes to the least loaded node."""

from placewise_core.basics.arrays import FloatArray
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer


class LoadBalance(ScoredPolicy):
    """Least load first; load = Σ of normalised usage over CPU, memory, network and GPUs."""

    name = "load-balance"

    def scores(self, offer: Offer) -> FloatArray:
        return -offer.load

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("load", float(offer.load[0, m])),)
