"""Asymmetric shares: every unit is done at the same time, unless heat or earlier work says otherwise.

T_i = T_p·C_i/ΣC makes t = max T_i/C_i least (equation (4)). With limits the same argument gives a water level λ:
unit i works from s_i (when it is free) up to λ, for no longer than it may, T_i = C_i·clip(λ − s_i, 0, cap_i).
"""

import numpy as np

from placewise_core.basics.arrays import FloatArray


def proportional(scale: float, capability: FloatArray) -> FloatArray:
    """(K,) T_i = T_p·C_i/ΣC."""
    return np.asarray(scale * capability / capability.sum())


def levelled(scale: float, capability: FloatArray, start_s: FloatArray, cap_s: FloatArray) -> FloatArray:
    """(K,) shares that sum to `scale` with the least max(start + T_i/C_i), each at most cap_s·C_i.

    All arguments (K,); `cap_s` may be infinite. Raises ValueError if the caps leave room for less than `scale`.
    """
    room = float((capability * cap_s).sum())
    if scale > room:
        raise ValueError(f"the units take {room:g} within their caps, less than the scale {scale:g}")
    if not start_s.any() and bool((scale / capability.sum() <= cap_s).all()):
        return proportional(scale, capability)
    level = _water_level(scale, capability, start_s, cap_s)
    shares = capability * np.clip(level - start_s, 0.0, cap_s)
    # The level is exact up to rounding; the remainder is put on units with room, so that the sum is exact.
    room_left = np.where(np.isfinite(cap_s), capability * cap_s - shares, np.inf)
    last = int(np.argmax(np.where(shares > 0, room_left, -1.0)))
    shares[last] = max(shares[last] + scale - float(shares.sum()), 0.0)
    return np.asarray(np.minimum(shares, capability * cap_s))


def _water_level(scale: float, capability: FloatArray, start_s: FloatArray, cap_s: FloatArray) -> float:
    """λ with Σ C_i·clip(λ − s_i, 0, cap_i) = scale: piecewise linear in λ, with a bend at every s_i and s_i + cap_i."""
    is_capped = np.isfinite(cap_s)
    bends = np.concatenate([start_s, (start_s + cap_s)[is_capped]])
    slopes = np.concatenate([capability, -capability[is_capped]])
    order = np.argsort(bends, kind="stable")
    bends, slope = bends[order], np.cumsum(slopes[order])
    filled = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(bends))])
    i = int(np.searchsorted(filled, scale, side="right")) - 1
    if slope[i] <= 0:  # everything is capped: the last bend is the level
        return float(bends[i])
    return float(bends[i] + (scale - filled[i]) / slope[i])
