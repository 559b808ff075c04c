"""Work that jobs do within a reward's horizon at their usual speed: known before a decision, whatever it decides.

Rewards differ from one another mostly by the lengths of the jobs that they sum over. A forecast that knows these leaves
less to chance, so the estimate's interval is shorter. It stays unbiased, as nothing here depends on the placement.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.placed import PlacedJob, Reward
from placewise_training.log.places import Places

HORIZON_S: Final = {Reward.MIN_5: 300.0, Reward.MIN_20: 1200.0, Reward.MIN_60: 3600.0}
_WHOLE: Final = 1.0 - 1e-6
_LEAST_LEFT: Final = 0.02  # a job that should have ended by now
_PRIOR: Final = 3.0  # ended jobs that the mean over all models counts for


class Stay(NamedTuple):
    """A job that ran: `end_s` is infinite until it ended."""

    cluster: str
    job: Job
    decide_s: float
    start_s: float
    end_s: float
    has_finished: bool
    nodes: tuple[str, ...]


class Question(NamedTuple):
    """A job to be placed at a time; `nodes` are those on which its placement may matter."""

    cluster: str
    job: Job
    time_s: float
    nodes: frozenset[str]


def usual_growths(log: Path, jobs: Sequence[PlacedJob], reward: str) -> FloatArray:
    """(N, 3) of each job: progress that it makes in the horizon at its usual speed, the same summed over the jobs
    that run by then on a node of its alternatives, and how many these are. Progress is a share of a job's
    work. Raises LogError."""
    store = LogStore(log)
    with LogIndex(store) as index:
        stays = list(_stays(Places(store, index)))
    questions = [Question(one.record.cluster, one.job, one.time_s, _neighbourhood(one)) for one in jobs]
    return growths_of(stays, questions, HORIZON_S[Reward(reward)])


def _stays(places: Places) -> Iterator[Stay]:
    for placed in places:
        if placed.run is not None:
            run, end_s = placed.run.run, placed.run.known_s if placed.run.end else math.inf
            yield Stay(
                placed.record.cluster, placed.job, placed.record.time_s, run.start_s, end_s, placed.run.has_finished,
                tuple(run.nodes),
            )  # fmt: skip


def growths_of(stays: Sequence[Stay], questions: Sequence[Question], horizon_s: float) -> FloatArray:
    """As usual_growths. Nothing that happened after a question has a part in its row."""
    lengths, running = _Lengths(horizon_s), _Running()
    started = sorted(stays, key=lambda stay: max(stay.decide_s, stay.start_s))
    ended = sorted((stay for stay in stays if stay.end_s < math.inf), key=lambda stay: stay.end_s)
    found = np.zeros((len(questions), 3))
    begun = over = 0
    for i in np.argsort([one.time_s for one in questions], kind="stable").tolist():
        asked = questions[i]
        while begun < len(started) and max(started[begun].decide_s, started[begun].start_s) < asked.time_s:
            running.add(started[begun])
            begun += 1
        while over < len(ended) and ended[over].end_s <= asked.time_s:
            lengths.note(ended[over])
            running.remove(ended[over])
            over += 1
        beside = running.on(asked)
        progress = sum(lengths.progress(stay.job, asked.time_s - stay.start_s) for stay in beside)
        found[i] = lengths.progress(asked.job, 0.0), progress, len(beside)
    return found


def _neighbourhood(placed: PlacedJob) -> frozenset[str]:
    """Nodes of the alternatives that some policy gives with certainty. The nodes of a drawn placement would depend on
    the draw."""
    sure = [one for one in placed.options if max(one.policies.values(), default=0.0) >= _WHOLE]
    return frozenset(node for one in sure for node in one.nodes)


@dataclass(slots=True)
class _Running:
    """Jobs by cluster and node, from their start to their end."""

    by_node: defaultdict[tuple[str, str], dict[str, Stay]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, stay: Stay) -> None:
        if stay.end_s > max(stay.decide_s, stay.start_s):
            for node in stay.nodes:
                self.by_node[stay.cluster, node][stay.job.id] = stay

    def remove(self, stay: Stay) -> None:
        for node in stay.nodes:
            held = self.by_node[stay.cluster, node]
            if held.get(stay.job.id) is stay:
                del held[stay.job.id]

    def on(self, asked: Question) -> list[Stay]:
        """The other jobs on its nodes."""
        held = (self.by_node[asked.cluster, node] for node in sorted(asked.nodes))
        found = {stay.job.id: stay for each in held for stay in each.values()}
        found.pop(asked.job.id, None)
        return list(found.values())


@dataclass(slots=True)
class _Lengths:
    """Usual seconds of a job: its declared length times the geometric mean by which jobs of its model and size that
    have ended differed from theirs, shrunk to that of all jobs."""

    horizon_s: float
    sums: defaultdict[tuple[str, ...], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))

    def note(self, stay: Stay) -> None:
        run_s = stay.end_s - stay.start_s
        if stay.has_finished and run_s > 0.0:
            kind, declared = _declared(stay.job)
            for key in ((kind,), (kind, stay.job.model, f"{stay.job.gpus:g}")):
                counted = self.sums[key]
                counted[0] += math.log(run_s / declared)
                counted[1] += 1.0

    def progress(self, job: Job, elapsed_s: float) -> float:
        """Of a job that has run for so long: the share of its work within the horizon."""
        usual_s = self._usual_s(job)
        return min(max(_LEAST_LEFT, 1.0 - max(0.0, elapsed_s) / usual_s), self.horizon_s / usual_s)

    def _usual_s(self, job: Job) -> float:
        kind, declared = _declared(job)
        total, count = self.sums[(kind,)]
        known = 0.0 if kind == _SECONDS else math.log(self.horizon_s / declared)
        among_all = total / count if count else known
        total, count = self.sums[kind, job.model, f"{job.gpus:g}"]
        return max(1.0, declared * math.exp((total + _PRIOR * among_all) / (count + _PRIOR)))


_SECONDS, _EPOCHS, _NOTHING = "seconds", "epochs", ""


def _declared(job: Job) -> tuple[str, float]:
    """How a job declares its length, and the length: in seconds on all its GPUs, in epochs, or not at all."""
    gpus = max(1.0, job.gpus)
    if job.single_gpu_s > 0.0:
        return _SECONDS, job.single_gpu_s / gpus
    if job.total_epochs > 0.0:
        return _EPOCHS, job.total_epochs / gpus
    return _NOTHING, 1.0
