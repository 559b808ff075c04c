"""The later part of a log is held back: whoever learns from the earlier one is judged on it, beside the incumbent."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex

LATER: Final = 0.2  # share of the rows
_BLOCKS: Final = 20
_RESAMPLES: Final = 2000


class Timed(Protocol):
    """A row of a log, with the time of its decision."""

    @property
    def time_s(self) -> float: ...


Row = TypeVar("Row", bound=Timed)
RowOut_co = TypeVar("RowOut_co", bound=Timed, covariant=True)


class Rows(Protocol[RowOut_co]):
    """Rows of a log; `counts`, by reason, are complete after the last one."""

    counts: Counter[str]

    def __iter__(self) -> Iterator[RowOut_co]: ...


class HeldBack(NamedTuple, Generic[Row]):
    """Rows to learn from, to choose by, and later ones to judge by, in the order of time; the log's rows by reason."""

    learn: Sequence[Row]
    choose: Sequence[Row]
    later: Sequence[Row]
    counts: Mapping[str, int]

    @property
    def later_s(self) -> FloatArray:
        """(N,) times of the later rows."""
        return np.array([row.time_s for row in self.later])

    def report(self, where: str, later: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a trainer's report about the log; `later` as of gain()."""
        return {**named(where), "rows": len(self.learn), "counts": dict(self.counts), "later": later}


def named(where: str) -> dict[str, str]:
    """How a report names a log: its place, and the digest of its manifest, "" without one. Raises LogError."""
    return {"where": where, "digest": LogStore(where).digest}


def held_back(
    made: Callable[[LogStore, LogIndex], Rows[Row]],
    where: str,
    before_s: float = 0.0,
    choose: float = 0.0,
    reward: str = "",
) -> HeldBack[Row]:
    """The rows of decisions before `before_s`, 0 for all; `choose` is a share. Outcomes have the column `reward` of
    `joined`. Raises LogError, and ValueError for too few rows."""
    store = LogStore(where)
    with LogIndex(store, reward) as index:
        rows = made(store, index)
        found = in_time(rows, before_s)
    parts = parted([row.time_s for row in found], choose)
    learn, chosen, later = ([found[i] for i in np.flatnonzero(mask)] for mask in parts)
    return HeldBack(learn, chosen, later, rows.counts)


def in_time(rows: Iterable[Row], before_s: float = 0.0) -> list[Row]:
    """The rows in the order of time; with `before_s` only those decided earlier: what comes later judges the result."""
    return sorted((row for row in rows if not before_s or row.time_s < before_s), key=lambda row: row.time_s)


class Parts(NamedTuple):
    """(N,) masks of the rows to learn from, to choose by, and to judge on, in the order of time."""

    learn: BoolArray
    choose: BoolArray
    judge: BoolArray


def parted(time_s: Sequence[float] | FloatArray, choose: float = 0.1) -> Parts:
    """The last LATER of the rows are judged on, the `choose` before them are chosen by. Raises ValueError for fewer
    than 20 rows."""
    count = len(time_s)
    if count < _BLOCKS:
        raise ValueError(f"the log has {count} usable rows, {_BLOCKS} are needed: export a longer log")
    place = np.argsort(np.argsort(np.asarray(time_s), kind="stable"), kind="stable") / count
    is_later, is_first = place >= 1.0 - LATER, place < 1.0 - LATER - choose
    return Parts(is_first, ~is_first & ~is_later, is_later)


def gain(before: FloatArray, after: FloatArray, time_s: FloatArray) -> dict[str, Any]:
    """By how much the errors (N,) on held-back rows fell, with a 95 % interval: blocks of time are resampled, as rows
    that are near in time have their errors in common."""
    fell = before - after
    block = np.argsort(np.argsort(time_s, kind="stable"), kind="stable") * min(_BLOCKS, len(fell)) // len(fell)
    total, count = np.bincount(block, fell), np.bincount(block)
    drawn = np.random.default_rng(0).integers(0, len(total), (_RESAMPLES, len(total)))
    low, high = np.quantile(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), [0.025, 0.975])
    return {
        "rows": len(fell),
        "error_before": float(before.mean()),
        "error_after": float(after.mean()),
        "gain": float(fell.mean()),
        "gain_interval": [float(low), float(high)],
    }
