"""PATS (LDWP's baseline) carried over to nodes: relative performance of the task on each, weighed with its load.

Teodoro's PATS chooses computing units, not nodes: in order of speedup, GPUs take the subtasks with the most and cores
those with the least. The choice of nodes is our reading of it, as LDWP compares with it on a cluster.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import Terms
from placewise_core.gang.offer import Offer
from placewise_core.gang.scored import ScoredPolicy
from placewise_core.policies.profiled.completion import NodeSpeeds
from placewise_core.policies.profiled.tables import GpuSpeeds
from placewise_core.view.view import CPU, GPUS, ClusterView


class RelativePerformance(ScoredPolicy):
    """Score = relative speedup · idle share of the kind of unit the task runs on.

    PATS weighs the speedup that a task has on an accelerator with the loads of CPUs and GPUs. Read for nodes: for a
    task on GPUs, its speed on the node's GPUs over that on the slowest feasible node, times the share of the node's
    GPUs that is idle; for a CPU task the same with CPUs. Jobs with most to gain choose first.
    """

    name = "pats"

    def __init__(self, gpu_speeds: GpuSpeeds) -> None:
        self._gpu_speeds = gpu_speeds
        self._speeds = NodeSpeeds(gpu_speeds)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        names = view.gpu_model_names()
        return sorted(jobs, key=lambda job: -self._spread(job, names))

    def scores(self, offer: Offer) -> FloatArray:
        return self._speedup(offer) * _idle(offer)

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("speedup", float(self._speedup(offer)[m])), ("idle", float(_idle(offer)[0, m])))

    def _speedup(self, offer: Offer) -> FloatArray:
        """(N,) over the slowest node that may take the task."""
        everywhere = self._speeds.of(offer.whole)
        slowest = np.where(offer.whole.mask, everywhere, np.inf).min(initial=np.inf)
        return np.asarray(everywhere[offer.at] / slowest)

    def _spread(self, job: Job, gpu_models: Sequence[str]) -> float:
        """How much faster the job is on the fastest GPU model of the cluster than on the slowest."""
        speeds = [self._gpu_speeds.of(job.model, name) for name in gpu_models]
        return max(speeds) / min(speeds) if speeds and job.gpus > 0 else 1.0


def _idle(offer: Offer) -> FloatArray:
    """(J, N) idle share of the units."""
    row = GPUS if offer.demand[GPUS] > 0 else CPU
    idle: FloatArray = offer.free[row] * offer.inverse_capacity[row]
    np.minimum(np.maximum(idle, 0.0, out=idle), 1.0, out=idle)  # not clip: it takes longer than both
    idle += 1e-3
    return idle
