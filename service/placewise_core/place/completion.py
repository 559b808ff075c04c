"""Estimated speed of a task on each node, alone: what ECT and PATS compare. Never looks at co-location."""

from dataclasses import dataclass

import numpy as np

from placewise_core.place.policy import TaskContext
from placewise_core.place.tables import GpuSpeeds
from placewise_core.view import TELEMETRY_COLUMNS, ClusterView, FloatArray

_CPU_UTIL, _MEMORY_UTIL, _GPU_UTIL, _GPU_MEMORY_UTIL = (
    TELEMETRY_COLUMNS.index(name) for name in ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util")
)


@dataclass(frozen=True)
class NodeSpeeds:
    """Relative speed of one task on every node."""

    gpu_speeds: GpuSpeeds

    def of(self, task: TaskContext) -> FloatArray:
        """(M,) > 0. A task on GPUs: that of the node's free GPU model fastest for the job's model, over the reference
        GPU (measured, Gavel). A CPU task: the CPU clock over the cluster's mean; unknown clocks count as the mean."""
        if task.demand[4] > 0:
            return self._gpu(task)
        return _cpu(task.view)

    def _gpu(self, task: TaskContext) -> FloatArray:
        view = task.view
        names = view.gpu_model_names()
        if not names:
            return np.ones(view.size)
        by_model = np.array([*(self.gpu_speeds.of(task.job.model, name) for name in names), 0.0])
        is_open = view.gpu_exists & (view.gpu_tenant_count == 0)
        is_open |= ~is_open.any(axis=1)[:, None] & view.gpu_exists  # only shared ones left
        speeds = np.where(is_open, by_model[view.gpu_model], 0.0).max(axis=1, initial=0.0)
        return np.where(speeds > 0, speeds, 1.0)


def _cpu(view: ClusterView) -> FloatArray:
    clocks = view.cpu_ghz
    known = clocks > 0
    if not known.any():
        return np.ones(view.size)
    mean = clocks[known].mean()
    return np.asarray(np.where(known, clocks, mean) / mean)


def node_load(view: ClusterView) -> FloatArray:
    """(M,) mean share of CPU, memory, GPUs and GPU memory in use, the larger of what was promised and what was measured
    (LDWP's Load_i, equation (7))."""
    rows = [0, 1, 4, 2]
    is_there = view.capacity[rows] > 0
    used = np.where(is_there, 1.0 - view.free[rows] * view.inverse_capacity[rows], 0.0)
    measured = view.telemetry[[_CPU_UTIL, _MEMORY_UTIL, _GPU_UTIL, _GPU_MEMORY_UTIL]]
    used = np.clip(np.fmax(used, measured), 0.0, 1.0)
    return np.asarray(used.sum(axis=0) / np.maximum(1, is_there.sum(axis=0)))
