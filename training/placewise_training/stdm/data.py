"""Matrices with holes to complete: IAWP's subtask description matrix. Completes nothing.

Rows are drawn from the ranges of sim.pipelines. **Nobody has published measured metrics of subtasks**, so these rows
show whether a method can recover a structure that was put in, not how large errors are on real ones. The same problem
on real numbers is sharing/data.py.

Every value is in [0, 1]; NaN if unknown.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewise_core.subtasks.metrics import METRICS
from placewise_core.subtasks.scale import to_unit
from placewise_training.sim.pipelines.applications import draw_truths, subtask_truths

Matrix = NDArray[np.float64]

# Mean absolute error of IAWP's four-second profiles is 7.7 % (Table 3): of a normal, that is σ = 9.65 %.
PROFILE_ERROR = 0.077
_SIGMA = PROFILE_ERROR * (np.pi / 2.0) ** 0.5
_DRAWS = 997  # seeds of draws are (this, draw): never those of the simulator's truths


@dataclass(frozen=True, slots=True)
class Table:
    """`values` (R, C) with NaN for holes; `groups` (R,) the kind or network of each row: it is held back whole."""

    groups: tuple[str, ...]
    columns: tuple[str, ...]
    values: Matrix

    def where(self, chosen: NDArray[np.bool_]) -> "Table":
        """The rows chosen by a mask."""
        groups = tuple(group for group, is_in in zip(self.groups, chosen, strict=True) if is_in)
        return Table(groups, self.columns, self.values[chosen])

    def of(self, groups: set[str], *, inside: bool = True) -> "Table":
        """The rows of some groups, or all the others."""
        return self.where(np.array([(group in groups) == inside for group in self.groups]))


def subtask_matrix(draws: int, first: int = 0) -> Table:
    """`draws` variants of every kind that has a GPU version; others have no metrics to complete."""
    rows = [
        (kind, truth.profile())
        for draw in range(first, first + draws)
        for kind, truth in draw_truths(np.random.default_rng((_DRAWS, draw))).items()
        if truth.has_gpu_version
    ]
    return _table(rows)


def truth_matrix(truth: str) -> Table:
    """The subtasks of one of the simulator's truths."""
    return _table([(k, t.profile()) for k, t in subtask_truths(truth).items() if t.has_gpu_version])


def _table(rows: list[tuple[str, dict[str, float]]]) -> Table:
    values = np.array([to_unit(row) for _, row in rows])
    return Table(tuple(kind for kind, _ in rows), METRICS, values)


def profile_rows(values: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Short profiles: of each row of `values`, `count` drawn metrics with IAWP's profiling error; the rest is NaN."""
    order = np.where(np.isnan(values), 2.0, rng.random(values.shape)).argsort(axis=1).argsort(axis=1)
    noisy = np.clip(values * (1.0 + _SIGMA * rng.standard_normal(values.shape)), 0.0, 1.0)
    return np.where(order < count, noisy, np.nan)
