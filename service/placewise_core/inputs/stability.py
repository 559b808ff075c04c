"""Population stability index (PSI) of one input column: recent values beside earlier ones. Judges nothing."""

from typing import Final

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray

BINS: Final = 10
_HALF: Final = 0.5  # added to each count, so that an empty bin has a logarithm


def edges(reference: FloatArray, bins: int = BINS) -> FloatArray:
    """(E,) edges of the bins: the quantiles of the reference, equal ones merged; empty if all are NaN."""
    known = reference[~np.isnan(reference)]
    return np.unique(np.quantile(known, np.linspace(0.0, 1.0, bins + 1)[1:-1])) if len(known) else np.empty(0)


def counted(values: FloatArray, edges: FloatArray) -> IntArray:
    """(2E + 2,) counts: below the first edge, on each edge, between each two, above the last, and of NaN."""
    is_missing = np.isnan(values)
    present = values[~is_missing]
    place = np.searchsorted(edges, present, side="left") + np.searchsorted(edges, present, side="right")
    counts = np.bincount(place, minlength=2 * len(edges) + 1)
    return np.append(counts, is_missing.sum())


def psi(recent: FloatArray | IntArray, reference: FloatArray | IntArray) -> FloatArray:
    """Σ_k (p_k − q_k) ln(p_k / q_k) of (…, K) counts, p recent, q the reference; bins without any are left out
    (Siddiqi 2006)."""
    used = (recent + reference).reshape(-1, recent.shape[-1]).sum(axis=0) > 0
    p, q = recent[..., used] + _HALF, reference[..., used] + _HALF
    p, q = p / p.sum(axis=-1, keepdims=True), q / q.sum(axis=-1, keepdims=True)
    return np.asarray(((p - q) * np.log(p / q)).sum(axis=-1))
