"""Shares from a decision log for the fits of capability and heat. Fits nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.later import in_time, parted
from placewise_training.log.unit_rows import UnitRow, UnitRows
from placewise_training.log.units import share_heat


class LogShares(NamedTuple):
    """Shares to fit to, later ones to judge by, the rows of the log by reason, and the middle overhead of a split that
    hosts reported; 0 without reports."""

    learn: Sequence[UnitRow]
    later: Sequence[UnitRow]
    counts: Mapping[str, int]
    overhead_s: float


def log_shares(where: str, before_s: float = 0.0) -> LogShares:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    store = LogStore(where)
    with LogIndex(store) as index:
        rows = UnitRows(store, index)
        found = in_time(rows, before_s)
    parts = parted([row.time_s for row in found], choose=0.0)
    learn, later = ([found[i] for i in np.flatnonzero(mask)] for mask in (parts.learn, parts.judge))
    until_s = later[0].time_s
    overheads = [each.overhead_s for each in share_heat(store) if each.overhead_s > 0 and each.time_s < until_s]
    return LogShares(learn, later, rows.counts, float(np.median(overheads)) if overheads else 0.0)
