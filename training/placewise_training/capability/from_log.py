"""Shares from a decision log for the fits of capability and heat. Fits nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from placewise_log.store import LogStore
from placewise_training.log.later import held_back
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
    log = held_back(UnitRows, where, before_s)
    until_s = log.later[0].time_s
    heat = share_heat(LogStore(where))
    overheads = [each.overhead_s for each in heat if each.overhead_s > 0 and each.time_s < until_s]
    return LogShares(log.learn, log.later, log.counts, float(np.median(overheads)) if overheads else 0.0)
