"""Samples of the reward model from a log: the tokens of each logged placement, and how fast its jobs then ran.

Speeds are in units of linear speed, as in reward/data.py. The speed of the new job holds until its neighbours change;
that of a job beside it is over the same stretch. Jobs that declare no length have no linear speed.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from placewise_core.basics.arrays import FloatArray
from placewise_log.record import Parts
from placewise_log.store import LogStore
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.later import gain, held_back
from placewise_training.log.places import Placed, Places
from placewise_training.log.speeds import Speed, speed_of
from placewise_training.reward.data import Sample, collate
from placewise_training.reward.net import RewardNet

_BATCH = 256


class RewardRow(NamedTuple):
    """A sample, when and how it was decided, and the model of its new job."""

    sample: Sample
    time_s: float
    policy: str
    propensity: float
    model: str


@dataclass(slots=True)
class RewardRows:
    """`counts` as those of Places, with the placed jobs that gave no sample, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[RewardRow]:
        """Raises LogError."""
        places = Places(self.store, self.index)
        places.read_declared()
        left_out: Counter[str] = Counter()
        for placed in places:
            parts = next((each for each in placed.record.parts if each.job_id == placed.job.id), None)
            reason = _reason(placed, parts, self.index)
            if not reason and parts is not None and placed.run is not None:
                sample = self._sample(placed, parts, placed.run)
                if sample is not None:
                    left_out["bounds"] += sample.is_bound
                    draw = placed.record.draw_of(placed.job.id)
                    explorer = draw.explorer if draw is not None else ""
                    policy = explorer or placed.record.meta.policy
                    yield RewardRow(sample, placed.record.time_s, policy, placed.decided.propensity, placed.job.model)
                    continue
                reason = "nothing known of its speed"
            left_out[reason] += 1
        self.counts = places.counts + left_out

    def _sample(self, placed: Placed, parts: Parts, logged: Logged) -> Sample | None:
        cluster, start_s = placed.record.cluster, logged.run.start_s
        change_s = self.index.next_change_s(cluster, logged.run.nodes, start_s, placed.job.id)
        found = speed_of(logged, start_s, change_s)
        if found is None:
            return None
        chosen = [each for each in placed.record.alternatives or () if each.job_id == placed.job.id]
        k = next(i for i, each in enumerate(chosen) if each.is_chosen)
        job = parts.job.unpack()[k].astype(np.int64)
        is_token = job >= 0
        job = job[is_token]
        speeds = np.zeros(max(len(parts.jobs), int(job.max())) + 1, dtype=np.float32)
        speeds[0] = found.epochs_per_s / self.index.linear(placed.record.decision_id, placed.job.id)
        for i, name in enumerate(parts.jobs, start=1):
            speeds[i] = self._beside(cluster, name, found)
        tokens = parts.tokens.unpack()[k][is_token].astype(np.float32)
        node = parts.node.unpack()[k][is_token].astype(np.int64)
        return Sample(tokens, job, node, speeds[job], is_bound=found.is_bound)

    def _beside(self, cluster: str, job_id: str, during: Speed) -> float:
        """Speed of a neighbour while the new job's was taken; 0 if it is not known."""
        logged = self.index.run_at(cluster, job_id, during.from_s)
        if logged is None or during.is_bound or logged.run.end_s <= during.from_s:
            return 0.0
        linear = self.index.linear(logged.decision_id, job_id)
        found = speed_of(logged, during.from_s, during.until_s) if linear else None
        return 0.0 if found is None or found.is_bound else found.epochs_per_s / linear


def _reason(placed: Placed, parts: Parts | None, index: LogIndex) -> str:
    if parts is None:
        return "without inputs of the reward model"
    if placed.run is None:
        return "never started"
    if placed.outcome.is_overridden:
        return "ran elsewhere"
    return "" if index.linear(placed.record.decision_id, placed.job.id) else "without a length"


class LogSamples(NamedTuple):
    """Samples of a log to learn from, to choose by and, later than both, to judge by, with the times of the last; the
    rows of the log by reason."""

    learn: Sequence[Sample]
    choose: Sequence[Sample]
    later: Sequence[Sample]
    later_s: FloatArray
    counts: Mapping[str, int]


def log_samples(where: str, before_s: float = 0.0) -> LogSamples:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    log = held_back(RewardRows, where, before_s, choose=0.1)
    learn, choose, later = ([row.sample for row in rows] for rows in (log.learn, log.choose, log.later))
    return LogSamples(learn, choose, later, log.later_s, log.counts)


def gain_of(before: RewardNet, after: RewardNet, log: LogSamples, device: torch.device) -> dict[str, Any]:
    """The errors of both nets on the later samples, and by how much they fell."""
    errors = [errors_of_new(net, log.later, device) for net in (before, after)]
    return gain(errors[0], errors[1], log.later_s)


def errors_of_new(net: RewardNet, samples: Sequence[Sample], device: torch.device) -> FloatArray:
    """(N,) relative error of the new job's speed; a speed below a bound is none."""
    found = []
    net.eval()
    for start in range(0, len(samples), _BATCH):
        chosen = samples[start : start + _BATCH]
        batch = collate(chosen)
        tokens, job, node = (torch.from_numpy(np.asarray(batch[name])).to(device) for name in ("tokens", "job", "node"))
        with torch.no_grad():
            speed = net(tokens, job, node)[0].cpu().numpy().astype(np.float64)
        at = (np.asarray(batch["job"]) == 0).argmax(axis=1)
        each = np.arange(len(chosen))
        true = np.asarray(batch["speed"], dtype=np.float64)[each, at]
        above = speed[each, at] / true - 1.0
        is_bound = np.array([sample.is_bound for sample in chosen])
        found.append(np.where(is_bound, np.maximum(above, 0.0), np.abs(above)))
    net.train()
    return np.concatenate(found)
