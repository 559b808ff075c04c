"""PATS carried over to nodes: the one with the largest relative speed · idle share.

PATS itself (Teodoro et al.) chooses computing units: in order of speedup, GPUs take the subtasks with the most and
cores those with the least (subtasks/baselines.py). The choice of nodes is our reading of it, as LDWP compares with it
on a cluster.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.domain.job import Job, Subtask
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import ScoredPolicy, Terms
from placewise_core.gang.offer import Offer
from placewise_core.policies.profiled.completion import NodeSpeeds
from placewise_core.policies.profiled.tables import GpuSpeeds
from placewise_core.subtasks.metrics import SPEEDUP, KnownMetrics, SubtaskMetrics
from placewise_core.view.nodes import TELEMETRY_COLUMNS
from placewise_core.view.view import CPU, GPUS, ClusterView

_BUSY = [TELEMETRY_COLUMNS.index(name) for name in ("cpu_util", "gpu_util")]
_LEAST_IDLE = 1e-3  # of busy nodes the faster one


class RelativePerformance(ScoredPolicy):
    """Score = relative speedup · idle share of the kind of unit the task runs on.

    PATS weighs the speedup that a task has on an accelerator with the loads of CPUs and GPUs. Read for nodes: for a
    task on GPUs, its speed on the node's GPUs over that on the slowest feasible node, times the share of the node's
    GPUs that is idle; for a CPU task the same with CPUs. Jobs with most to gain choose first. For a pipeline, which
    runs on cores and GPUs alike: the speed of both that is idle, over the tasks there. Its speedups are those on
    `reference_gpu`; "" means the mean GPU of the cluster.
    """

    name = "pats"

    def __init__(self, gpu_speeds: GpuSpeeds, reference_gpu: str = "") -> None:
        self._gpu_speeds, self._reference_gpu = gpu_speeds, reference_gpu
        self._speeds = NodeSpeeds(gpu_speeds)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        names = view.nodes.gpu_model_names()
        return sorted(jobs, key=lambda job: -self._spread(job, names))

    def scores(self, offer: Offer) -> FloatArray:
        return self._speed(offer) if offer.job.subtasks else self._speedup(offer) * _idle(offer)

    def terms(self, offer: Offer, m: int) -> Terms:
        if offer.job.subtasks:
            return (("pace", float(self._speed(offer)[0, m])), ("tasks", float(offer.task_count[0, m])))
        return (("speedup", float(self._speedup(offer)[m])), ("idle", float(_idle(offer)[0, m])))

    def _speed(self, offer: Offer) -> FloatArray:
        """(J, N) of a pipeline."""
        view, at = offer.view, offer.at
        speedup = _mean_speedup(offer.job.subtasks, KnownMetrics.from_view(view))
        gpus, speeds = view.nodes.capacity[GPUS], self._speeds.on_gpus(view, offer.job.model)
        on_cores = view.nodes.capacity[CPU, at] * self._speeds.on_cpus(view)[at]
        on_gpus = (gpus * speeds)[at] / self._reference(offer.job.model, gpus, speeds) * speedup
        cpu_util, gpu_util = (np.nan_to_num(view.nodes.telemetry[row, at]) for row in _BUSY)
        return _idle_speed(on_cores, on_gpus, cpu_util, gpu_util, offer.task_count)

    def _reference(self, model: str, gpus: FloatArray, speeds: FloatArray) -> float:
        """Speed of the GPU that speedups are measured on."""
        if self._reference_gpu:
            return self._gpu_speeds.of(model, self._reference_gpu)
        return float(np.average(speeds, weights=gpus)) if gpus.any() else 1.0

    def _speedup(self, offer: Offer) -> FloatArray:
        """(N,) over the slowest node that may take the task."""
        everywhere = self._speeds.of(offer.whole)
        slowest = np.minimum.reduce(everywhere, where=offer.whole.mask, initial=np.inf)
        return np.asarray(everywhere[offer.at] / slowest)

    def _spread(self, job: Job, gpu_models: Sequence[str]) -> float:
        """How much faster the job is on the fastest GPU model of the cluster than on the slowest."""
        speeds = [self._gpu_speeds.of(job.model, name) for name in gpu_models]
        return max(speeds) / min(speeds) if speeds and job.gpus > 0 else 1.0


def _mean_speedup(subtasks: Sequence[Subtask], metrics: SubtaskMetrics) -> float:
    """Of those with a GPU version; 0 without any. An unknown one counts as 1."""
    gains = [metrics.of(subtask).get(SPEEDUP, 1.0) for subtask in subtasks if subtask.has_gpu_version]
    return sum(gains) / len(gains) if gains else 0.0


def _idle_speed(
    on_cores: FloatArray, on_gpus: FloatArray, cpu_util: FloatArray, gpu_util: FloatArray, tasks: IntArray
) -> FloatArray:
    """The idle part of each node's speed, on its cores and on its GPUs, over the tasks there."""
    idle = on_cores * (1.0 - cpu_util + _LEAST_IDLE) + on_gpus * (1.0 - gpu_util + _LEAST_IDLE)
    return np.asarray(idle / (1.0 + tasks))


def _idle(offer: Offer) -> FloatArray:
    """(J, N) idle share of the units."""
    row = GPUS if offer.demand[GPUS] > 0 else CPU
    idle: FloatArray = offer.free[row] * offer.inverse_capacity[row]
    np.minimum(np.maximum(idle, 0.0, out=idle), 1.0, out=idle)  # not clip: it takes longer than both
    idle += 1e-3
    return idle
