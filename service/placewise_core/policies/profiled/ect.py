"""ECT (LDWP's baseline): the node with the earliest expected completion of the task."""

from placewise_core.basics.arrays import FloatArray
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer
from placewise_core.policies.profiled.completion import NodeLoads, NodeSpeeds
from placewise_core.policies.profiled.tables import GpuSpeeds


class ExpectedCompletionTime(ScoredPolicy):
    """Expected completion = work / speed of the node for this job · (1 + load of the node).

    Work is the job's seconds on one reference GPU divided by its workers; 1 if the job does not say, which leaves
    the order of nodes as it is. The load stretches it as time slices would: work waits for a share of a busy node.
    """

    name = "ect"

    def __init__(self, gpu_speeds: GpuSpeeds) -> None:
        self._speeds = NodeSpeeds(gpu_speeds)
        self._loads = NodeLoads()

    def scores(self, offer: Offer) -> FloatArray:
        return -self._completion_s(offer)

    def terms(self, offer: Offer, m: int) -> Terms:
        return (
            ("completion_s", float(self._completion_s(offer)[0, m])),
            ("speed", float(self._speeds.of(offer)[m])),
            ("load", float(self._loads.of(offer)[0, m])),
        )

    def _completion_s(self, offer: Offer) -> FloatArray:
        """(J, N)"""
        job, group = offer.job, offer.group
        work = job.single_gpu_s / max(1, group.count) if job.single_gpu_s > 0 else 1.0
        seconds: FloatArray = work / self._speeds.of(offer) * (1.0 + self._loads.of(offer))
        return seconds
