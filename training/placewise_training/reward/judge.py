"""How wrong a reward model is, and whether it knows: errors by job, calibration of its spread, the limit of the spread.

Every figure counts every job of a placement once. Trains nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from placewise_core.inputs.reward import REPORTED
from placewise_training.reward.data import Sample, collate
from placewise_training.reward.net import RewardNet

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
_WITHIN = 0.10  # Harmony counts predictions within ten percent
_BATCH = 256
_BINS = 5
# Shares of the new jobs that keep their score: the first limit beyond which the error is significantly larger is taken.
_KEPT_SHARES = (0.98, 0.95, 0.90, 0.80)
_RESAMPLES = 1000
NEVER = 10.0  # a spread that no net gives: its scale and its members' answers are bounded


@dataclass(frozen=True, slots=True)
class JobErrors:
    """(N,) one entry per job of every placement: relative error, error and spread of the log-speed, kind of job."""

    wrong: Array
    log_error: Array
    spread: Array
    is_new: Bools
    is_reported: Bools


def judge(net: RewardNet, samples: Sequence[Sample], device: torch.device, *, is_blind: bool = False) -> JobErrors:
    """The net's answers against the labels; `is_blind` hides every reported speed from it."""
    parts: list[list[NDArray[Any]]] = []
    net.eval()
    for start in range(0, len(samples), _BATCH):
        batch = collate(samples[start : start + _BATCH])
        if is_blind:
            batch["tokens"][:, :, REPORTED] = 0.0
        tokens, job, node = (torch.from_numpy(np.asarray(batch[n])).to(device) for n in ("tokens", "job", "node"))
        with torch.no_grad():
            speed, spread = (answer.cpu().numpy().astype(np.float64) for answer in net(tokens, job, node))
        true: NDArray[np.float32] = np.asarray(batch["speed"], dtype=np.float32)
        weight: NDArray[np.float32] = np.asarray(np.where(batch["bound"], 0.0, batch["weight"]), dtype=np.float32)
        job_of: NDArray[np.int64] = np.asarray(batch["job"], dtype=np.int64)
        reported: NDArray[np.float32] = np.asarray(batch["tokens"], dtype=np.float32)[:, :, REPORTED.start]
        at = _first_tokens(np.where(weight > 0, job_of, -1))
        columns = (
            np.abs(speed - true) / true,
            np.log(speed / true),
            spread,
            job_of == 0,
            reported > 0,
        )
        parts.append([column[at] for column in columns])
    net.train()
    return JobErrors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _first_tokens(job: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where each job of each placement is first: all tokens of a job have one answer and one label."""
    row, column = np.nonzero(job >= 0)
    _, first = np.unique(row * (job.max() + 1) + job[row, column], return_index=True)
    return row[first], column[first]


def errors(judged: JobErrors) -> dict[str, float]:
    """Mean relative error and the share within ten percent: of all, new, and running jobs without a report."""
    kinds = {
        "": np.ones(len(judged.wrong), dtype=np.bool_),
        "_new": judged.is_new,
        "_unreported": ~judged.is_new & ~judged.is_reported,
    }
    found: dict[str, float] = {}
    for suffix, chosen in kinds.items():
        if chosen.any():
            found[f"mean_relative_error{suffix}"] = float(judged.wrong[chosen].mean())
            found[f"within_10_percent{suffix}"] = float((judged.wrong[chosen] <= _WITHIN).mean())
    return found


def constant_error(training: Sequence[Sample], judged: Sequence[Sample]) -> float:
    """Relative error of the best constant: the predictor any model has to beat. Fitted on `training`."""
    known, w = _per_job(training)
    true, v = _per_job(judged)
    guesses = np.quantile(known, np.linspace(0.02, 0.98, 49))
    best = min(guesses, key=lambda guess: float((np.abs(guess - known) / known * w).sum()))
    return float((np.abs(best - true) / true * v).sum() / v.sum())


def _per_job(samples: Sequence[Sample]) -> tuple[Any, Any]:
    speeds = np.concatenate([sample.speed for sample in samples])
    weights = np.concatenate([1.0 / np.bincount(sample.job)[sample.job] for sample in samples])
    return speeds[speeds > 0], weights[speeds > 0]


def calibration(judged: JobErrors) -> list[dict[str, float]]:
    """New jobs in bins of equal size by spread: the error that the net expects, and the error that it makes."""
    order = np.flatnonzero(judged.is_new)[np.argsort(judged.spread[judged.is_new])]
    return [
        {
            "spread": float(judged.spread[chosen].mean()),
            "log_error_rms": float((judged.log_error[chosen] ** 2).mean() ** 0.5),
            "mean_relative_error": float(judged.wrong[chosen].mean()),
        }
        for chosen in np.array_split(order, _BINS)
        if len(chosen)
    ]


def spread_limit(judged: JobErrors) -> tuple[float, dict[str, float]]:
    """The spread from which on nothing should rest on the net, chosen on validation data, and the errors on both sides.

    Of several shares of new jobs that keep their score, the largest whose rest errs significantly more: the 95 %
    interval of the difference of mean errors, jobs resampled, is above 0. Out of reach if there is none.
    """
    error, spread = judged.wrong[judged.is_new], judged.spread[judged.is_new]
    for kept in _KEPT_SHARES:
        limit = float(np.quantile(spread, kept))
        within, beyond = error[spread <= limit], error[spread > limit]
        if len(beyond) < 2:
            continue
        low, high = _difference(within, beyond)
        if low > 0:
            return limit, {
                "kept_share": kept,
                "error_within": float(within.mean()),
                "error_beyond": float(beyond.mean()),
                "difference_low": low,
                "difference_high": high,
            }
    return NEVER, {}


def beyond(judged: JobErrors, limit: float) -> Mapping[str, float]:
    """Share of the new jobs beyond the limit, and the errors on both sides of it."""
    out, kept = judged.is_new & (judged.spread > limit), judged.is_new & (judged.spread <= limit)
    return {
        "share_beyond": float(out.sum() / max(1, judged.is_new.sum())),
        **{
            f"error_{side}": float(judged.wrong[at].mean())
            for side, at in (("within", kept), ("beyond", out))
            if at.any()
        },
    }


def _difference(within: Array, beyond: Array) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    draws = [
        beyond[rng.integers(0, len(beyond), len(beyond))].mean()
        - within[rng.integers(0, len(within), len(within))].mean()
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
