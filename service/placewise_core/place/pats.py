"""PATS (LDWP's baseline): relative performance of the task on each node, weighed with the load of the node."""

from collections.abc import Sequence

import numpy as np

from placewise_core.job import Job
from placewise_core.place.completion import NodeSpeeds
from placewise_core.place.outlook import Outlook
from placewise_core.place.policy import PlaceContext, TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.place.tables import GpuSpeeds
from placewise_core.view import GPUS, BoolArray, ClusterView, FloatArray


class RelativePerformance(ScoredPolicy):
    """Score = relative speedup · idle share of the kind of unit the task runs on.

    PATS orders by the speedup a task has on an accelerator and balances that against the loads of CPUs and GPUs. On
    nodes that means: for a task on GPUs, its speed on the node's GPUs over that on the slowest feasible node, times
    the share of the node's GPUs that is idle; for a CPU task the same with CPUs. Jobs with most to gain choose first.
    """

    name = "pats"

    def __init__(self, gpu_speeds: GpuSpeeds) -> None:
        self._gpu_speeds = gpu_speeds
        self._speeds = NodeSpeeds(gpu_speeds)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        names = view.gpu_model_names()
        return sorted(jobs, key=lambda job: -self._spread(job, names))

    def scores(self, task: TaskContext) -> FloatArray:
        return _speedup(self._speeds.of(task), task.mask) * _idle(task.view, task.demand, task.view.free)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (
            ("speedup", float(_speedup(self._speeds.of(task), task.mask)[m])),
            ("idle", float(_idle(task.view, task.demand, task.view.free)[m])),
        )

    def _spread(self, job: Job, gpu_models: Sequence[str]) -> float:
        """How much faster the job is on the fastest GPU model of the cluster than on the slowest."""
        speeds = [self._gpu_speeds.of(job.model, name) for name in gpu_models]
        return max(speeds) / min(speeds) if speeds and job.gpus > 0 else 1.0

    def counted(self, outlook: Outlook) -> Sequence[int]:
        gang = outlook.gang
        speedup = _speedup(self._speeds.of(gang), gang.rooms >= 1.0)
        return outlook.greedy(speedup * _idle(gang.view, gang.demand, outlook.free))


def _speedup(speeds: FloatArray, mask: BoolArray) -> FloatArray:
    """(M,) over the slowest node of the mask."""
    return np.asarray(speeds / np.where(mask, speeds, np.inf).min(initial=np.inf))


def _idle(view: ClusterView, demand: FloatArray, free: FloatArray) -> FloatArray:
    """(…, M) idle share of the units, with so much free (R, …, M)."""
    row = GPUS if demand[GPUS] > 0 else 0
    idle: FloatArray = free[row] * view.inverse_capacity[row]
    np.minimum(np.maximum(idle, 0.0, out=idle), 1.0, out=idle)  # not clip: it takes longer than both
    idle += 1e-3
    return idle
