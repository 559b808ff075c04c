"""The gain that was realised: rewards of jobs that drew the candidate beside those of the others."""

import math
from pathlib import Path

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_log.store import LogStore
from placewise_training.evaluate.usual import usual_growths
from placewise_training.log.placed import REWARD, placed_jobs


def gain_of_arms(log: Path, column: str, ours: object) -> tuple[float, float]:
    """Gain of the jobs with this value in the column of `joined` over the others, and its standard error. Jobs without
    a reward or a value count for neither. Raises LogError."""
    jobs = [one for one in placed_jobs(log) if one.reward is not None]
    values = _values(log, column)
    known = [values.get((one.decision_id, one.job.id)) for one in jobs]
    kept = [i for i, value in enumerate(known) if value is not None]
    growths = usual_growths(log, jobs, REWARD)[kept]
    if column == "arm":  # jobs of the two arms have other alternatives, so their neighbours tell of the arm
        growths = growths[:, :1]
    rewards = np.array([jobs[i].reward for i in kept], dtype=np.float64)
    return adjusted_gain(rewards, growths, np.array([known[i] == ours for i in kept]))


def _values(log: Path, column: str) -> dict[tuple[str, str], object]:
    names = ("decision_id", "job_id", column)
    return {
        (decision, job): value
        for batch in LogStore(log).batches("joined", names)
        for decision, job, value in zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    }


def adjusted_gain(reward: FloatArray, before: FloatArray, is_ours: BoolArray) -> tuple[float, float]:
    """Difference of the means of (N,) rewards, adjusted for (N, B) numbers known before the draw by a linear model, and
    its standard error (Freedman 2008): the draw does not depend on these, so they only take chance away. NaN if either
    side has no job."""
    if is_ours.all() or not is_ours.any():
        return math.nan, math.nan
    inputs = np.column_stack([np.ones(len(reward)), before - before.mean(axis=0), is_ours])
    slopes, *_ = np.linalg.lstsq(inputs, reward, rcond=None)
    left = reward - inputs @ slopes
    spread = float(left @ left) / max(1, len(reward) - inputs.shape[1])
    mine = float(is_ours.sum())
    return float(slopes[-1]), math.sqrt(spread * (1.0 / mine + 1.0 / (len(reward) - mine)))
