"""Estimated speed of a task on each node, alone, and the load of nodes, which ECT and PATS compare.

Never looks at co-location. Both are kept per view and renewed for the nodes that changed.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.gang.offer import Offer
from placewise_core.policies.profiled.tables import GpuSpeeds
from placewise_core.view.nodes import TELEMETRY_COLUMNS
from placewise_core.view.view import CPU, GPU_MEMORY, GPUS, MEMORY, ClusterView

_ROW_LIST = (CPU, MEMORY, GPUS, GPU_MEMORY)
_ROWS = np.array(_ROW_LIST)
_MEASURED = np.array(
    [TELEMETRY_COLUMNS.index(name) for name in ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util")]
)


class NodeSpeeds:
    """Relative speed of a model's tasks on every node."""

    def __init__(self, gpu_speeds: GpuSpeeds) -> None:
        self._gpu_speeds = gpu_speeds
        self._kept: WeakKeyDictionary[ClusterView, tuple[int, dict[str, FloatArray]]] = WeakKeyDictionary()

    def of(self, offer: Offer) -> FloatArray:
        """(N,) > 0. A task on GPUs: the node's GPU model that is fastest for the job's model, over the reference GPU
        (measured, Gavel). A CPU task: the CPU clock over the cluster's mean; unknown clocks count as the mean."""
        view = offer.view
        stamp, kept = self._kept.get(view, (0, {}))
        if stamp != view.nodes.layout_stamp:
            kept = {}
            self._kept[view] = (view.nodes.layout_stamp, kept)
        key = offer.job.model if offer.demand[GPUS] > 0 else ""
        speeds = kept.get(key)
        if speeds is None:
            speeds = kept[key] = self.on_gpus(view, key) if offer.demand[GPUS] > 0 else self.on_cpus(view)
        return speeds if offer.nodes is None else speeds[offer.nodes]

    def on_gpus(self, view: ClusterView, model: str) -> FloatArray:
        """(M,) as `of` for a task on GPUs; 1 where nobody measured."""
        # gpu_model is -1 for a missing GPU: that picks the last entry.
        by_model = np.array([*(self._gpu_speeds.of(model, name) for name in view.nodes.gpu_model_names()), 0.0])
        speeds = by_model[view.nodes.gpu_model].max(axis=1, initial=0.0)
        return np.asarray(np.where(speeds > 0, speeds, 1.0))

    def on_cpus(self, view: ClusterView) -> FloatArray:
        """(M,) as `of` for a CPU task."""
        known = view.nodes.cpu_ghz > 0
        if not known.any():
            return np.ones(view.nodes.size)
        mean = view.nodes.cpu_ghz[known].mean()
        return np.asarray(np.where(known, view.nodes.cpu_ghz, mean) / mean)


@dataclass(slots=True)
class _CompletionTerms:
    """`terms` (3, 4, M), for the resources of _ROWS: 1 over the capacity; telemetry's shares, 0 where unknown; and 1
    over the number of resources the node has, 0 for one it lacks."""

    load: FloatArray
    terms: FloatArray
    stamps: IntArray
    telemetry_stamp: int


class NodeLoads:
    """Load of every node: LDWP's Load_i (7), the mean share of CPU, memory, GPUs and GPU memory in use; of each the
    larger of the promised and the measured amount."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[ClusterView, _CompletionTerms] = WeakKeyDictionary()

    def of(self, offer: Offer) -> FloatArray:
        """(J, N) in [0, 1], right for the nodes that may take the task. Do not write."""
        if offer.nodes is None and offer.depth == 1:
            return offer.kept(self._renewed(offer.view, offer.mask), self._after)
        return self._after(offer)

    def _after(self, offer: Offer) -> FloatArray:
        return _load(offer.free, self._of(offer.view).terms[:, :, None, offer.at])

    def _renewed(self, view: ClusterView, asked: BoolArray) -> FloatArray:
        kept = self._of(view)
        is_old = kept.stamps != view.usage.node_stamp
        is_old &= asked
        for m in is_old.nonzero()[0].tolist():
            kept.load[m] = _load_on(view, kept, m)
            kept.stamps[m] = view.usage.node_stamp[m]
        return kept.load

    def _of(self, view: ClusterView) -> _CompletionTerms:
        kept = self._kept.get(view)
        if kept is None or kept.telemetry_stamp != view.nodes.telemetry_stamp or len(kept.stamps) != view.nodes.size:
            kept = self._kept[view] = _begun(view)
        return kept


def _begun(view: ClusterView) -> _CompletionTerms:
    inverse = view.nodes.inverse_capacity[_ROWS]
    is_there = inverse > 0
    weights = is_there / np.maximum(1, is_there.sum(axis=0))
    kept = _CompletionTerms(
        load=np.zeros(view.nodes.size),
        terms=np.array([inverse, np.nan_to_num(view.nodes.telemetry[_MEASURED]), weights]),
        stamps=view.usage.node_stamp.copy(),
        telemetry_stamp=view.nodes.telemetry_stamp,
    )
    kept.load[:] = _load(view.usage.free, kept.terms)
    return kept


def _load(free: FloatArray, terms: FloatArray) -> FloatArray:
    """(…, M) load of nodes with so much free (R, …, M). A resource the node lacks counts in neither sum nor mean."""
    inverse, measured, weights = terms
    used = 1.0 - free[_ROWS] * inverse
    np.maximum(used, measured, out=used)
    np.minimum(used, 1.0, out=used)
    used *= weights
    return np.asarray(np.add.reduce(used, axis=0))


def _load_on(view: ClusterView, kept: _CompletionTerms, m: int) -> float:
    """`_load` of one node, to the last bit: for four numbers arrays take several times as long."""
    free = view.usage.free[:, m].tolist()
    load = 0.0
    for row, inverse, measured, weight in zip(_ROW_LIST, *kept.terms[:, :, m].tolist(), strict=True):
        used = 1.0 - free[row] * inverse
        used = max(used, measured)
        load += (used if used < 1.0 else 1.0) * weight
    return load
