"""Plain ways to complete a matrix: column means, nearest rows, matrix factorisation. A net has to beat them.

Each takes a history (R, C) and rows with a few known values (N, C), NaN where unknown, and returns all (N, C) values.
Strengths (k, ridge) are chosen on the history itself, by holding back whole groups of it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placewise_training.stdm.data import Matrix, Table, profile_rows

NEIGHBOURS = (1, 3, 5, 10, 20, 40)
RANKS = (1, 2, 3, 4)
RIDGES = (0.003, 0.01, 0.03, 0.1)


# (values, how much is known of each row, draws) → the rows with all else hidden.
Hide = Callable[[Matrix, int, np.random.Generator], Matrix]


class Completer(Protocol):
    """Anything that completes rows."""

    def __call__(self, history: Matrix, partial: Matrix) -> Matrix: ...


def column_means(history: Matrix, partial: Matrix) -> Matrix:
    """Every hole gets the mean of its column, or of the table if the column is empty."""
    means = _means(history)
    return np.where(np.isnan(partial), means, partial)


def nearest_rows(neighbours: int) -> Completer:
    """The mean of the rows that are nearest in the known columns."""

    def complete(history: Matrix, partial: Matrix) -> Matrix:
        means = _means(history)
        completed = partial.copy()
        for row in completed:
            known = ~np.isnan(row)
            gaps = np.where(np.isnan(history[:, known]), means[known], history[:, known]) - row[known]
            nearest = np.argsort(np.square(gaps).sum(axis=1), kind="stable")[:neighbours]
            row[~known] = _filled_means(history[nearest], means)[~known]
        return completed

    return complete


def factorised(rank: int, ridge: float) -> Completer:
    """R ≈ mean + U Vᵀ (equation 2 of LDWP/IAWP): alternating ridge regressions; new rows by one more."""

    def complete(history: Matrix, partial: Matrix) -> Matrix:
        means = _means(history)
        centred = history - means
        items = np.random.default_rng(0).normal(0.0, 0.1, (history.shape[1], rank))
        for _ in range(30):
            users = _regress(centred, items, ridge)
            items = _regress(centred.T, users, ridge)
        found = means + _regress(partial - means, items, ridge) @ items.T
        return np.where(np.isnan(partial), np.clip(found, 0.0, 1.0), partial)

    return complete


def _regress(values: Matrix, factors: Matrix, ridge: float) -> Matrix:
    """(R, K) ridge solution of values ≈ X factorsᵀ over the known cells of each row."""
    known = ~np.isnan(values)
    grams = np.einsum("rc,ck,cl->rkl", known.astype(np.float64), factors, factors) + ridge * np.eye(factors.shape[1])
    solved: Matrix = np.linalg.solve(grams, (np.nan_to_num(values) @ factors)[:, :, None])[:, :, 0]
    return solved


def _means(history: Matrix) -> Matrix:
    counts = (~np.isnan(history)).sum(axis=0)
    everything = float(np.nanmean(history))
    return np.where(counts > 0, np.nansum(history, axis=0) / np.maximum(1, counts), everything)


def _filled_means(rows: Matrix, means: Matrix) -> Matrix:
    counts = (~np.isnan(rows)).sum(axis=0)
    return np.where(counts > 0, np.nansum(rows, axis=0) / np.maximum(1, counts), means)


def chosen_neighbours(history: Table, known: int, hide: Hide = profile_rows) -> Completer:
    """Nearest rows with the k that does best on held-back groups of the history."""
    return _best([nearest_rows(k) for k in NEIGHBOURS], history, known, hide)


def chosen_factors(history: Table, known: int, hide: Hide = profile_rows) -> Completer:
    """Matrix factorisation with the rank and ridge that do best on held-back groups of the history."""
    return _best([factorised(rank, ridge) for rank in RANKS for ridge in RIDGES], history, known, hide)


def _best(candidates: Sequence[Completer], history: Table, known: int, hide: Hide) -> Completer:
    return min(candidates, key=_held_back_error(history, known, hide))


def _held_back_error(history: Table, known: int, hide: Hide) -> Callable[[Completer], float]:
    folds = [(history.of({group}, inside=False), history.of({group})) for group in sorted(set(history.groups))]
    seen = [hide(out.values, known, np.random.default_rng((i, 7))) for i, (_, out) in enumerate(folds)]

    def error(candidate: Completer) -> float:
        wrong = [
            np.abs(candidate(rest.values, partial) - out.values)[holes(out.values, partial)]
            for (rest, out), partial in zip(folds, seen, strict=True)
        ]
        return float(np.concatenate(wrong).mean())

    return error


def holes(true: Matrix, partial: Matrix) -> NDArray[np.bool_]:
    """Cells that were not known to the completer, and whose value is known to the judge."""
    return np.isnan(partial) & ~np.isnan(true)
