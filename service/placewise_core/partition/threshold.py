"""From what size on a task is split, and over how many units: equations (1)–(3) and Algorithm 3. Plain numbers."""

import math


def threshold_scale(units: int, capability: float, serial_capability: float, overhead_s: float) -> float:
    """T_n of equation (3) for n units of mean capability C_p beside a CPU of C_s; infinite where n·C_p ≤ C_s."""
    together = units * capability
    if together <= serial_capability:
        return math.inf
    gain = together * serial_capability * overhead_s / (together - serial_capability)
    return max(together * overhead_s, gain)


def unit_count(idle: int, parallel_scale: float, capability: float, serial_capability: float, overhead_s: float) -> int:
    """k: the largest n ≤ idle with T_p ≥ T_n, else 1 (Algorithm 3), without its loop.

    The first term of (3) grows with n, the second falls: the largest n the first allows is the one to test the second
    with, and where that fails every smaller n fails too. The walk down by a few is for rounding at the border.
    """
    if parallel_scale <= 0:
        return 1
    per_unit = capability * overhead_s
    n = idle if per_unit <= 0 or parallel_scale / per_unit >= idle else math.floor(parallel_scale / per_unit) + 1
    for candidate in range(n, max(n - 3, 1), -1):
        if parallel_scale >= threshold_scale(candidate, capability, serial_capability, overhead_s):
            return candidate
    return 1
