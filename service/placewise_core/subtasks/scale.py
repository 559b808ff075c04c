"""Subtask metrics on the scale a completion works on, and back. Knows no net."""

import math
from collections.abc import Mapping

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.subtasks.metrics import METRICS, SPEEDUP

MOST_SPEEDUP = 50.0


def to_unit(metrics: Mapping[str, float]) -> FloatArray:
    """(10,) in the order of METRICS, NaN where unknown: shares as they are, speedup as log(1 + s) / log(1 + 50).

    Throughputs must be shares of the GPU's; raises ValueError for a share outside [0, 1] or a negative speedup.
    """
    row = np.full(len(METRICS), math.nan)
    for i, name in enumerate(METRICS):
        if name not in metrics:
            continue
        value = metrics[name]
        if name == SPEEDUP:
            value = math.log1p(min(value, MOST_SPEEDUP)) / math.log1p(MOST_SPEEDUP) if value >= 0 else -1.0
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} is {metrics[name]}: give a value from 0 to 1")
        row[i] = value
    return row


def from_unit(row: FloatArray) -> dict[str, float]:
    """Back to metrics by name, of those that are not NaN."""
    found = {name: float(value) for name, value in zip(METRICS, row, strict=True) if not math.isnan(value)}
    if SPEEDUP in found:
        found[SPEEDUP] = math.expm1(found[SPEEDUP] * math.log1p(MOST_SPEEDUP))
    return found
