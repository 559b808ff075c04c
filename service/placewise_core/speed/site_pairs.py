"""Pairs on one GPU model from a site's co-runs: assumptions about their models, and what the co-runs add to them.

On a GPU model of the table, a pair is assumed as the table has it by name; a model of no family, as the mean over its
models. If a model has co-runs beside models of the table, its completed row replaces the assumption, and those co-runs
are spent. On another GPU model, equal shares are assumed, and of a partner of the table a part of its deviation there.
All other co-runs make the effects of pair_effects.py.
"""

import functools
import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.model_names import nearest
from placewise_core.speed.co_runs import KnownCoRuns, PairSpeeds
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.pair_effects import (
    NOISE,
    OWN_SPREAD,
    PARTNER_SPREAD,
    CoRunCell,
    PairEffects,
    PairSpeed,
    Spread,
    log_odds,
)
from placewise_core.speed.sharing_row import Square, known_row

# Chosen with the constants of pair_effects.py.
_LEVEL, _OTHER_LEVEL = 0.3, 0.4  # τ_μ on a GPU model of the table, and on another
_REFERENCE = 0.5  # effects of a model of the table, over those of others
_CARRIED = 0.3  # of a partner's deviation on the table's GPU model, in log-odds, to one that is not in the table
_MOST_MODELS = 50  # in one estimate, those nearest to the pair: an inverse of a millisecond


class RowCompleter(Protocol):
    """A learned completion of a model's row (sharing_row.columns_of). Must not raise."""

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        """(C,) relative speeds from the assumed ones, (C,), and the measured ones, (C,) with NaN for holes; None
        if it cannot complete them."""
        ...


@frozen
class _CompletedRow:
    """A completed row, (C,), and by how much it moved the log-odds of own speeds and of partners', on average; by how
    many co-runs each."""

    speeds: FloatArray
    own: float
    partner: float
    own_count: int
    partner_count: int


_NO_ROW = _CompletedRow(np.zeros(0), 0.0, 0.0, 0, 0)


class SitePairs:
    """Estimates for one GPU model. `known` may not change."""

    def __init__(
        self, table: MeasuredInterference, known: KnownCoRuns, completer: RowCompleter | None, gpu: str
    ) -> None:
        self._names = table.references
        self._is_measured = table.measured_gpu(gpu) is not None
        self._square = Square.of(table, table.gpu_of(gpu))
        self._by_name = self._assumptions()
        # Of a model like none beside itself.
        self._itself = log_odds(float(self._square.speeds.diagonal().mean())) if self._is_measured else 0.0
        self._completer = completer if self._is_measured else None
        self._known, self._gpu = known, gpu
        models = known.models
        self._all = tuple(sorted(models)) if len(models) <= _MOST_MODELS else ()
        # Each of a model with a co-run; of others nothing is kept, as users name them, in any number.
        self._pairs: dict[str, dict[str, PairSpeeds]] = {}
        self._rows: dict[str, _CompletedRow] = {}
        self._cells: dict[str, list[CoRunCell]] = {}
        self._effects: PairEffects | None = None

    def of(self, model: str, other: str) -> PairSpeed | None:
        """Speed of a model beside another, canonical names; None if nothing is known beyond the table. Of a completed
        row the careful speed is the forecast, as it has not been shown there to decide better."""
        if not (self._is_informed(model) or self._is_informed(other)):
            return None
        assumed, is_of_row = self._assumed(model, other)
        spread = self._spread(model), self._spread(other)
        odds = self._effects_near(model, other).of(model, other, *spread, has_level=not is_of_row).plus(assumed)
        return PairSpeed(odds.speed.forecast, odds.speed.forecast) if is_of_row else odds.speed

    def _effects_near(self, *models: str) -> PairEffects:
        if self._effects is not None:
            return self._effects
        near = dict.fromkeys(self._all or self._near(*models))
        cells = [cell for model in near for cell in self._cells_of(model) if cell.partner in near]
        level = _LEVEL if self._is_measured else _OTHER_LEVEL
        effects = PairEffects(cells, {name: self._spread(name) for name in near}, level)
        if self._all:
            self._effects = effects
        return effects

    def _is_informed(self, model: str) -> bool:
        """Whether co-runs tell of a model; of a model of the table only those beside others of it do."""
        if self._is_measured and model in self._names:
            return self._row(model) is not _NO_ROW
        return bool(self._known.partners(model, self._gpu))

    def _near(self, *models: str) -> list[str]:
        """The models that the fewest co-runs lie between; by name, of those equally near."""
        found = dict.fromkeys(models)
        ring = list(found)
        while ring and len(found) < _MOST_MODELS:
            ring = sorted({name for one in ring for name in self._known.partners(one, self._gpu)} - found.keys())
            found.update(dict.fromkeys(ring[: _MOST_MODELS - len(found)]))
        return list(found)

    def _spread(self, model: str) -> Spread:
        """Less for a model of the table, and for one whose row is completed."""
        row = self._row(model)
        scale = _REFERENCE if model in self._names else 1.0
        own, partner = scale * OWN_SPREAD, scale * PARTNER_SPREAD
        return Spread(
            scale / math.sqrt(1.0 + row.own_count * (own / NOISE) ** 2),
            scale / math.sqrt(1.0 + row.partner_count * (partner / NOISE) ** 2),
        )

    def _cells_of(self, model: str) -> list[CoRunCell]:
        """The co-runs of a model that no row has spent, each pair with one of its two models alone."""
        found = self._cells.get(model)
        if found is None:
            found = self._cells[model] = [
                self._cell(model, other, speeds)
                for other, speeds in self._pairs_of(model).items()
                if not self._is_spent(model, other) and (model <= other or model not in self._pairs_of(other))
            ]
        return found

    def _pairs_of(self, model: str) -> Mapping[str, PairSpeeds]:
        found = self._pairs.get(model)
        if found is None:
            found = self._known.of(model, self._gpu)
            if found:
                self._pairs[model] = found
        return found

    def _is_spent(self, model: str, other: str) -> bool:
        """Whether a row was completed from the co-run of this pair."""
        return any(
            self._row(one) is not _NO_ROW and (two in self._names or one == two)
            for one, two in ((model, other), (other, model))
        )

    def _cell(self, model: str, other: str, speeds: PairSpeeds) -> CoRunCell:
        own = log_odds(speeds.own) - self._assumed(model, other)[0]
        if model == other or speeds.neighbour <= 0:
            return CoRunCell(model, other, own, None)
        return CoRunCell(model, other, own, log_odds(speeds.neighbour) - self._assumed(other, model)[0])

    def _assumed(self, model: str, other: str) -> tuple[float, bool]:
        """Log-odds of a model's speed beside another before the effects, and whether they are of a completed row."""
        rows = self._row(model), self._row(other)
        found = []
        if rows[0] is not _NO_ROW and (other in self._names or model == other):
            at = -2 if model == other else self._names.index(other)
            found.append(log_odds(float(rows[0].speeds[at])))
        if rows[1] is not _NO_ROW and model in self._names and model != other:
            found.append(log_odds(float(rows[1].speeds[len(self._names) + self._names.index(model)])))
        if found:
            return sum(found) / len(found), True
        like = self._like(model), self._like(other)
        by_name = self._itself if model == other and like[0] < 0 else self._by_name[like]
        return float(by_name) + rows[0].own + rows[1].partner, False

    def _like(self, model: str) -> int:
        """The number of the model of the table that it is like; -1 for none, which is the last of `_by_name`."""
        return _like(model, self._names)

    def _assumptions(self) -> FloatArray:
        """(P + 1, P + 1) log-odds of the speed of a model like each of the table beside one like each; the last is like
        none."""
        count = len(self._names)
        speeds = self._square.speeds
        odds = np.zeros((count + 1, count + 1))
        if self._is_measured:
            means = np.block([[speeds, speeds.mean(axis=1)[:, None]], [speeds.mean(axis=0)[None], speeds.mean()]])
            odds[:] = np.vectorize(log_odds)(means)
        else:
            partners = np.vectorize(log_odds)(speeds.mean(axis=0))
            odds[:, :count] = _CARRIED * (partners - partners.mean())
        return odds

    def _row(self, model: str) -> _CompletedRow:
        if self._completer is None or not self._pairs_of(model):
            return _NO_ROW
        found = self._rows.get(model)
        if found is None:
            found = self._rows[model] = self._completed(model, self._completer)
        return found

    def _completed(self, model: str, completer: RowCompleter) -> _CompletedRow:
        """The row of a model that has a co-run beside a model of the table."""
        known = known_row(self._names, model, self._pairs_of(model))
        if np.isnan(known[:-1]).all():
            return _NO_ROW
        like = self._like(model)
        prior = self._square.row(None if like < 0 else like)
        if np.isnan(prior[-1]):
            known[-1] = np.nan
        row = completer.complete(prior, known)
        return _NO_ROW if row is None else _moved(row, prior, known)


def _moved(row: FloatArray, prior: FloatArray, known: FloatArray) -> _CompletedRow:
    count = (len(row) - 2) // 2
    is_known = ~np.isnan(known)
    moves = np.array([log_odds(float(a)) - log_odds(float(b)) for a, b in zip(row[:-1], prior[:-1], strict=True)])
    parts = []
    for columns in (np.r_[:count, 2 * count], np.r_[count : 2 * count]):
        open_ones = columns[~is_known[columns]]
        parts.append(float(moves[open_ones if len(open_ones) else columns].mean()))
    own_count = int(is_known[:count].sum() + is_known[-2])
    return _CompletedRow(row, parts[0], parts[1], own_count, int(is_known[count : 2 * count].sum()))


@functools.lru_cache(4096)
def _like(model: str, names: tuple[str, ...]) -> int:
    found = nearest(model, names)
    return -1 if found is None else names.index(found)
