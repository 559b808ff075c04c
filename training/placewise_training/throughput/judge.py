"""How wrong a throughput model is on placements it never saw, and how wrong the rows themselves are. Fits nothing.

Repeats of one configuration differ. A table of measurements errs as much as one repeat differs from the mean of
the others; a perfect model errs by √((r − 1)/r) of that with r repeats, for the mean of r − 1 rows has noise as well.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placewise_training.throughput.data import Array, Group, Rows

F = TypeVar("F")
Bools = NDArray[np.bool_]
FOLDS = 5
_RESAMPLES = 2000


def held_out_logs(rows: Rows, fit: Callable[[Rows], F], predict: Callable[[F, Rows], Array], split: int = 0) -> Array:
    """(N,) log of predicted over measured for every row when its placement was not in the fit: 5 folds over placements,
    by seed."""
    shuffled = np.random.default_rng(split).permutation(np.unique(rows.placement))
    logs = np.zeros(len(rows.gpus))
    folds = min(FOLDS, len(shuffled))
    for k in range(folds):
        test = np.isin(rows.placement, shuffled[k::folds])
        held_back = rows.take(test)
        logs[test] = held_back.missed(np.log(predict(fit(rows.take(~test)), held_back) / held_back.throughput))
    return logs


def relative(logs: Array) -> Array:
    """Relative errors from logs of predicted over measured."""
    return np.abs(np.expm1(logs))


def with_known_level(logs: Array, placement: NDArray[np.str_]) -> Array:
    """(N,) logs less the median of the placement's other rows: the error left if one measurement on the
    placement corrected the level of all its predictions. Rows alone in theirs stay as they are."""
    left = logs.copy()
    for name in np.unique(placement):
        rows = np.flatnonzero(placement == name)
        for row in rows if len(rows) > 1 else ():
            left[row] -= np.median(logs[rows[rows != row]])
    return left


def repeats(rows: Rows) -> tuple[Array, Array]:
    """(N,) how often a row's configuration was measured, and the relative error of predicting it by the geometric mean
    of its other repeats (NaN if there are none)."""
    names = np.char.add(np.char.add(rows.placement, "@"), rows.local_batch.astype(str))
    names = np.where(
        rows.is_bound, np.char.add(names, np.arange(len(names)).astype(str)), names
    )  # a bound is no repeat
    _, which, counts = np.unique(names, return_inverse=True, return_counts=True)
    count = counts[which].astype(np.float64)
    logs = np.log(rows.throughput)
    total = np.bincount(which, logs)[which]
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(np.exp((total - logs) / (count - 1.0) - logs) - 1.0)
    return count, np.where(count > 1, error, np.nan)


def noise(groups: Sequence[Group]) -> dict[str, float]:
    """Over the rows that were repeated: mean error of a table of the other repeats, and of a perfect model."""
    counts, errors = (np.concatenate(parts) for parts in zip(*(repeats(group.rows) for group in groups), strict=True))
    is_known = counts > 1
    perfect = errors * np.sqrt((counts - 1.0) / counts)
    return {
        "rows": int(is_known.sum()),
        "table_of_repeats_mean_error": float(errors[is_known].mean()),
        "table_of_repeats_median_error": float(np.median(errors[is_known])),
        "perfect_model_mean_error": float(perfect[is_known].mean()),
    }


def is_repeated(groups: Sequence[Group]) -> Bools:
    """(all rows,) whether the row's configuration was measured more than once."""
    return np.concatenate([repeats(group.rows)[0] > 1 for group in groups])


def summary(errors: Array, clusters: NDArray[np.str_]) -> dict[str, float]:
    """Mean with its 95 % interval (placements resampled: rows of one placement err together), median, within 10 %."""
    low, high = interval(errors, clusters)
    return {
        "held_out_mean_error": round(float(errors.mean()), 4),
        "held_out_mean_error_low": round(low, 4),
        "held_out_mean_error_high": round(high, 4),
        "held_out_median_error": round(float(np.median(errors)), 4),
        "held_out_within_10_percent": round(float((errors <= 0.1).mean()), 4),
    }


def interval(errors: Array, clusters: NDArray[np.str_]) -> tuple[float, float]:
    """95 % interval of the mean by the bootstrap over clusters."""
    _, which = np.unique(clusters, return_inverse=True)
    total, count = np.bincount(which, errors), np.bincount(which)
    drawn = np.random.default_rng(0).integers(0, len(total), (_RESAMPLES, len(total)))
    means = total[drawn].sum(axis=1) / count[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def clusters_of(groups: Sequence[Group]) -> NDArray[np.str_]:
    """(all rows,) network, GPU model and placement of each row."""
    return np.concatenate([np.char.add(f"{group.model}@{group.gpu_model} ", group.rows.placement) for group in groups])


def joined(parts: Sequence[Array]) -> Array:
    """(N,) errors of each row, mean over the splits."""
    return np.asarray(np.mean(np.stack(parts), axis=0))
