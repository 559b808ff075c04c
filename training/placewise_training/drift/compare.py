"""Two stretches of a log beside each other: input columns, forecasts, models and GPU types never seen."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.inputs.tables import TOKEN_COLUMNS
from placewise_training.drift.residuals import Shift, shift
from placewise_training.drift.stability import ERROR, Level, Stability, stability_by_blocks, unseen
from placewise_training.log.inputs import LoggedJob, asked_jobs, residuals


@dataclass(frozen=True, slots=True)
class Drift:
    """`reference`, `recent`: jobs before and after the cut. `columns`: of the reward model's inputs, empty without
    decisions that have them. `forecasts` is None with too few reports. `models`: jobs of models that the reference
    never had; `gpu_models`: jobs on GPU types that no job of the reference had."""

    reference: int
    recent: int
    columns: Mapping[str, Stability]
    forecasts: Shift | None
    models: Mapping[str, int]
    gpu_models: Mapping[str, int] = field(default_factory=dict)

    @property
    def moved(self) -> Sequence[str]:
        """Columns that are DRIFTED."""
        return [name for name, one in self.columns.items() if one.level is Level.DRIFTED]

    @property
    def is_drifted(self) -> bool:
        """A column is DRIFTED, forecasts have shifted, or there are unseen models or GPU types."""
        is_shifted = self.forecasts is not None and self.forecasts.is_drifted
        return bool(self.moved or self.models or self.gpu_models) or is_shifted


def drift_of_log(
    log: Path, recent_share: float, block_s: float, bundle: str = "", cluster: str = "", cut_s: float | None = None
) -> Drift:
    """The last `recent_share` of the time of a log beside the rest, or from `cut_s` on; with a name only decisions of
    that bundle, or cluster. Raises LogError, ValueError for a log that holds too little."""
    jobs = list(asked_jobs(log, bundle, cluster))
    if not jobs:
        raise ValueError("it holds no Place decision" + (f" of bundle {bundle}" if bundle else ""))
    times = [job.time_s for job in jobs]
    cut = max(times) - recent_share * (max(times) - min(times)) if cut_s is None else cut_s
    return drift(jobs, residuals(log, bundle, cluster), cut, block_s)


def drift(jobs: Sequence[LoggedJob], residuals: tuple[FloatArray, FloatArray], cut_s: float, block_s: float) -> Drift:
    """Jobs and forecasts before `cut_s` beside those from then on. Raises ValueError if one side has no job."""
    before, after = [one for one in jobs if one.time_s < cut_s], [one for one in jobs if one.time_s >= cut_s]
    if not before or not after:
        raise ValueError("one side of the cut has no Place decision: nothing can be compared")
    models = unseen([one.model for one in before], [one.model for one in after])
    gpus = [[name for one in side for name in sorted(one.gpu_models)] for side in (before, after)]
    return Drift(
        len(before), len(after), _columns(jobs, cut_s, block_s), _forecasts(*residuals, cut_s, block_s),
        {str(name): count for name, count in models.items()},
        {str(name): count for name, count in unseen(*gpus).items()} if gpus[0] else {},
    )  # fmt: skip


def _columns(jobs: Sequence[LoggedJob], cut_s: float, block_s: float) -> Mapping[str, Stability]:
    known = [(one.time_s, one.tokens) for one in jobs if one.tokens is not None]
    time_s = np.array([each for each, _ in known])
    is_recent = time_s >= cut_s
    if not known or is_recent.all() or not is_recent.any():
        return {}
    tokens = np.stack([each for _, each in known])
    block = np.floor((time_s - cut_s) / block_s).astype(np.int64)  # none has both sides of the cut
    error = ERROR / len(TOKEN_COLUMNS)
    return {
        name: stability_by_blocks(tokens[:, i], block, is_recent, error=error) for i, name in enumerate(TOKEN_COLUMNS)
    }


def _forecasts(time_s: FloatArray, residual: FloatArray, cut_s: float, block_s: float) -> Shift | None:
    block = (time_s // block_s).astype(np.int64)
    is_before = time_s < cut_s
    if min(len(np.unique(block[is_before])), len(np.unique(block[~is_before]))) < 2:
        return None
    return shift(residual[is_before], block[is_before], residual[~is_before], block[~is_before])


def as_json(found: Drift) -> Mapping[str, Any]:
    """The drift as one JSON object."""
    return {
        **asdict(found),
        "columns": {name: {**asdict(one), "level": str(one.level)} for name, one in found.columns.items()},
        "is_drifted": found.is_drifted,
    }


def lines(found: Drift, shown: int = 10) -> list[str]:
    """The report: the `shown` columns that moved most, forecasts, unseen models and GPU types, and the verdict."""
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
    text += [f"unseen GPU type: {name}, {count} jobs" for name, count in found.gpu_models.items()]
    return [*text, "drifted" if found.is_drifted else "not drifted"]


def summary(found: Drift) -> str:
    """One line for a report."""
    parts = [f"input columns {', '.join(found.moved)} moved"] if found.moved else []
    if found.forecasts is not None and found.forecasts.is_drifted:
        parts.append(f"forecasts are off by {found.forecasts.change:+.3f} in ln(reported / predicted speed)")
    for what, counts in (("models", found.models), ("GPU types", found.gpu_models)):
        if counts:
            parts.append(f"unseen {what} {', '.join(f'{name} ({count} jobs)' for name, count in counts.items())}")
    return f"drift: {'; '.join(parts) or 'none'}"
