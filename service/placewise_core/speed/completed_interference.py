"""Slowdowns of pairs. A pair that the site has measured keeps its value; other pairs of these models are completed from
all measurements.

Knows no net: a completion is handed in. Without measurements the packaged table answers.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.decision import LearnedCoRun
from placewise_core.domain.job import Job
from placewise_core.domain.model_names import canonical
from placewise_core.speed.co_runs import CoRunBook, KnownCoRuns, LearnedCell
from placewise_core.speed.interference import GpuInterference, MeasuredInterference, composed
from placewise_core.speed.pair_effects import PairSpeed, of_odds, shrunk
from placewise_core.speed.site_pairs import RowCompleter, SitePairs

# Models are named by users, in any number.
_KEPT_ANSWERS = 10_000
# What several clusters know, and what jobs that wait would bring, is asked for in turns.
_KEPT_PREDICTIONS = 16
_KEPT_GPUS = 64
_MOST_SHOWN = 32
_TWO_SIDED_90 = 1.645
_ALONE = PairSpeed(1.0, 1.0)


class CompletedInterference:
    """GpuInterference of a site that has measured: a pair it has measured; else, if one of the two has a co-run, the
    pair by the co-runs of both and of their partners (site_pairs.py); else the table, which knows by name.

    `known` may not change. Three and more are composed as the table's are.
    """

    def __init__(self, table: MeasuredInterference, known: KnownCoRuns, completer: RowCompleter | None) -> None:
        self._table = table
        self._known = known
        self._completer = completer
        self._answers: Bounded[tuple[str, ...], PairSpeed] = Bounded(_KEPT_ANSWERS)
        self._sites: Bounded[str, SitePairs] = Bounded(_KEPT_GPUS)

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return self._speed(model, others, gpu_model).forecast

    def careful_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return self._speed(model, others, gpu_model).careful

    def _speed(self, model: str, others: Sequence[str], gpu_model: str) -> PairSpeed:
        if not others:
            return _ALONE
        key = (model, *others, gpu_model)
        found = self._answers.get(key)
        if found is None:
            pairs = [self._pair(model, other, gpu_model) for other in others]
            found = self._answers[key] = PairSpeed(
                composed([pair.forecast for pair in pairs]), composed([pair.careful for pair in pairs])
            )
        return found

    def _pair(self, model: str, other: str, gpu_model: str) -> PairSpeed:
        a, b, gpu = canonical(model), canonical(other), canonical(gpu_model)
        measured = self._known.of(a, gpu).get(b)
        if measured is not None and measured.variance > 0:
            return shrunk(measured.own, measured.variance, self._table.pair(model, other, gpu_model)).speed
        if measured is not None:
            speed = min(1.0, measured.own)
            return PairSpeed(speed, speed)
        estimated = self._site(gpu).of(a, b)
        if estimated is not None:
            return estimated
        speed = self._table.pair(model, other, gpu_model)
        return PairSpeed(speed, speed)

    def _site(self, gpu: str) -> SitePairs:
        found = self._sites.get(gpu)
        if found is None:
            found = self._sites[gpu] = SitePairs(self._table, self._known, self._completer, gpu)
        return found


def learned_co_runs(cells: Iterable[LearnedCell], table: MeasuredInterference) -> tuple[LearnedCoRun, ...]:
    """The learned pairs as forecasts read them, in the order of the cells; the first 32."""
    found = []
    for cell in itertools.islice(cells, _MOST_SHOWN):
        shipped = table.pair(cell.model, cell.partner, cell.gpu_type)
        odds = shrunk(cell.speed, cell.variance, shipped)
        # Of ln(speed), back from log-odds where shrunk() carried the variance over: a speed has no error beyond 1.
        spread = _TWO_SIDED_90 * math.sqrt(odds.variance) * (1.0 - min(cell.speed, shipped))
        speed = of_odds(odds.mean)
        values = (speed, speed * math.exp(-spread), min(1.0, speed * math.exp(spread)), shipped, cell.reports)
        rounded = [float(f"{value:.3g}") for value in values]
        found.append(LearnedCoRun(cell.model, cell.partner, cell.gpu_type, *rounded))
    return tuple(found)


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
