"""Proteus' cost of a job on n GPUs: equations (1) and (4)–(6). Never decides how many GPUs a job gets.

With the contract's global batch B, a GPU's batch is b = B/n, so that m/(n·b) = m/B steps per epoch: the formulas as
printed, with α(b) taken from the fitted single-GPU profile instead of a table per network.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job
from placewise_core.speed.params import params_millions
from placewise_core.speed.throughput import Match, ThroughputModel, global_batch

Array = NDArray[np.float64]
_BYTES_PER_PARAMETER = 4.0  # fp32 gradients
_GIGABIT_BYTES = 1e9 / 8


@frozen
class Bandwidth:
    """Gbit/s between GPUs of one node, and between nodes (BW of equation (5), which has only one)."""

    node_gbps: float = 96.0  # PCIe 3.0 ×16 as measured, 12 GB/s
    network_gbps: float = 10.0  # if no node reports its network


class ProteusCost:
    """C(n) = Cost(n) + Comm(n) of one job, in seconds."""

    def __init__(self, model: ThroughputModel, job: Job, match: Match, bandwidth: Bandwidth, default_s: float) -> None:
        self._form = match.profile.form
        self._batch = global_batch(job, match)
        self.single_s = model.single_gpu_s(job, match, default_s)
        self._step_s = model.step_s(match, self._batch)
        self._unit_step_s = model.step_s(match, 1.0)
        # em/b at n = 1; if the job gives its time on one GPU, the number of steps in that time.
        self._steps = self.single_s / self._step_s
        size = params_millions(job.model, job.params_millions) or match.profile.params_millions
        self._gradient_bytes = size * 1e6 * _BYTES_PER_PARAMETER
        self._bandwidth = bandwidth

    def alpha(self, local_batch: ArrayLike) -> Array:
        """α(b) of equation (1): time of a step of batch b over that of a step of batch 1."""
        return np.asarray(self._form.compute_s(local_batch) / self._unit_step_s)

    def cost_s(self, gpus: ArrayLike) -> Array:
        """Cost(n) of equation (4); Cost(1) is the job's time on one GPU."""
        n = np.asarray(gpus, dtype=np.float64)
        step = self.alpha(self._batch / n) * self._unit_step_s
        return np.asarray(step * self._steps)

    def comm_s(self, gpus: ArrayLike, nodes: ArrayLike) -> Array:
        """Comm(n) of equation (5); 0 for n = 1, where gradients do not leave the GPU (ours: (5) has no such case)."""
        n, d = np.asarray(gpus), np.asarray(nodes)
        gbps = np.where(d > 1, self._bandwidth.network_gbps, self._bandwidth.node_gbps)
        return np.asarray(np.where(n > 1, self._steps * self._gradient_bytes / (gbps * _GIGABIT_BYTES), 0.0))

    def total_s(self, gpus: ArrayLike, nodes: ArrayLike) -> Array:
        """C(n) of equation (6)."""
        return self.cost_s(gpus) + self.comm_s(gpus, nodes)


class FixedBatchCost(ProteusCost):
    """(4)–(6) as printed: the job's batch b is one GPU's for every n, so that n GPUs take n times as much in a
    step. One bandwidth BW, the network's."""

    def cost_s(self, gpus: ArrayLike) -> Array:
        """Cost(n) = Cost_bat(b)·e·m/(b·n)."""
        return np.asarray(self.single_s / np.asarray(gpus, dtype=np.float64))

    def comm_s(self, gpus: ArrayLike, nodes: ArrayLike) -> Array:
        """Comm(n) = (m/(n·b)·e)·params/BW; 0 for n = 1 as in ProteusCost."""
        n = np.asarray(gpus, dtype=np.float64)
        per_step_s = self._gradient_bytes / (self._bandwidth.network_gbps * _GIGABIT_BYTES)
        return np.asarray(np.where(n > 1, self._steps / n * per_step_s, 0.0))
