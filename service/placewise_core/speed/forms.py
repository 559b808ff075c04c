"""Three forms of data-parallel throughput, in samples per second. Formulas only: no profiles, no matching, no I/O.

Both take arrays that broadcast against each other: local batch b per GPU, GPUs n, and how they are spread.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewise_core.basics.frozen import frozen

Array = NDArray[np.float64]


class ThroughputForm(Protocol):
    """Throughput of a symmetric shape, and the compute time of one step on one GPU."""

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        """Samples per second of nodes × GPUs per node at that global batch."""
        ...

    def compute_s(self, local_batch: ArrayLike) -> Array:
        """Seconds of one step on one GPU without synchronisation (Cost_bat(b), Proteus (1))."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The coefficients as plain data, as the class's `from_dict` reads them."""
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


@frozen
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
        """Equation (8), reconstructed: GPUs' worth of throughput lost to communication."""
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


@frozen
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
        return np.asarray(n * b / _overlapped(compute, sync, self.power))

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        d, g = np.asarray(nodes, dtype=np.float64), np.asarray(gpus_per_node, dtype=np.float64)
        return self.throughput(global_batch / (d * g), d * g, d)

    def compute_s(self, local_batch: ArrayLike) -> Array:
        return np.asarray(self.a + self.c * np.asarray(local_batch, dtype=np.float64))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "OverlapForm":
        return cls(**{field.name: float(data[field.name]) for field in fields(cls)})


@frozen
class KnotForm:
    """As OverlapForm, but times follow measured points and depend on how the GPUs are spread over nodes.

    * t_g = (a + c·b) · f(b) · g^contention: f is read off `batches` (straight lines in log b), g is the most GPUs that
      the job has on one node, which share its cores and PCIe.
    * t_s is 0 for n = 1, α·(n/2)^κ inside a node, and α(d)·(n/2)^κ·g^(w₀ + w₁/d + w₂/d²) across d nodes; α(d) is read
      off `node_counts`. The last two are multiplied by (b/b_min)^`batch_growth`, as some gradients grow with the batch.

    Beyond the measured batches and node counts f and α keep their last value.
    """

    a: float
    c: float
    batches: tuple[float, ...]
    batch_factors: tuple[float, ...]
    contention: float
    alpha_node: float
    growth_node: float
    node_counts: tuple[float, ...]
    alpha_network: tuple[float, ...]
    growth_network: float
    width: tuple[float, float, float]
    batch_growth: float
    power: float

    def throughput(self, local_batch: ArrayLike, gpus: ArrayLike, nodes: ArrayLike, widest: ArrayLike) -> Array:
        """n·b/t for n GPUs on that many nodes, at most `widest` of them on one."""
        b, n = np.asarray(local_batch, dtype=np.float64), np.asarray(gpus, dtype=np.float64)
        d, log_g = np.asarray(nodes, dtype=np.float64), np.log(np.asarray(widest, dtype=np.float64))
        compute = self.compute_s(b) * np.exp(self.contention * log_g)
        return np.asarray(n * b / _overlapped(compute, self._sync_s(b, n, d, log_g), self.power))

    def _sync_s(self, b: Array, n: Array, d: Array, log_g: Array) -> Array:
        log_pairs = np.log(np.maximum(n, 2.0) / 2.0)
        w0, w1, w2 = self.width
        at_nodes = np.interp(np.log(d), _logs(self.node_counts), _logs(self.alpha_network)) if self.node_counts else 0.0
        across = at_nodes + self.growth_network * log_pairs + (w0 + (w1 + w2 / d) / d) * log_g
        inside = math.log(self.alpha_node) + self.growth_node * log_pairs
        least, most = self.batches[0], self.batches[-1]
        grown = np.log(np.minimum(np.maximum(b, least), most) / least)
        log_s = np.where(d > 1, across, inside) + self.batch_growth * grown
        return np.where(n < 2, 0.0, np.exp(np.minimum(log_s, _MOST_LOG_S)))

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        d, g = np.asarray(nodes, dtype=np.float64), np.asarray(gpus_per_node, dtype=np.float64)
        return self.throughput(global_batch / (d * g), d * g, d, g)

    def compute_s(self, local_batch: ArrayLike) -> Array:
        b = np.asarray(local_batch, dtype=np.float64)
        factor = np.exp(np.interp(np.log(b), _logs(self.batches), _logs(self.batch_factors)))
        return np.asarray((self.a + self.c * b) * factor)

    def as_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "KnotForm":
        """Raises ValueError if a list of knots and its values differ in length, or batches are missing."""
        values: dict[str, Any] = {
            name: tuple(float(v) for v in data[name]) if isinstance(data[name], list) else float(data[name])
            for name in [field.name for field in fields(cls)]
        }
        form = cls(**values)
        is_paired = len(form.batches) == len(form.batch_factors) > 0 and len(form.node_counts) == len(
            form.alpha_network
        )
        if not is_paired or len(form.width) != 3:
            raise ValueError("a profile's knots and their values do not match")
        return form


@frozen
class CarriedForm:
    """A profile on a GPU model that is `faster` times as fast as its own: every time is 1/faster of the profile's.

    Synchronisation counts as faster too. A cluster with faster GPUs tends to have a faster network, and the speed-ups
    are those that were measured.
    """

    steps: "ThroughputForm | CarriedForm"
    faster: float

    def shape_throughput(self, global_batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        return np.asarray(self.faster * self.steps.shape_throughput(global_batch, nodes, gpus_per_node))

    def compute_s(self, local_batch: ArrayLike) -> Array:
        return np.asarray(self.steps.compute_s(local_batch) / self.faster)


@lru_cache(maxsize=1024)  # four per profile
def _logs(values: tuple[float, ...]) -> Array:
    return np.log(values)


_MOST_LOG_S = 20.0  # sixteen years a step: far from anything fitted, and finite


def _overlapped(compute: Array, sync: Array, power: float) -> Array:
    """(t_g^p + t_s^p)^(1/p); the longer one is taken out, or powers would overflow or vanish."""
    longest = np.maximum(compute, sync)
    return np.asarray(longest * ((compute / longest) ** power + (sync / longest) ** power) ** (1.0 / power))
