"""How long jobs took, unfinished ones included: they took at least as long as is known. Pure, but for reading.

A mean over the jobs that have ended is too short, and the more so the longer they take: a policy that makes jobs longer
has more of them cut off by the log's end. Kaplan & Meier (1958) count these up to when they are known.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.places import Places


class Duration(NamedTuple):
    """Seconds from start to end of one job, or at least so many. `policy` is the explorer's name if one decided;
    `jct_s` is from submission, None if that is unknown. A job that failed or was cancelled is censored then."""

    policy: str
    model: str
    user: str
    gpus: float
    run_s: float
    jct_s: float | None
    is_censored: bool
    propensity: float
    is_overridden: bool
    time_s: float


@dataclass(slots=True)
class Durations:
    """Of every job that started. `counts` as those of Places."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Duration]:
        """Raises LogError."""
        places, left_out = Places(self.store, self.index), Counter[str]()
        for placed in places:
            logged, job, record = placed.run, placed.job, placed.record
            if logged is None or logged.known_s <= logged.run.start_s:
                left_out["never started" if logged is None else "just begun"] += 1
                continue
            draw, submit_s = record.draw_of(job.id), placed.outcome.submit_time_s
            yield Duration(
                (draw.explorer if draw is not None else "") or record.meta.policy,
                job.model,
                job.user,
                job.gpus,
                logged.known_s - logged.run.start_s,
                logged.known_s - submit_s if submit_s else None,
                not logged.has_finished,
                placed.decided.propensity,
                placed.outcome.is_overridden,
                record.time_s,
            )
        self.counts = places.counts + left_out


def restricted_mean_s(
    seconds: Sequence[float] | FloatArray, is_censored: Sequence[bool] | BoolArray, within_s: float
) -> float:
    """Mean of min(T, `within_s`) by Kaplan & Meier: the area under S(t) = Π_{t_i ≤ t} (1 − d_i / n_i) up to `within_s`,
    with d_i jobs that end at t_i among the n_i that are known to last until then. Where even the longest known job is
    shorter, S keeps its last value. Raises ValueError without jobs."""
    times, censored = np.asarray(seconds, dtype=np.float64), np.asarray(is_censored, dtype=np.bool_)
    if not len(times):
        raise ValueError("no jobs: no mean")
    ends, ended = np.unique(times[~censored & (times < within_s)], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), ends, side="left")
    left = np.concatenate([[1.0], np.cumprod(1.0 - ended / np.maximum(at_risk, 1))])
    return float((left * np.diff([0.0, *ends, within_s])).sum())


def by_policy(rows: Iterable[Duration], within_s: float) -> dict[str, float]:
    """The restricted mean of `run_s` under each policy."""
    found: dict[str, list[tuple[float, bool]]] = {}
    for row in rows:
        found.setdefault(row.policy, []).append((row.run_s, row.is_censored))
    return {
        policy: restricted_mean_s([seconds for seconds, _ in jobs], [is_censored for _, is_censored in jobs], within_s)
        for policy, jobs in found.items()
    }
