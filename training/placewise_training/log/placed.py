"""Placed jobs of an exported log whose alternatives are known, each with its reward. Judges nothing.

Reads `decisions` and `joined` as docs/log-columns.md has them, file by file.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job
from placewise_log.record import CorruptEntryError, DecisionRecord, Parts, decode
from placewise_log.store import LogError, LogStore

DECISION_COLUMNS = ("id", "rpc", "time", "policy", "is_dry_run", "shadow_of", "alternatives", "record")
JOINED_COLUMNS = ("decision_id", "job_id", "unit", "status", "is_overridden")


class Reward(enum.StrEnum):
    """The rewards of `joined`."""

    MIN_5 = "reward_5min"
    MIN_20 = "reward_20min"
    MIN_60 = "reward_60min"


REWARD = Reward.MIN_20
OUTSIDE: Final = "of a propensity outside (0, 1]"


def is_probability(propensity: float, is_chosen: bool) -> bool:
    """Only a placement that was not chosen may have had none."""
    return 0.0 <= propensity <= 1.0 and (propensity > 0.0 or not is_chosen)


@dataclass(frozen=True, slots=True)
class Option:
    """One placement that could have been: P and π of the policy in force are None if the clock stopped a policy.
    `policies`: the probability with which each policy that was asked gives it."""

    nodes: tuple[str, ...]
    is_chosen: bool
    propensity: float | None
    own: float | None
    policies: Mapping[str, float]

    @property
    def is_probable(self) -> bool:
        """False if P is known and none: outside [0, 1], or 0 of the placement that was taken."""
        return self.propensity is None or is_probability(self.propensity, self.is_chosen)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedJob:
    """One job of a Place decision. `reward` is None if it is not known (yet). `record` is the decision's, without its
    observations; `parts` have the reward model's tokens of the options, in their order; () without them."""

    decision_id: str
    time_s: float
    policy: str
    job: Job
    options: tuple[Option, ...]
    record: DecisionRecord
    parts: tuple[Parts, ...]
    status: str
    is_overridden: bool
    reward: float | None


def placed_jobs(directory: str | Path, reward: str = REWARD) -> Iterator[PlacedJob]:
    """In no order. Dry runs and decisions in a shadow are left out. Raises LogError."""
    store = LogStore(directory)
    wanted = (pc.field("rpc") == "Place") & pc.field("alternatives").is_valid()
    wanted &= ~pc.field("is_dry_run") & pc.field("shadow_of").is_null()
    asked = ("id", "rpc", "is_dry_run", "shadow_of", "alternatives")
    ids = [data for batch in store.batches("decisions", asked, wanted) for data in batch.column("id").to_pylist()]
    outcomes = _outcomes(store, pa.array(ids, pa.string()), reward)
    for batch in store.batches("decisions", DECISION_COLUMNS, wanted):
        for row in batch.to_pylist():
            yield from _jobs_of(row, outcomes)


def _outcomes(store: LogStore, ids: pa.Array, reward: str) -> dict[tuple[str, str], tuple[str, bool, float | None]]:
    """(status, is overridden, reward) by decision and job."""
    wanted = pc.field("decision_id").isin(ids) & (pc.field("unit") == "")
    names = ("decision_id", "job_id", "status", "is_overridden", reward)
    return {
        (decision, job): (status, is_other, value)
        for batch in store.batches("joined", (*JOINED_COLUMNS, reward), wanted)
        for decision, job, status, is_other, value in zip(*(batch.column(n).to_pylist() for n in names), strict=True)
    }


def _jobs_of(
    row: Mapping[str, Any], outcomes: Mapping[tuple[str, str], tuple[str, bool, float | None]]
) -> Iterator[PlacedJob]:
    try:
        record = decode(row["record"])
    except CorruptEntryError as error:
        raise LogError(f"decision {row['id']}: {error}") from error
    lean = replace(record, choices=(), alternatives=None, steps=(), parts=(), compared=())
    for job in record.jobs:
        options = tuple(_option(each) for each in row["alternatives"] if each["job_id"] == job.id)
        found = outcomes.get((row["id"], job.id))
        if options and found:
            status, is_overridden, value = found
            parts = tuple(each for each in record.parts if each.job_id == job.id)
            yield PlacedJob(
                row["id"], record.time_s, row["policy"], job, options, lean, parts, status, is_overridden, value
            )


def _option(row: Mapping[str, Any]) -> Option:
    return Option(
        tuple(row["nodes"]), row["is_chosen"], row["propensity"], row["own_propensity"], dict(row["policies"] or ())
    )


def features_of(placed: PlacedJob, *, has_parts: bool) -> FloatArray:
    """(K, F) of the job and each of its options: tasks, GPUs, epochs and batch of the job, nodes and the most tasks on
    one of them; with `has_parts` also the means of the tokens that the reward model reads, the job's own and those of
    jobs beside it, and how many of these there are. Raises ValueError if they are asked for and not there."""
    job = placed.job
    tasks = [group.count for group in job.groups]
    gpus = sum(group.count * group.demand.gpus for group in job.groups)
    constant = np.log1p([sum(tasks), gpus, job.total_epochs, job.batch_size])
    counts = [np.unique(np.asarray(option.nodes), return_counts=True)[1] for option in placed.options]
    shape = np.log1p([[len(found), found.max(initial=0)] for found in counts])
    rows = np.hstack([np.tile(constant, (len(counts), 1)), shape])
    return np.hstack([rows, _pooled(placed)]) if has_parts else rows


def _pooled(placed: PlacedJob) -> FloatArray:
    if not placed.parts:
        raise ValueError(f"decision {placed.decision_id} has no inputs of the reward model")
    return np.concatenate([_means(parts) for parts in placed.parts])


def _means(parts: Parts) -> FloatArray:
    tokens = parts.tokens.unpack().astype(np.float64)  # (K, P, F)
    of_job = parts.job.unpack().astype(np.int64)  # (K, P)
    is_own = of_job == 0
    # Tokens of jobs beside the job; those after them are witnesses elsewhere, padding is −1.
    is_beside = (of_job > 0) & (of_job <= len(parts.jobs))
    own, beside = (
        (tokens * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)[:, None]
        for mask in (is_own, is_beside)
    )
    return np.hstack([own, beside, np.log1p(is_beside.sum(axis=1))[:, None]])
