"""Fits the three forms of throughput to measured steps of one network on one GPU model. Judges nothing.

* `qos`: equations (5)–(8) of the QoS-aware paper, PR = (n − Comm)·Σ kᵢ bⁱ with Comm = γ·(λ·cross + within);
* `overlap`: a step takes (t_g^p + t_s^p)^(1/p), with t_g = a + c·b for the gradients and t_s = α + β(n − 2) for the
  synchronisation, one pair (α, β) inside a node and one across nodes (the form of Pollux, OSDI 2021, §3.2);
* `knots`: as `overlap`, with factors on t_g at the measured batches and t_s at the measured node counts that are held
  to 1 by a ridge penalty, and with powers of the GPUs per node (speed/forms.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from placewise_core.speed.forms import KnotForm, OverlapForm, QosForm, ThroughputForm
from placewise_training.throughput.data import Rows

Array = NDArray[np.float64]
_SOFT = 0.1  # relative error from which on a row counts linearly: some runs met a bad network
# Ridge weights: how far a row's error may grow (in the logarithm) for one unit of a parameter. Nothing here was chosen
# by placement; halving or doubling any of them moves the held-back error by less than 0.1 percentage points on T4.
_LOOSE, _RIDGE, _BATCH_RIDGE, _GROWTH_RIDGE = 0.01, 0.1, 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Fitted:
    """A form's fit and its answer for rows: (N,) samples per second."""

    fit: Callable[[Rows], ThroughputForm]
    predict: Callable[[ThroughputForm, Rows], Array]


def fit_qos(rows: Rows) -> QosForm:
    """Least relative error over k₀…k₂, γ·λ and γ; the batch is scaled to [0, 1] so that the problem is well posed."""
    scale = float(rows.local_batch.max())
    b = rows.local_batch / scale
    per_gpu = rows.throughput / rows.gpus

    def residuals(x: Array) -> Array:
        k0, k1, k2, across, inside = x
        comm = across * rows.cross + inside * rows.within
        predicted = (rows.gpus - comm) * (k0 + k1 * b + k2 * b**2)
        return rows.missed(np.asarray(predicted / rows.throughput - 1.0))

    middle = float(np.median(per_gpu))
    start = np.array([0.3 * middle, middle, -0.3 * middle, 0.3, 0.1])
    # Comm stays under 2, the fewest GPUs that communicate: a throughput is never negative.
    low = [-np.inf, -np.inf, -np.inf, 0.0, 1e-3]
    high = [np.inf, np.inf, np.inf, 1.95, 1.95]
    x = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, x_scale=np.abs(start)).x
    return QosForm(
        coefficients=(float(x[0]), float(x[1]), float(x[2])),
        batch_scale=scale,
        gamma=float(x[4]),
        lam=float(x[3] / x[4]),
        batch_min=float(rows.local_batch.min()),
        batch_max=scale,
    )


def fit_overlap(rows: Rows) -> OverlapForm:
    """Least error of the logarithm over a, c, two pairs (α, β) and p; the better of two starts."""

    def residuals(x: Array) -> Array:
        predicted = _overlap(x).throughput(rows.local_batch, rows.gpus, rows.nodes)
        return rows.missed(np.asarray(np.log(predicted / rows.throughput)))

    step = rows.gpus * rows.local_batch / rows.throughput
    a, c, middle = step.min() / 2, np.median(step / rows.local_batch), np.median(step)
    starts = ((a, c, 0.01, 1e-3, 0.05, 1e-3, 1.0), (a, c, *(middle * np.array([0.1, 0.01, 0.5, 0.01])), 1.0))
    found = [least_squares(residuals, np.log(start), loss="soft_l1", f_scale=_SOFT) for start in starts]
    return _overlap(min(found, key=lambda result: float(result.cost)).x)


def _overlap(x: Array) -> OverlapForm:
    a, c, alpha_in, beta_in, alpha_out, beta_out, p = (float(v) for v in np.exp(np.clip(x, -30.0, 10.0)))
    return OverlapForm(a, c, alpha_in, beta_in, alpha_out, beta_out, power=min(1.0 + p, 10.0))


def fit_knots(rows: Rows) -> KnotForm:
    """Least error of the logarithm, with a ridge on every deviation from simpler forms; the better of two starts.

    Knots lie at the batches and node counts that the rows have.
    """
    layout = _Layout.of(rows)
    step = rows.gpus * rows.local_batch / rows.throughput
    weights = layout.weights()

    def residuals(x: Array) -> Array:
        error = np.log(step * layout.form(x).throughput(rows.local_batch, rows.gpus, rows.nodes, rows.widest))
        error -= np.log(rows.gpus * rows.local_batch)
        return np.concatenate([_soft(rows.missed(error)), weights * (x - start)])

    found = []
    for level in (0.5, 0.1):  # of the synchronisation over the median step: it may be most of a step, or hidden
        start = layout.start(step, rows.local_batch, level)
        found.append(least_squares(residuals, start, max_nfev=200))
    return layout.form(min(found, key=lambda result: float(result.cost)).x)


def _soft(error: Array) -> Array:
    """Errors whose squares are the soft L1 loss: the penalties beside them must stay squares."""
    return np.asarray(np.sign(error) * _SOFT * np.sqrt(2.0 * (np.sqrt(1.0 + (error / _SOFT) ** 2) - 1.0)))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which entry of the parameter vector is what: a, c, batch factors, contention, α and κ inside and across, node
    factors, widths, batch growth, p. All but exponents are logarithms."""

    batches: tuple[float, ...]
    node_counts: tuple[float, ...]

    @classmethod
    def of(cls, rows: Rows) -> "_Layout":
        return cls(tuple(np.unique(rows.local_batch)), tuple(np.unique(rows.nodes[rows.nodes > 1])))

    def weights(self) -> Array:
        return np.array(
            [
                *(_LOOSE, _LOOSE, *[_BATCH_RIDGE] * len(self.batches), _BATCH_RIDGE),
                *(_LOOSE, _RIDGE, _LOOSE, _RIDGE, *[_RIDGE] * len(self.node_counts)),
                *(_RIDGE, _RIDGE, _RIDGE, _GROWTH_RIDGE, _LOOSE),
            ]
        )

    def start(self, step: Array, batch: Array, level: float) -> Array:
        a, c, median = np.log([step.min() / 2, np.median(step / batch), np.median(step)])
        flat_batches, flat_nodes = [0.0] * len(self.batches), [0.0] * len(self.node_counts)
        inside, across = median + np.log(0.2 * level), median + np.log(level)
        return np.array([a, c, *flat_batches, 0.0, inside, 0.3, across, 0.3, *flat_nodes, *[0.0] * 5])

    def form(self, x: Array) -> KnotForm:
        values = [float(v) for v in np.clip(x, -30.0, 10.0)]
        scale = [float(v) for v in np.exp(values)]
        i, j = 2 + len(self.batches), 7 + len(self.batches) + len(self.node_counts)
        return KnotForm(
            a=scale[0],
            c=scale[1],
            batches=self.batches,
            batch_factors=tuple(scale[2:i]),
            contention=values[i],
            alpha_node=scale[i + 1],
            growth_node=values[i + 2],
            node_counts=self.node_counts,
            alpha_network=tuple(scale[i + 3] * factor for factor in scale[i + 5 : j]),
            growth_network=values[i + 4],
            width=(values[j], values[j + 1], values[j + 2]),
            batch_growth=values[j + 3],
            power=min(1.0 + scale[j + 4], 10.0),
        )


def qos_prediction(form: QosForm, rows: Rows) -> Array:
    return form.throughput_over_paths(rows.local_batch, rows.gpus, rows.cross, rows.within)


def overlap_prediction(form: OverlapForm, rows: Rows) -> Array:
    return form.throughput(rows.local_batch, rows.gpus, rows.nodes)


def knots_prediction(form: KnotForm, rows: Rows) -> Array:
    return form.throughput(rows.local_batch, rows.gpus, rows.nodes, rows.widest)


FITS: Mapping[str, Fitted] = {
    "qos": Fitted(fit_qos, qos_prediction),  # type: ignore[arg-type]
    "overlap": Fitted(fit_overlap, overlap_prediction),  # type: ignore[arg-type]
    "knots": Fitted(fit_knots, knots_prediction),  # type: ignore[arg-type]
}
