"""Entries of IAWP's subtask description matrix from a log: metrics that requests have, and speedups from times.

A speedup needs the other version's time: the middle one of its kind until then. A subtask that still runs when the log
ends bounds it.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from placewise_core.subtasks.metrics import METRICS, SPEEDUP
from placewise_core.subtasks.scale import to_unit
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.units import SubtaskTime, subtask_times

VALUE, AT_MOST, AT_LEAST = 0, 1, -1
_LATEST: Final = 64  # times kept per kind and version


class MetricEntry(NamedTuple):
    """A metric of a kind of subtask in [0, 1] (subtasks/scale.py). `bound`: VALUE, or it is AT_MOST or AT_LEAST so."""

    time_s: float
    kind: str
    metric: str
    value: float
    bound: int


@dataclass(slots=True)
class MetricEntries:
    """`counts` has the entries, of which `bounds`, and the subtasks that gave none, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[MetricEntry]:
        """Raises LogError."""
        self.counts.clear()
        seconds: dict[tuple[str, bool], list[float]] = {}  # by kind and version: the latest, per unit of size
        for subtask in subtask_times(self.store, self.index):
            for entry in (*_profiled(subtask), *self._speedup(subtask, seconds)):
                self.counts["entries"] += 1
                self.counts["bounds"] += entry.bound != VALUE
                yield entry

    def _speedup(self, subtask: SubtaskTime, seconds: dict[tuple[str, bool], list[float]]) -> Iterator[MetricEntry]:
        took = (subtask.actual_s or subtask.at_least_s) / (subtask.size if subtask.size > 0 else 1.0)
        if took <= 0:
            self.counts["nothing known of its end"] += 1
            return
        has_ended = subtask.actual_s is not None
        if has_ended:
            own = seconds.setdefault((subtask.kind, subtask.is_on_gpu), [])
            own.append(took)
            del own[:-_LATEST]
        others = seconds.get((subtask.kind, not subtask.is_on_gpu))
        if not others:
            self.counts["of a kind that ran in one version only"] += 1
            return
        other = float(np.median(others))
        ratio = other / took if subtask.is_on_gpu else took / other
        bound = VALUE if has_ended else AT_MOST if subtask.is_on_gpu else AT_LEAST
        yield _entry(subtask, SPEEDUP, ratio, bound)


def _profiled(subtask: SubtaskTime) -> Iterator[MetricEntry]:
    """The metrics of the request; those on another scale than shares of 1 are left out."""
    for name, value in subtask.profile.items():
        if name in METRICS and (name == SPEEDUP or 0.0 <= value <= 1.0) and value >= 0.0 and math.isfinite(value):
            yield _entry(subtask, name, value, VALUE)


def _entry(subtask: SubtaskTime, metric: str, value: float, bound: int) -> MetricEntry:
    unit = float(to_unit({metric: value})[METRICS.index(metric)])
    return MetricEntry(subtask.time_s, subtask.kind, metric, unit, bound)
