"""Current computing capability of the nodes: equations (5) and (6) of the heat-island paper. Never looks at one task.

C_i = Σ k_j Q_j over CPU, memory, cache, GPU and GPU memory; Q_1 = f_i(1 − u_i)/Σ_j f_j(1 − u_j) and alike, so that the
busier of two equal nodes is the weaker (the text of the paper says the opposite of its own formula).
ΣC = 1 over the nodes. Times need a rate: C is then multiplied by the number of nodes, so that a computing scale of 1 is
the work of the average node's unit in one second, in the cluster's present state.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.view.nodes import TELEMETRY_COLUMNS
from placewise_core.view.view import MEMORY, ClusterView

COMPONENTS = ("cpu", "memory", "cache", "gpu", "gpu_memory")
_BUSY = [TELEMETRY_COLUMNS.index(f"{name}_util") for name in COMPONENTS]
_SUM_TOLERANCE = 1e-6


@frozen
class Weights:
    """k₁…k₅ of equation (5); their sum is 1. Raises ValueError if it is not, or one is negative."""

    cpu: float
    memory: float
    cache: float
    gpu: float
    gpu_memory: float

    def __post_init__(self) -> None:
        values = self.as_array()
        if (values < 0).any() or abs(float(values.sum()) - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"weights must be at least 0 and sum to 1, not {values.tolist()}")

    def as_array(self) -> FloatArray:
        return np.array([self.cpu, self.memory, self.cache, self.gpu, self.gpu_memory])

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "Weights":
        return cls(*(float(data[name]) for name in COMPONENTS))


def node_capabilities(
    view: ClusterView, gpu_memory_gib: FloatArray, has_gpu: BoolArray, weights: Weights, *, is_idle: bool = False
) -> FloatArray:
    """(5, M) the parts k_j·Q_j of every node's capability, in the order of COMPONENTS; they sum to 1 over all.

    `gpu_memory_gib` (M,) is the memory of a node's largest GPU. Hardware that a node does not report is taken
    to be the mean of those that do; an unreported utilisation is 0, and so is every one if `is_idle`.
    """
    cpu_ghz, cache_mib, gpu_ghz, _ = view.nodes.hardware
    everywhere = np.ones(view.nodes.size, dtype=np.bool_)
    sizes = (
        _known(cpu_ghz, everywhere),
        _known(view.nodes.capacity[MEMORY], everywhere),
        _known(cache_mib, everywhere),
        _known(gpu_ghz, has_gpu),
        _known(gpu_memory_gib, has_gpu),
    )
    busy = view.nodes.telemetry[_BUSY]
    parts = np.empty((len(COMPONENTS), view.nodes.size))
    for j, (k, size, util) in enumerate(zip(weights.as_array(), sizes, busy, strict=True)):
        current = size * (1.0 if is_idle else 1.0 - np.nan_to_num(util))
        with np.errstate(over="ignore"):
            total = current.sum()
            # The sum or its inverse is beyond all numbers; shares of the largest are not.
            if np.isinf(total) or (total > 0 and np.isinf(1.0 / total)):
                current = current / current.max()
                total = current.sum()
        parts[j] = current * (k / total) if total > 0 else 0.0
    return np.asarray(parts / max(float(parts.sum()), 1e-12))  # the rest takes the weight of missing resources


def _known(values: FloatArray, owners: BoolArray) -> FloatArray:
    """Values with 0 (unknown) replaced by the mean of the known ones among `owners`; 0 for those that are none."""
    is_known = (values > 0) & owners
    if is_known.all():
        return values
    mean = _mean(values[is_known]) if is_known.any() else 1.0
    return np.where(owners, np.where(is_known, values, mean), 0.0)


def _mean(values: FloatArray) -> float:
    """The mean, also if the sum overflows."""
    with np.errstate(over="ignore"):
        mean = float(values.mean())
    if np.isinf(mean):
        peak = float(values.max())
        mean = peak * float((values / peak).mean())
    return mean
