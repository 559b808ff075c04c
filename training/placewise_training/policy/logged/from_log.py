"""Harmony's policy learns from a decision log: a search over the reward model teaches it on each view that was read.

The outcomes come in through the reward model, which the same log has to have taught before (`train reward --log`). What
the policy gained is judged by the outcomes themselves (log/choosing/choices.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import task_names
from placewise_core.inputs.shortlist import MOST_NODES
from placewise_core.policies.harmony import PolicyNet as ServedNet
from placewise_core.policies.search import SpeedScorer
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_training.log.choosing.choices import LoggedChoice, gain_of_choices
from placewise_training.log.choosing.ridge import Ridge
from placewise_training.log.later import HeldBack, held_back
from placewise_training.log.placed import OUTSIDE, REWARD, Option, PlacedJob, features_of, placed_jobs
from placewise_training.policy.batches import ask, collate, log_pi_taken
from placewise_training.policy.net import PolicyNet
from placewise_training.policy.rollouts import Actor, Chunk, Conduct, Episode, Interval
from placewise_training.policy.teacher import Counts, Lesson, Teacher

_BATCH = 128


Way = TypeVar("Way")  # the inputs of a net on its way to a placement
# The way to the best placement of a lesson, or to that of the teacher; None if the net cannot take it, or has none.
Along = Callable[[Lesson, Job, ClusterView, PlaceContext], Way | None]
Taught = Callable[[Job, ClusterView, PlaceContext], Way | None]


class Choice(NamedTuple, Generic[Way]):
    """A placement that the log could have taken, with probability `propensity`."""

    way: Way
    propensity: float
    is_chosen: bool


class PolicyRow(NamedTuple, Generic[Way]):
    """A placed job: the way of the teacher, None if it found none; the choices; the reward, None if unknown.
    `situation` (F,) is the mean of features_of the placements, which does not tell which was taken."""

    time_s: float
    taught: Way | None
    choices: tuple[Choice[Way], ...]
    reward: float | None
    situation: FloatArray

    @property
    def chosen(self) -> int:
        """Which of the choices was taken."""
        return next(k for k, choice in enumerate(self.choices) if choice.is_chosen)


@dataclass(slots=True)
class PolicyRows(Generic[Way]):
    """`counts` has the rows and, by reason, the placed jobs with alternatives that gave none."""

    where: str
    along: Along[Way]
    taught: Taught[Way]
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[PolicyRow[Way]]:
        """Raises LogError."""
        self.counts.clear()
        log = ExportedLog(self.where)
        for placed in placed_jobs(self.where, REWARD):
            found = self._row(placed, log)
            if isinstance(found, str):
                self.counts[found] += 1
            else:
                self.counts["rows"] += 1
                yield found

    def _row(self, placed: PlacedJob, log: ExportedLog) -> PolicyRow[Way] | str:
        """The row, or why there is none."""
        if placed.is_overridden:
            return "ran elsewhere"
        if placed.job.single_gpu_s <= 0:
            return "without a length"
        if not all(option.is_probable for option in placed.options):
            return OUTSIDE
        try:
            view = log.view_at(placed.record, placed.job.id)
        except NotRebuiltError:
            return "on a view that cannot be rebuilt"
        if view.nodes.size > MOST_NODES:
            return "on more nodes than the net looks at"
        job, context = with_groups(placed.job, view), PlaceContext(placed.time_s, placed.record.seed)
        choices = [self._choice(option, job, view, context) for option in placed.options if option.propensity]
        kept = tuple(choice for choice in choices if choice is not None)
        if len(kept) < len(choices) or not any(choice.is_chosen for choice in kept):
            return "by a way that the net cannot take"
        situation = features_of(placed, has_parts=bool(placed.parts)).mean(axis=0)
        return PolicyRow(placed.time_s, self.taught(job, view, context), kept, placed.reward, situation)

    def _choice(self, option: Option, job: Job, view: ClusterView, context: PlaceContext) -> Choice[Way] | None:
        counts = counts_of(option.nodes, job, view)
        way = None if counts is None else self.along(Lesson.of(counts), job, view, context)
        return None if way is None else Choice(way, option.propensity or 0.0, option.is_chosen)


def counts_of(nodes: Sequence[str], job: Job, view: ClusterView) -> Counts | None:
    """(2, M) workers and servers on each node, of an alternative's nodes, which are in the order of the tasks' names;
    None if a node is gone."""
    roles = [group.role for group, _ in sorted(task_names(job), key=lambda task: task[1])]
    if len(roles) != len(nodes) or any(node not in view.nodes.index for node in nodes):
        return None
    counts = np.zeros((2, view.nodes.size), dtype=np.int64)
    for role, node in zip(roles, nodes, strict=True):
        counts[int(role is not Role.WORKER), view.nodes.index[node]] += 1
    return counts


def log_rows(where: str, before_s: float, along: Along[Way], taught: Taught[Way]) -> HeldBack[PolicyRow[Way]]:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    return held_back(lambda store, index: PolicyRows(where, along, taught), where, before_s)


def reading(net: ServedNet, scorer: SpeedScorer, seed: int) -> Actor:
    """An actor that reads logged views with a net of the core, and is taught by the scorer."""
    return Actor(
        net, Conduct(), np.random.default_rng((seed, 62)), Teacher(np.random.default_rng((seed, 63)), scorer=scorer)
    )


def episode_of(rows: Sequence[PolicyRow[Chunk]]) -> Episode:
    """The teacher's choices, for updates.imitate."""
    return Episode([Interval([row.taught]) for row in rows if row.taught is not None], 0.0, len(rows))


# The log of the probability of each way.
LogPi = Callable[[Sequence[Way]], FloatArray]


def log_pi_of(net: PolicyNet) -> LogPi[Chunk]:
    def found(chunks: Sequence[Chunk]) -> FloatArray:
        sums = []
        with torch.no_grad():
            for first in range(0, len(chunks), _BATCH):
                batch = collate(chunks[first : first + _BATCH], torch.device("cpu"))
                taken = log_pi_taken(batch, ask(net, batch))
                sums.append(torch.zeros(len(batch.nodes)).index_add(0, batch.chunk, taken).double().numpy())
        return np.concatenate(sums)

    return found


def log_report(where: str, log: HeldBack[PolicyRow[Way]], before: LogPi[Way], after: LogPi[Way]) -> dict[str, Any]:
    """The part of the report about the log: rows, and how much better the new net chooses on the later ones. Raises
    ValueError if no reward of them is known."""
    known, rows = ([row for row in part if row.reward is not None] for part in (log.learn, log.later))
    if not known or not rows:
        raise ValueError("no reward of the log's decisions is known: export a longer log")
    rewards, (seen, asked) = np.array([row.reward for row in known]), (_situations(part) for part in (known, rows))
    levels = Ridge.fitted(seen, rewards).predicted(asked)
    decisions = [
        LoggedChoice(row.time_s, [choice.propensity for choice in row.choices], row.chosen, row.reward or 0.0)
        for row in rows
    ]
    return log.report(where, gain_of_choices(decisions, _likeliest(rows, before), _likeliest(rows, after), levels))


def _situations(rows: Sequence[PolicyRow[Way]]) -> FloatArray:
    return np.array([row.situation for row in rows])


def _likeliest(rows: Sequence[PolicyRow[Way]], log_pi: LogPi[Way]) -> list[int]:
    """Of each row's choices."""
    found = iter(log_pi([choice.way for row in rows for choice in row.choices]).tolist())
    return [int(np.argmax([next(found) for _ in row.choices])) for row in rows]
