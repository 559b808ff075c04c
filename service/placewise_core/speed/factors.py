"""Factors on the forecasts of one model's throughput on one GPU type, by a site's measurements, for each shape and
batch. Estimates nothing: speed/learned/throughputs.py makes them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen

_STEP = 0.02  # of the logarithm: an estimate that hardly moved stays, and so does the refusal that was logged with it


@dataclass(frozen=True, slots=True)
class Spots:
    """K points of throughput: number of nodes, GPUs on all of them, and ln(batch per GPU); each (K,)."""

    nodes: FloatArray
    gpus: FloatArray
    log_batch: FloatArray


@frozen
class Alike:
    """How alike the errors of a forecast are: those of one shape vary by `shape`, and with the batch by `batch`; at
    batches that differ by e^`reach` the latter are alike by e^−½."""

    shape: float
    batch: float
    reach: float

    @property
    def variance(self) -> float:
        """Of the error of one shape at one batch."""
        return self.shape**2 + self.batch**2

    def covariance(self, one: Spots, other: Spots) -> FloatArray:
        """(K, N) of the errors at K and at N points."""
        is_same = one.nodes[:, None] == other.nodes[None, :]
        is_same = is_same & (one.gpus[:, None] == other.gpus[None, :])
        apart = (one.log_batch[:, None] - other.log_batch[None, :]) / self.reach
        return np.asarray(self.shape**2 * is_same + self.batch**2 * np.exp(-0.5 * apart * apart))


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """ln(measured / forecast) is `level` + Σ `weights` · covariance with the measured spots. Caches of speeds have the
    object itself in their keys."""

    level: float
    spots: Spots
    weights: FloatArray
    alike: Alike

    def at(self, batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> FloatArray:
        """The factor at a global batch, of each shape, broadcast over both."""
        d, per_node = np.broadcast_arrays(np.asarray(nodes, np.float64), np.asarray(gpus_per_node, np.float64))
        gpus = d * per_node
        spots = Spots(d.ravel(), np.rint(gpus).ravel(), np.log(batch / gpus).ravel())
        logs = self.level + self.alike.covariance(spots, self.spots) @ self.weights
        return np.exp(np.rint(logs / _STEP) * _STEP).reshape(d.shape)
