"""ln(speed / linear speed) as the level of a job's shape and the effect of its placement; no noise.

Placements are compared among jobs of one shape (model, workers, parameter servers) alone. Large gangs are spread more
often than small ones, so an error of the forecast for a shape would else count as an effect of its placements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_training.gate.site import Beside, SpeedRow
from placewise_training.log.choosing.ridge import Ridge

_IMPUTATIONS: Final = 4
_MOST_BESIDE: Final = 8


class Shape(NamedTuple):
    """The part of a job's speed that its placement does not change: model and tasks."""

    model: str
    workers: int
    servers: int


class Words(NamedTuple):
    """Names that have columns of their own, in order."""

    models: tuple[str, ...]
    gpu_models: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """level = base of the shape's columns + the shape's own + effect · columns of the placement, cut off at the least
    and the largest that were seen. A shape that was never seen has none of its own."""

    words: Words
    effect: FloatArray  # (F,)
    base: Ridge
    own: Mapping[Shape, float]
    least: float
    largest: float

    @classmethod
    def fitted(cls, rows: Sequence[SpeedRow]) -> Self:
        """A row that is a bound counts as the bound or the forecast, whichever is lower (a Tobit fit by imputation)."""
        is_bound = np.array([row.is_bound for row in rows])
        target = np.array([row.log_speed for row in rows])
        found = cls._fitted([row for row in rows if not row.is_bound], target[~is_bound])
        for _ in range(_IMPUTATIONS if is_bound.any() else 0):
            found = cls._fitted(rows, _imputed(found, rows, target, is_bound))
        return found

    @classmethod
    def _fitted(cls, rows: Sequence[SpeedRow], target: FloatArray) -> Self:
        """The effect is fitted to columns and targets less their means in each shape (Mundlak 1978): what shapes differ
        by cannot enter it."""
        ats = [row.at for row in rows]
        words = Words(tuple(sorted({at.model for at in ats})), tuple(sorted({at.gpu_model for at in ats})))
        shapes, place = _shapes(ats)
        columns = np.array([_placement(at, words) for at in ats])
        ridge = Ridge.fitted(_within(columns, place), _within(target, place), spent=float(len(shapes)))
        effect = ridge.slope / ridge.scale
        levels = target - columns @ effect
        job_columns = np.array([_job(shape, words) for shape in shapes])
        base = Ridge.fitted(job_columns[place], levels)
        own = _shrunk(levels - base.predicted(job_columns)[place], place)
        return cls(
            words, effect, base, dict(zip(shapes, own.tolist(), strict=True)), float(target.min()), float(target.max())
        )

    def of(self, ats: Sequence[Beside]) -> FloatArray:
        """(N,) levels of N jobs, each at one moment."""
        shapes, place = _shapes(ats)
        job = self.base.predicted(np.array([_job(shape, self.words) for shape in shapes]))
        own = np.array([self.own.get(shape, 0.0) for shape in shapes])
        placed = np.array([_placement(at, self.words) for at in ats]) @ self.effect
        levels: FloatArray = np.clip((job + own)[place] + placed, self.least, self.largest)
        return levels


def _shape(at: Beside) -> Shape:
    return Shape(at.model, at.workers, at.servers)


def _shapes(ats: Sequence[Beside]) -> tuple[list[Shape], IntArray]:
    """The shapes, and each row's place among them."""
    shapes = sorted({_shape(at) for at in ats})
    places = {shape: i for i, shape in enumerate(shapes)}
    return shapes, np.array([places[_shape(at)] for at in ats])


def _placement(at: Beside, words: Words) -> FloatArray:
    """Of the spread, of the jobs beside it, of its GPUs, and by model."""
    is_spread, beside = float(at.nodes > 1), min(at.beside, _MOST_BESIDE)
    common = [
        np.log(max(1, at.nodes)), is_spread, beside, np.sqrt(beside), min(at.beside_spread, _MOST_BESIDE),
        is_spread * min(at.beside_spread, _MOST_BESIDE), float(at.shares_gpu),
    ]  # fmt: skip
    of_model = np.array([float(at.model == name) for name in words.models])
    of_gpu = [float(at.gpu_model == name) for name in words.gpu_models]
    return np.concatenate([common, of_gpu, of_model * is_spread, of_model * beside])


def _job(shape: Shape, words: Words) -> FloatArray:
    of_model = [float(shape.model == name) for name in words.models]
    return np.array([np.log(max(1, shape.workers)), np.log1p(shape.servers), *of_model])


def _within(values: FloatArray, place: IntArray) -> FloatArray:
    """Rows less the mean of their shape."""
    counts = np.bincount(place)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, place, values)
    means: FloatArray = sums / counts.reshape(-1, *[1] * (values.ndim - 1))
    return values - means[place]


def _shrunk(left: FloatArray, place: IntArray) -> FloatArray:
    """(S,) mean of each shape, shrunk to 0 by b / (b + w / n): b the variance of shapes, w that of rows within one, by
    moments (Robinson 1991)."""
    counts = np.bincount(place).astype(np.float64)
    means = np.bincount(place, left) / counts
    freedom = max(1, len(left) - len(counts))
    within = float(np.square(_within(left, place)).sum()) / freedom
    between = max(0.0, float(np.square(means).mean()) - within * float((1.0 / counts).mean()))
    shrunk: FloatArray = means * between / np.maximum(between + within / counts, 1e-12)
    return shrunk


def _imputed(found: Levels, rows: Sequence[SpeedRow], target: FloatArray, is_bound: BoolArray) -> FloatArray:
    return np.where(is_bound, np.minimum(target, found.of([row.at for row in rows])), target)
