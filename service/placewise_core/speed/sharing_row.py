"""The row of a model among the measured ones: input and output of a learned completion of GPU sharing. Knows no net.

Columns, for reference models p in the order of their names: `own:p`, speed of the model beside p over its speed alone;
`other:p`, that of p beside the model; `itself`, speed beside another job of the same model, all in (0, 1]; and
`step_s`, seconds per step of the model alone. Of two jobs that take turns, the one with the longer steps gets more.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.speed.co_runs import PairSpeeds
from placewise_core.speed.interference import MeasuredInterference

ITSELF, STEP = "itself", "step_s"


def columns_of(references: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns, (C,) = 2 · references + 2."""
    return (*(f"own:{name}" for name in references), *(f"other:{name}" for name in references), ITSELF, STEP)


@frozen
class Square:
    """The table's values for one GPU model: `speeds` (P, P) of each reference model beside each, `step_s` (P,) of each
    alone, NaN for missing ones."""

    speeds: FloatArray
    step_s: FloatArray

    @classmethod
    def of(cls, table: MeasuredInterference, gpu: str) -> "Square":
        pairs, steps, names = table.pairs[gpu], table.step_s.get(gpu, {}), table.references
        return cls(
            np.array([[pairs[a].get(b, table.default[gpu]) for b in names] for a in names]),
            np.array([steps.get(name, np.nan) for name in names]),
        )

    def row(self, like: int | None, without: int | None = None) -> FloatArray:
        """(C,) assumption for a model without measurements: the row of the reference model it is like, by number; or
        the mean over all of them, or all but one."""
        if like is not None:
            itself = self.speeds[like, like]
            return np.array([*self.speeds[like], *self.speeds[:, like], itself, self.step_s[like]])
        kept = np.array([i for i in range(len(self.speeds)) if i != without])
        own, other = self.speeds[kept].mean(axis=0), self.speeds[:, kept].mean(axis=1)
        step_s = np.exp(np.log(self.step_s[kept]).mean())
        return np.array([*own, *other, self.speeds.diagonal()[kept].mean(), step_s])


def known_row(references: Sequence[str], model: str, co_runs: Mapping[str, PairSpeeds]) -> FloatArray:
    """(C,) the model's co-runs; NaN for missing ones."""
    count = len(references)
    row = np.full(2 * count + 2, np.nan)
    for i, name in enumerate(references):
        speeds = co_runs.get(name)
        if speeds is not None:
            row[i] = min(1.0, speeds.own)
            if speeds.neighbour > 0:
                row[count + i] = min(1.0, speeds.neighbour)
    beside_itself = co_runs.get(model)
    if beside_itself is not None:
        row[-2] = min(1.0, beside_itself.own)
    steps = [speeds.step_s for speeds in co_runs.values() if speeds.step_s > 0]
    if steps:
        row[-1] = np.exp(np.log(steps).mean())
    return row
