"""Types of the arrays that core computes on, and the few least of many."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Float32 = NDArray[np.float32]


def least(cost: FloatArray, count: int) -> IntArray:
    """(count,) places of the smallest costs, ascending, the lowest of equal ones; no full sort of thousands."""
    bound = np.partition(cost, count - 1)[count - 1]
    below = np.flatnonzero(cost < bound)
    equal = np.flatnonzero(cost == bound)[: count - len(below)]
    return np.concatenate([below[np.argsort(cost[below], kind="stable")], equal])
