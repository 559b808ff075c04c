"""Cells of the description matrix from a decision log, for NCF and the completion, and their errors on later entries.

A cell that only some subtasks have ended for is the mean of a censored normal (Tobin 1958): a subtask that still runs
is slower than those that have ended, and to leave it out would make kinds look faster than they are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.subtasks.completed_metrics import LEAST_KNOWN
from placewise_core.subtasks.metrics import METRICS
from placewise_training.log.later import gain, held_back, named
from placewise_training.log.subtask_metrics import AT_LEAST, AT_MOST, VALUE, MetricEntries, MetricEntry

_ROUNDS = 50  # of EM
_LEAST_SPREAD = 1e-3


class LogMetrics(NamedTuple):
    """`cells` (kinds, METRICS) of the earlier entries, NaN for holes, and the kinds of its rows; later entries to judge
    by; the entries of the log by reason."""

    kinds: tuple[str, ...]
    cells: FloatArray
    later: Sequence[MetricEntry]
    counts: Mapping[str, int]


def log_metrics(where: str, before_s: float = 0.0) -> LogMetrics:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few entries."""
    log = held_back(MetricEntries, where, before_s)
    return LogMetrics(*cells_of(log.learn), log.later, log.counts)


def cells_of(entries: Sequence[MetricEntry]) -> tuple[tuple[str, ...], FloatArray]:
    """Kinds, and (kinds, METRICS) a mean for each cell that has a value."""
    by_cell: dict[tuple[str, str], list[MetricEntry]] = {}
    for entry in entries:
        by_cell.setdefault((entry.kind, entry.metric), []).append(entry)
    kinds = tuple(sorted({kind for kind, _ in by_cell}))
    cells = np.full((len(kinds), len(METRICS)), np.nan)
    for (kind, metric), several in by_cell.items():
        values, bound = np.array([each.value for each in several]), np.array([each.bound for each in several])
        if (bound == VALUE).any():
            cells[kinds.index(kind), METRICS.index(metric)] = np.clip(censored_mean(values, bound), 0.0, 1.0)
    return kinds, cells


def censored_mean(values: FloatArray, bound: IntArray) -> float:
    """Maximum likelihood mean of a normal of which some of the (N,) values are bounds, by EM: one of at least b counts
    as μ + σ·h(z) with z = (b − μ)/σ and the inverse Mills ratio h, one of at most b likewise from the other side."""
    is_bound = bound != VALUE
    known, limit, side = values[~is_bound], values[is_bound], np.where(bound[is_bound] == AT_LEAST, 1.0, -1.0)
    mean, spread = float(known.mean()), max(_LEAST_SPREAD, float(known.std()))
    for _ in range(_ROUNDS if len(limit) else 0):
        beyond = side * spread * np.array([_mills(z) for z in side * (limit - mean) / spread])
        first = known.sum() + (mean + beyond).sum()
        second = np.square(known).sum() + (mean**2 + spread**2 + beyond * (mean + limit)).sum()
        mean = float(first / len(values))
        spread = max(_LEAST_SPREAD, math.sqrt(max(0.0, float(second / len(values)) - mean**2)))
    return mean


def _mills(z: float) -> float:
    """φ(z) / (1 − Φ(z)); beyond 8, z + 1/z."""
    if z > 8.0:
        return z + 1.0 / z
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / (0.5 * math.erfc(z / math.sqrt(2.0)))


# (N, METRICS) cells → the same, completed.
Completed = Callable[[FloatArray], FloatArray]


def completion_report(where: str, log: LogMetrics, before: Completed, after: Completed) -> dict[str, Any]:
    """The part of the report about the log: kinds, and the errors of two completions on later entries, each asked with
    its own cell of the earlier ones hidden. Raises ValueError if no later entry is of a kind with two other metrics."""
    rows = {kind: i for i, kind in enumerate(log.kinds)}
    asked = [entry for entry in log.later if entry.kind in rows]
    cells = np.array([log.cells[rows[entry.kind]] for entry in asked]).reshape(-1, len(METRICS))
    columns = np.array([METRICS.index(entry.metric) for entry in asked], dtype=np.int64)
    cells[np.arange(len(asked)), columns] = np.nan
    is_enough = (~np.isnan(cells)).sum(axis=1) >= LEAST_KNOWN
    kept = [entry for entry, is_kept in zip(asked, is_enough, strict=True) if is_kept]
    if not kept:
        raise ValueError("no later entry can be judged: its kind needs two other metrics that are known")
    at = (np.arange(len(kept)), columns[is_enough])
    return _report(where, log, kept, *(completed(cells[is_enough])[at] for completed in (before, after)))


def table_report(
    where: str, log: LogMetrics, kinds: Sequence[str], before: FloatArray, after: FloatArray
) -> dict[str, Any]:
    """As completion_report, of two (kinds, METRICS) tables. Raises ValueError if no later entry is of these kinds."""
    kept = [entry for entry in log.later if entry.kind in kinds]
    if not kept:
        raise ValueError("no later entry is of a kind that was there before")
    at = ([kinds.index(entry.kind) for entry in kept], [METRICS.index(entry.metric) for entry in kept])
    return _report(where, log, kept, before[at], after[at])


def _report(
    where: str, log: LogMetrics, kept: Sequence[MetricEntry], before: FloatArray, after: FloatArray
) -> dict[str, Any]:
    errors = [entry_errors(kept, found) for found in (before, after)]
    later = gain(errors[0], errors[1], np.array([entry.time_s for entry in kept]))
    return {**named(where), "kinds": len(log.kinds), "counts": dict(log.counts), "later": later}


def entry_errors(entries: Sequence[MetricEntry], found: FloatArray) -> FloatArray:
    """(N,) |found − true|; beyond a bound there is none."""
    over = found - np.array([entry.value for entry in entries])
    bound = np.array([entry.bound for entry in entries])
    above = np.where(bound == AT_MOST, np.maximum(over, 0.0), np.abs(over))
    return np.asarray(np.where(bound == AT_LEAST, np.maximum(-over, 0.0), above))
