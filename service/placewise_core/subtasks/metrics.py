"""Known metrics of subtasks: rows of IAWP's subtask description matrix, and the similarity of two of them.

The matrix may have holes: a learned completion takes the place of `KnownMetrics` behind the same Protocol.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.commands import SubtaskOutcome
from placewise_core.domain.job import Subtask
from placewise_core.view.view import ClusterView

# Columns of the matrix, as named in a subtask's `profile` (LDWP/IAWP, Table 2, and the speedup column of 4.3.1). Usages
# are shares of 1, throughputs in any one unit; speedup is GPU over one CPU core.
CPU_METRICS = ("cpu", "host_memory")
GPU_METRICS = ("sm", "l1", "l2", "texture", "dram", "load_throughput", "store_throughput")
SPEEDUP = "speedup"
METRICS = (*CPU_METRICS, *GPU_METRICS, SPEEDUP)
# Optional in a profile beside them: seconds per unit of size, on one core and on a GPU.
CORE_SECONDS = "core_s"
GPU_SECONDS = "gpu_s"
# And the GPU memory that one subtask takes, GiB.
GPU_MEMORY_GIB = "gpu_memory_gib"


class SubtaskMetrics(Protocol):
    """Metrics of subtasks, measured or completed."""

    def of(self, subtask: Subtask) -> Mapping[str, float]:
        """Metrics by name: those of METRICS that are known, and all others of its profile."""
        ...

    def on(self, gpu: int) -> "SubtaskMetrics":
        """The metrics on this GPU of a node; may be the same on each."""
        ...


class KnownMetrics:
    """The request's profile of the subtask first, then the store's row of its kind."""

    def __init__(self, profiles: Mapping[str, Mapping[str, float]]) -> None:
        self._profiles = profiles

    @classmethod
    def from_view(cls, view: ClusterView) -> "KnownMetrics":
        return cls(view.subtask_profiles)

    def of(self, subtask: Subtask) -> Mapping[str, float]:
        stored = self._profiles.get(subtask.kind)
        return {**stored, **subtask.profile} if stored else subtask.profile

    def on(self, gpu: int) -> "KnownMetrics":
        return self


def measured_times(outcome: SubtaskOutcome, known: Mapping[str, float]) -> dict[str, float]:
    """New entries in the row of a finished subtask's kind: seconds per unit of size on a core or a GPU, and the speedup
    once both times are known. The latest time stands, so that a repeated report changes nothing."""
    unit_s = CORE_SECONDS if outcome.unit.startswith("cpu") else GPU_SECONDS
    row = {unit_s: outcome.seconds / (outcome.size if outcome.size > 0 else 1.0)}
    core_s, gpu_s = ({**known, **row}.get(name, 0.0) for name in (CORE_SECONDS, GPU_SECONDS))
    if core_s > 0 and gpu_s > 0:
        row[SPEEDUP] = core_s / gpu_s
    return row


def gpu_vector(subtask: Subtask, metrics: SubtaskMetrics) -> FloatArray:
    """(8,) G = (SM, L1, L2, texture, DRAM, load, store, size) as it is; NaN where unknown."""
    known = metrics.of(subtask)
    row = [known.get(name, math.nan) for name in GPU_METRICS]
    return np.array([*row, subtask.size if subtask.size > 0 else math.nan])


def column_scales(vectors: Iterable[FloatArray]) -> FloatArray:
    """(8,) largest known value of each column, at least 0 < : what brings metrics to [0, 1] before the cosine, as
    otherwise the size, which counts frames, would outweigh the rest; the paper does not say."""
    stacked = np.abs(np.array([*vectors, np.zeros(len(GPU_METRICS) + 1)]))
    largest = np.minimum(np.fmax.reduce(stacked, axis=0), np.finfo(np.float64).max)  # fmax passes NaN over
    return np.asarray(np.where(largest > 0, largest, 1.0))


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Equation (6) over the metrics known of both; 1 (most alike) without any: the careful assumption."""
    known = ~(np.isnan(a) | np.isnan(b))
    x, y = a[known], b[known]
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms > 0 else 1.0
