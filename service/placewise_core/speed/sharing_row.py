"""The row of a model among those measured: what a learned completion of GPU sharing reads and fills. Knows no net.

Columns, for reference models p in the order of their names: `own:p`, speed of the model beside p over its speed alone;
`other:p`, that of p beside the model; and `itself`, speed beside another job of the same model. All in (0, 1].
"""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.speed.co_runs import PairSpeeds
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.view_arrays import FloatArray

ITSELF = "itself"


def columns_of(references: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns, (C,) = 2 · references + 1."""
    return (*(f"own:{name}" for name in references), *(f"other:{name}" for name in references), ITSELF)


def square_of(table: MeasuredInterference, gpu: str) -> FloatArray:
    """(P, P) speed of each reference model beside each, on a GPU model of the table."""
    pairs, names = table.pairs[gpu], table.references
    return np.array([[pairs[a].get(b, table.default[gpu]) for b in names] for a in names])


def prior_row(square: FloatArray, like: int | None) -> FloatArray:
    """(C,) what is assumed of a model of which nothing is measured: all that is known of the reference model it is
    like, by number, or the mean over all of them."""
    if like is None:
        return np.array([*square.mean(axis=0), *square.mean(axis=1), square.diagonal().mean()])
    return np.array([*square[like], *square[:, like], square[like, like]])


def known_row(references: Sequence[str], model: str, co_runs: Mapping[str, PairSpeeds]) -> FloatArray:
    """(C,) NaN where the model's co-runs say nothing."""
    count = len(references)
    row = np.full(2 * count + 1, np.nan)
    for i, name in enumerate(references):
        speeds = co_runs.get(name)
        if speeds is not None:
            row[i] = min(1.0, speeds.own)
            if speeds.neighbour > 0:
                row[count + i] = min(1.0, speeds.neighbour)
    beside_itself = co_runs.get(model)
    if beside_itself is not None:
        row[-1] = min(1.0, beside_itself.own)
    return row
