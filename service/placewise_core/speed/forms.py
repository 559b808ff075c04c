"""Two forms of data-parallel throughput, in samples per second. Formulas only: no profiles, no matching, no I/O.

Both take arrays that broadcast against each other: local batch b per GPU, GPUs n, and how they are spread.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class ThroughputForm(Protocol):
    """Throughput of a symmetric shape, and the compute time of one step on one GPU."""

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        """Samples per second of nodes × GPUs per node at that global batch."""
        ...

    def compute_s(self, local_batch: ArrayLike) -> Array:
        """Seconds of one step on one GPU without synchronisation (Cost_bat(b), Proteus (1))."""
        ...


def path_shares(gpus_per_node: ArrayLike) -> tuple[float, float]:
    """Shares of a GPU's peers that are on other nodes, and on its own: the two path lengths of QoS (8).

    For d nodes of g GPUs: (d − 1)·g/(dg − 1) and (g − 1)/(dg − 1); for uneven nodes the mean over GPUs; (0, 0) alone.
    """
    g = np.asarray(gpus_per_node, dtype=np.float64)
    n = g.sum()
    if n < 2:
        return 0.0, 0.0
    pairs = n * (n - 1)
    return float((g * (n - g)).sum() / pairs), float((g * (g - 1)).sum() / pairs)


def _symmetric_shares(nodes: Array, gpus_per_node: Array) -> tuple[Array, Array]:
    peers = np.maximum(nodes * gpus_per_node - 1.0, 1.0)
    return (nodes - 1.0) * gpus_per_node / peers, (gpus_per_node - 1.0) / peers


@dataclass(frozen=True, slots=True)
class QosForm:
    """QoS-aware paper, (5)–(8): PR = (n − Comm(s))·Σᵢ kᵢ (b/scale)ⁱ, Comm = γ·(λ·cross + within).

    Outside the measured batches the quadratic means nothing: below, a step takes as long as the smallest one measured;
    above, samples per second stay (the batch is worked off in parts).
    """

    coefficients: tuple[float, float, float]
    batch_scale: float
    gamma: float
    lam: float
    batch_min: float
    batch_max: float

    def single_throughput(self, local_batch: ArrayLike) -> Array:
        """sPR(b) of equation (7)."""
        b = np.asarray(local_batch, dtype=np.float64)
        x = np.clip(b, self.batch_min, self.batch_max) / self.batch_scale
        k0, k1, k2 = self.coefficients
        floor = 1e-6 * (abs(k0) + abs(k1) + abs(k2))  # a fitted parabola may touch zero; a speed may not
        return np.asarray(np.maximum(k0 + k1 * x + k2 * x * x, floor) * np.minimum(b / self.batch_min, 1.0))

    def comm(self, cross: ArrayLike, within: ArrayLike) -> Array:
        """Equation (8): GPUs' worth of throughput lost to communication."""
        return np.asarray(self.gamma * (self.lam * np.asarray(cross) + np.asarray(within)), dtype=np.float64)

    def throughput_over_paths(
        self, local_batch: ArrayLike, gpus: ArrayLike, cross: ArrayLike, within: ArrayLike
    ) -> Array:
        """Equation (5), for any spread given by its path shares."""
        return np.asarray((np.asarray(gpus) - self.comm(cross, within)) * self.single_throughput(local_batch))

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        d, g = np.asarray(nodes, dtype=np.float64), np.asarray(gpus_per_node, dtype=np.float64)
        cross, within = _symmetric_shares(d, g)
        return self.throughput_over_paths(global_batch / (d * g), d * g, cross, within)

    def compute_s(self, local_batch: ArrayLike) -> Array:
        b = np.asarray(local_batch, dtype=np.float64)
        return np.asarray(b / self.single_throughput(b))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "coefficients": list(self.coefficients)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "QosForm":
        k0, k1, k2 = (float(v) for v in data["coefficients"])
        rest = {name: float(data[name]) for name in ("batch_scale", "gamma", "lam", "batch_min", "batch_max")}
        return cls((k0, k1, k2), **rest)


@dataclass(frozen=True, slots=True)
class OverlapForm:
    """A step of t = (t_g^p + t_s^p)^(1/p) seconds: gradients t_g = a + c·b partly hide the synchronisation t_s.

    t_s = 0 alone, α + β·(n − 2) otherwise, with one pair inside a node and one across (Pollux, OSDI 2021, §3.2).
    """

    a: float
    c: float
    alpha_node: float
    beta_node: float
    alpha_network: float
    beta_network: float
    power: float

    def throughput(self, local_batch: ArrayLike, gpus: ArrayLike, nodes: ArrayLike) -> Array:
        """n·b/t for n GPUs on that many nodes."""
        b, n = np.asarray(local_batch, dtype=np.float64), np.asarray(gpus, dtype=np.float64)
        is_local = np.asarray(nodes) <= 1
        more = np.maximum(n - 2.0, 0.0)
        alpha = np.where(is_local, self.alpha_node, self.alpha_network)
        beta = np.where(is_local, self.beta_node, self.beta_network)
        sync = np.where(n < 2, 0.0, alpha + beta * more)
        compute = self.compute_s(b)
        longest = np.maximum(compute, sync)  # taken out of the power mean, which would overflow or vanish otherwise
        step = longest * ((compute / longest) ** self.power + (sync / longest) ** self.power) ** (1.0 / self.power)
        return np.asarray(n * b / step)

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        d, g = np.asarray(nodes, dtype=np.float64), np.asarray(gpus_per_node, dtype=np.float64)
        return self.throughput(global_batch / (d * g), d * g, d)

    def compute_s(self, local_batch: ArrayLike) -> Array:
        return np.asarray(self.a + self.c * np.asarray(local_batch, dtype=np.float64))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OverlapForm":
        return cls(**{name: float(data[name]) for name in cls.__slots__})
