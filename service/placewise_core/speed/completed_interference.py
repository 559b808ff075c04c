"""Slowdowns with some pairs measured by a site: those as measured, the rest of a model's row completed by a net.

Knows no net: a completion is handed in. Without one, or without measurements, the packaged table answers.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.bounded import Bounded
from placewise_core.domain.job import Job
from placewise_core.domain.model_names import canonical, nearest
from placewise_core.speed.co_runs import CoRunBook, KnownCoRuns
from placewise_core.speed.interference import GpuInterference, MeasuredInterference, composed
from placewise_core.speed.sharing_row import Square, known_row

# Models are named by users, in any number.
_KEPT_ANSWERS = 10_000
# What several clusters know, and what jobs that wait would bring, is asked for in turns.
_KEPT_PREDICTIONS = 16


class RowCompleter(Protocol):
    """A learned completion of a model's row (sharing_row.columns_of). Must not raise."""

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        """(C,) relative speeds from the assumed ones, (C,), and the measured ones, (C,) with NaN for holes; None
        if it cannot complete them."""
        ...


class CompletedInterference:
    """GpuInterference of a site that has measured: a pair it has measured; else the pair from the completed row of one
    of the two, or of both; else the table, which knows by name.

    `known` may not change. Three and more are composed as the table's are.
    """

    def __init__(self, table: MeasuredInterference, known: KnownCoRuns, completer: RowCompleter | None) -> None:
        self._table = table
        self._known = known
        self._completer = completer
        self._answers: Bounded[tuple[str, ...], float] = Bounded(_KEPT_ANSWERS)
        self._rows: Bounded[tuple[str, str], FloatArray | None] = Bounded(_KEPT_ANSWERS)

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        if not others:
            return 1.0
        key = (model, *others, gpu_model)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = composed([self._pair(model, other, gpu_model) for other in others])
        return found

    def _pair(self, model: str, other: str, gpu_model: str) -> float:
        a, b, gpu = canonical(model), canonical(other), canonical(gpu_model)
        measured = self._known.of(a, gpu).get(b)
        if measured is not None:
            return min(1.0, measured.own)
        completed = self._completed(a, b, gpu)
        return self._table.pair(model, other, gpu_model) if completed is None else completed

    def _completed(self, a: str, b: str, gpu: str) -> float | None:
        """Speed of `a` beside `b` from the rows of either: if the other is a reference model, else if it is like
        one; the mean if both rows have it."""
        found: dict[bool, list[float]] = {True: [], False: []}
        count = len(self._table.references)
        for model, other, first in ((a, b, 0), (b, a, count)):
            row = self._row(model, gpu)
            if row is None:
                continue
            if model == other:
                return float(row[-2])
            like = nearest(other, self._table.references)
            if like is not None:
                found[like == other].append(float(row[first + self._table.references.index(like)]))
        speeds = found[True] or found[False]
        return sum(speeds) / len(speeds) if speeds else None

    def _row(self, model: str, gpu: str) -> FloatArray | None:
        """The model's completed row on a GPU model; None without a measurement to complete it from."""
        key = (model, gpu)
        if key not in self._rows:
            self._rows[key] = self._complete(model, gpu)
        return self._rows[key]

    def _complete(self, model: str, gpu: str) -> FloatArray | None:
        if self._completer is None:
            return None
        names = self._table.references
        known = known_row(names, model, self._known.of(model, gpu))
        if np.isnan(known[:-1]).all():
            return None
        like = nearest(model, names)
        prior = Square.of(self._table, self._table.gpu_of(gpu)).row(None if like is None else names.index(like))
        if self._table.measured_gpu(gpu) is None or np.isnan(prior[-1]):
            known[-1] = np.nan  # steps on another GPU are no measure for these
        return self._completer.complete(prior, known)


class InterferenceSource:
    """Predicts slowdowns for one request: from the table, and from measurements and completions beyond it. `completer`
    is that of the bundle in force."""

    def __init__(self, table: MeasuredInterference, completer: RowCompleter | None = None) -> None:
        self.table = table
        self.completer = completer
        self._kept: Bounded[tuple[KnownCoRuns, RowCompleter | None], CompletedInterference] = Bounded(_KEPT_PREDICTIONS)

    def of(self, book: CoRunBook, jobs: Iterable[Job]) -> GpuInterference:
        """For jobs about to be placed on the cluster whose co-runs are in `book`."""
        if book.is_empty and not any(job.gpu_sharing.co_runs for job in jobs):  # nearly always
            return self.table
        key = book.known_with(jobs), self.completer
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = CompletedInterference(self.table, *key)
        return found
