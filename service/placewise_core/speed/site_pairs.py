"""Pairs on one GPU model from a site's co-runs: assumptions about their models, and what the co-runs add to them.

On a GPU model of the table, a pair is assumed as the table has it by name; a model of no family, as the mean over its
models. If a model has co-runs beside models of the table, its completed row replaces the assumption, and those co-runs
are spent. On another GPU model, equal shares are assumed, and of a partner of the table a part of its deviation there.
All other co-runs make the effects of pair_effects.py.
"""

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
    Odds,
    PairEffects,
    Spread,
    log_odds,
)
from placewise_core.speed.sharing_row import Square, known_row

# Chosen with the constants of pair_effects.py.
_LEVEL, _OTHER_LEVEL = 0.3, 0.4  # τ_μ on a GPU model of the table, and on another
_REFERENCE = 0.5  # effects of a model of the table, over those of others
_CARRIED = 0.3  # of a partner's deviation on the table's GPU model, in log-odds, to one that is not in the table
_MOST_MODELS = 100  # in one estimate, those nearest to the pair: an inverse of a millisecond


class RowCompleter(Protocol):
    """A learned completion of a model's row (sharing_row.columns_of). Must not raise."""

    def complete(self, prior: FloatArray, known: FloatArray) -> FloatArray | None:
        """(C,) relative speeds from the assumed ones, (C,), and the measured ones, (C,) with NaN for holes; None
        if it cannot complete them."""
        ...


@frozen
class _Row:
    """A completed row, (C,), and by how much it moved the log-odds of own speeds and of partners', on average; by how
    many co-runs each."""

    speeds: FloatArray
    own: float
    partner: float
    own_count: int
    partner_count: int


_NO_ROW = _Row(np.zeros(0), 0.0, 0.0, 0, 0)


class SitePairs:
    """Estimates for one GPU model. `known` may not change."""

    def __init__(
        self, table: MeasuredInterference, known: KnownCoRuns, completer: RowCompleter | None, gpu: str
    ) -> None:
        self._names = table.references
        self._is_measured = table.measured_gpu(gpu) is not None
        self._square = Square.of(table, table.gpu_of(gpu))
        self._completer = completer if self._is_measured else None
        self._pairs = {model: pairs for model in known.models if (pairs := known.of(model, gpu))}
        self._rows: dict[str, _Row] = {}
        self._effects: dict[tuple[str, ...], PairEffects] = {}
        self._all = tuple(sorted(self._pairs)) if len(self._pairs) <= _MOST_MODELS else ()

    def of(self, model: str, other: str) -> Odds | None:
        """Log-odds of the speed of a model beside another, canonical names; None if neither has a co-run."""
        if not (model in self._pairs or other in self._pairs):
            return None
        near = self._all or self._near(model, other)
        effects = self._effects.get(near)
        if effects is None:
            effects = PairEffects(self._cells(near), self._spreads(near), self._level)
            if self._all:
                self._effects[near] = effects
        assumed, is_of_row = self._assumed(model, other)
        spread = self._spread(model), self._spread(other)
        return effects.of(model, other, *spread, has_level=not is_of_row).plus(assumed)

    @property
    def _level(self) -> float:
        return _LEVEL if self._is_measured else _OTHER_LEVEL

    def _near(self, *models: str) -> tuple[str, ...]:
        """The models that the fewest co-runs lie between; by name, of those equally near."""
        found = dict.fromkeys(models)
        ring = list(found)
        while ring and len(found) < _MOST_MODELS:
            ring = sorted({name for one in ring for name in self._pairs.get(one, {})} - found.keys())
            found.update(dict.fromkeys(ring[: _MOST_MODELS - len(found)]))
        return tuple(found)

    def _spreads(self, near: tuple[str, ...]) -> Mapping[str, Spread]:
        return {name: self._spread(name) for name in near}

    def _spread(self, model: str) -> Spread:
        """Less for a model of the table, and for one whose row is completed."""
        row = self._row(model)
        scale = _REFERENCE if model in self._names else 1.0
        own, partner = scale * OWN_SPREAD, scale * PARTNER_SPREAD
        return Spread(
            scale / math.sqrt(1.0 + row.own_count * (own / NOISE) ** 2),
            scale / math.sqrt(1.0 + row.partner_count * (partner / NOISE) ** 2),
        )

    def _cells(self, near: tuple[str, ...]) -> list[CoRunCell]:
        """The co-runs between these models that no row has spent, each pair once."""
        there = set(near)
        cells = []
        for model in near:
            for other, speeds in self._pairs.get(model, {}).items():
                if other not in there or self._is_spent(model, other):
                    continue
                back = self._pairs.get(other, {})
                if model > other and model in back:
                    continue
                cells.append(self._cell(model, other, speeds))
        return cells

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
        return self._by_name(model, other) + rows[0].own + rows[1].partner, False

    def _by_name(self, model: str, other: str) -> float:
        a, b = nearest(model, self._names), nearest(other, self._names)
        speeds = self._square.speeds
        if not self._is_measured:
            if b is None:
                return 0.0
            means = [log_odds(float(speed)) for speed in speeds.mean(axis=0)]
            return _CARRIED * (means[self._names.index(b)] - sum(means) / len(means))
        if model == other and a is None:
            return log_odds(float(speeds.diagonal().mean()))
        rows = speeds if a is None else speeds[[self._names.index(a)]]
        cells = rows if b is None else rows[:, [self._names.index(b)]]
        return log_odds(float(cells.mean()))

    def _row(self, model: str) -> _Row:
        found = self._rows.get(model)
        if found is None:
            found = self._rows[model] = self._completed(model)
        return found

    def _completed(self, model: str) -> _Row:
        """The row of a model that has a co-run beside a model of the table."""
        if self._completer is None or model not in self._pairs:
            return _NO_ROW
        known = known_row(self._names, model, self._pairs[model])
        if np.isnan(known[:-1]).all():
            return _NO_ROW
        like = nearest(model, self._names)
        prior = self._square.row(None if like is None else self._names.index(like))
        if np.isnan(prior[-1]):
            known[-1] = np.nan
        row = self._completer.complete(prior, known)
        return _NO_ROW if row is None else _moved(row, prior, known)


def _moved(row: FloatArray, prior: FloatArray, known: FloatArray) -> _Row:
    count = (len(row) - 2) // 2
    is_known = ~np.isnan(known)
    moves = np.array([log_odds(float(a)) - log_odds(float(b)) for a, b in zip(row[:-1], prior[:-1], strict=True)])
    parts = []
    for columns in (np.r_[:count, 2 * count], np.r_[count : 2 * count]):
        open_ones = columns[~is_known[columns]]
        parts.append(float(moves[open_ones if len(open_ones) else columns].mean()))
    own_count = int(is_known[:count].sum() + is_known[-2])
    return _Row(row, parts[0], parts[1], own_count, int(is_known[count : 2 * count].sum()))
