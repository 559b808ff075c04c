"""Two stretches of a log beside each other: input columns, forecasts, and models never seen."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_training.drift.residuals import Shift, shift
from placewise_training.drift.stability import ERROR, Level, Stability, stability, unseen
from placewise_training.log.inputs import TOKEN_COLUMNS, Asked


@dataclass(frozen=True, slots=True)
class Drift:
    """`reference`, `recent`: jobs before and after the cut. `columns`: of the reward model's inputs, empty without
    decisions that have them. `forecasts` is None with too few reports. `models`: jobs of models that the reference
    never had."""

    reference: int
    recent: int
    columns: Mapping[str, Stability]
    forecasts: Shift | None
    models: Mapping[str, int]

    @property
    def is_drifted(self) -> bool:
        """A column is DRIFTED, forecasts have shifted, or there are unseen models."""
        moved = any(one.level is Level.DRIFTED for one in self.columns.values())
        return moved or bool(self.models) or (self.forecasts is not None and self.forecasts.is_drifted)


def drift(jobs: Sequence[Asked], residuals: tuple[FloatArray, FloatArray], cut_s: float, block_s: float) -> Drift:
    """Jobs and forecasts before `cut_s` beside those from then on. Raises ValueError if one side has no job."""
    before, after = [one for one in jobs if one.time_s < cut_s], [one for one in jobs if one.time_s >= cut_s]
    if not before or not after:
        raise ValueError("one side of the cut has no Place decision: nothing can be compared")
    models = unseen([one.model for one in before], [one.model for one in after])
    return Drift(
        len(before), len(after), _columns(before, after), _forecasts(*residuals, cut_s, block_s),
        {str(name): count for name, count in models.items()},
    )  # fmt: skip


def _columns(before: Sequence[Asked], after: Sequence[Asked]) -> Mapping[str, Stability]:
    tokens = [[one.tokens for one in side if one.tokens is not None] for side in (before, after)]
    if not all(tokens):
        return {}
    reference, recent = (np.stack(side) for side in tokens)
    error = ERROR / len(TOKEN_COLUMNS)
    return {name: stability(reference[:, i], recent[:, i], error=error) for i, name in enumerate(TOKEN_COLUMNS)}


def _forecasts(time_s: FloatArray, residual: FloatArray, cut_s: float, block_s: float) -> Shift | None:
    block = (time_s // block_s).astype(np.int64)
    is_before = time_s < cut_s
    if min(len(np.unique(block[is_before])), len(np.unique(block[~is_before]))) < 2:
        return None
    return shift(residual[is_before], block[is_before], residual[~is_before], block[~is_before])


def as_json(found: Drift) -> Mapping[str, Any]:
    """One object."""
    return {
        **asdict(found),
        "columns": {name: {**asdict(one), "level": str(one.level)} for name, one in found.columns.items()},
        "is_drifted": found.is_drifted,
    }


def lines(found: Drift, shown: int = 10) -> list[str]:
    """The `shown` columns that moved most, and the rest in words."""
    text = [f"{found.reference} jobs before the cut, {found.recent} from then on"]
    most = sorted(found.columns.items(), key=lambda item: -item[1].psi)[:shown]
    text += [f"  {name:24} PSI {one.psi:.3f} (by chance up to {one.noise:.3f}) {one.level}" for name, one in most]
    if not most:
        text.append("  no input columns: no decision of one side has alternatives")
    if found.forecasts is None:
        text.append("forecasts: too few reported speeds")
    else:
        moved = found.forecasts
        text.append(
            f"forecasts: mean of ln(reported / predicted speed) {moved.reference_mean:+.3f} → "
            f"{moved.recent_mean:+.3f}, "
            f"change {moved.low:+.3f} … {moved.high:+.3f} (95 %)"
        )
    text += [f"unseen model: {name or '(none given)'}, {count} jobs" for name, count in found.models.items()]
    return [*text, "drifted" if found.is_drifted else "not drifted"]
