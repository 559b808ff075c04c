"""How fast jobs of a site run, fitted to its log: a ridge regression of ln(speed / linear speed), and its residuals.

Of another model class than any candidate's reward model, so that a candidate is not judged by its own beliefs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_training.gate.levels import Levels
from placewise_training.gate.site import Beside, SpeedRow
from placewise_training.sim.jobs import SimJob, servers_of, workers_of
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot

LEAST_ROWS: Final = 30
_OWN_RESIDUALS: Final = 20  # rows of a model from which on its noise is its own
_BLOCKS: Final = 20
_FOLDS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class SiteFit:
    """ln(speed / linear speed) = level + a residual of the job."""

    levels: Levels
    residuals: Mapping[str, FloatArray]  # by model; "" for all
    rows: Sequence[SpeedRow]

    @classmethod
    def of(cls, rows: Sequence[SpeedRow]) -> Self:
        """Raises ValueError for fewer than LEAST_ROWS rows, or if all of them are bounds."""
        known = [row for row in rows if not row.is_bound]
        if len(known) < LEAST_ROWS:
            raise ValueError(f"the judging stretch shows {len(known)} speeds, {LEAST_ROWS} are needed")
        levels = Levels.fitted(rows)
        left = _left(levels, known)
        of_model = np.array([row.at.model for row in known])
        own = {name: left[of_model == name] for name in set(of_model) if (of_model == name).sum() >= _OWN_RESIDUALS}
        return cls(levels, {"": left, **own}, rows)

    @property
    def error(self) -> float:
        """Mean absolute error of speeds on blocks of rows that a fit had not seen."""
        fold = np.arange(len(self.rows)) * _FOLDS // len(self.rows)
        errors = []
        for one in range(_FOLDS):
            levels = Levels.fitted([row for row, its in zip(self.rows, fold, strict=True) if its != one])
            held = [row for row, its in zip(self.rows, fold, strict=True) if its == one and not row.is_bound]
            errors += [abs(_left(levels, held))] if held else []
        return float(np.concatenate(errors).mean())

    def redrawn(self, rng: np.random.Generator) -> Self:
        """The fit to as many blocks of rows, drawn with replacement: how far the fit is a matter of chance. Blocks of
        rows that all are bounds, or too few speeds, leave it as it is."""
        blocks = np.array_split(np.arange(len(self.rows)), _BLOCKS)
        drawn = [self.rows[i] for at in rng.integers(_BLOCKS, size=_BLOCKS) for i in blocks[at]]
        try:
            return type(self).of(drawn)
        except ValueError:
            return self

    def level(self, at: Beside) -> float:
        """The forecast, without residual."""
        return float(self.levels.of([at])[0])

    def residual(self, model: str, rng: np.random.Generator) -> float:
        """One of those seen, of the model's own if there are enough."""
        return float(rng.choice(self.residuals.get(model, self.residuals[""])))


class SiteSpeed:
    """A SpeedModel of the fit. Work is in seconds at linear speed, so rates are relative speeds. Every job keeps one
    residual, drawn from `seed` and its number."""

    def __init__(self, fit: SiteFit, seed: int) -> None:
        self._fit, self._seed = fit, seed
        self._levels: dict[Beside, float] = {}

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        parts = tuple(
            Part(spot.node, spot.workers, spot.servers, nodes[spot.node].spec.gpu_model, spot.gpu_indices)
            for spot in spots
        )
        rng = np.random.default_rng((self._seed, job.number, job.attempt))
        return Footprint(job, parts, 1.0, 1.0, float(np.exp(self._fit.residual(job.job.model, rng))))

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        me = footprint.job
        others = [[name for name in nodes[part.node].parts if name != me.id] for part in footprint.parts]
        fullest = max(others, key=len)
        shares = any(len(nodes[part.node].gpu_jobs[g]) > 1 for part in footprint.parts for g in part.gpu_indices)
        spread = sum(len(jobs[name].parts) > 1 for name in fullest)
        return footprint.noise * self._relative(
            Beside(
                me.job.model,
                min(footprint.parts, key=lambda part: part.node).gpu_model,
                workers_of(me.job),
                servers_of(me.job),
                len(footprint.parts),
                len(fullest),
                spread,
                shares,
            )
        )

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        workers = workers_of(job.job)
        nodes = -(-max(1, workers) // max(1, gpus_per_node))
        return self._relative(
            Beside(job.job.model, gpu_model, workers, servers_of(job.job), nodes, 0, 0, shares_gpu=False)
        )

    def _relative(self, at: Beside) -> float:
        found = self._levels.get(at)
        if found is None:
            found = self._levels[at] = float(np.exp(self._fit.level(at)))
        return found


def _left(levels: Levels, rows: Sequence[SpeedRow]) -> FloatArray:
    return np.array([row.log_speed for row in rows]) - levels.of([row.at for row in rows])
