"""Pipelines that Place put on a node, for those who learn which node is worth how much: state, action, and how long the
task took. Whose state it is says the caller.

The state is made of the view that the decision read, so the log of views is needed. A pipeline that still runs took at
least as long as is known. An override ran elsewhere, which says nothing of the node that was answered: it is left out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.record import DecisionRecord
from placewise_log.store import LogStore
from placewise_training.log.choosing.choices import LoggedChoice, gain_of_choices
from placewise_training.log.index import LogIndex
from placewise_training.log.placed import is_probability
from placewise_training.log.places import Placed, Places

State = TypeVar("State")


class PipelineStep(NamedTuple, Generic[State]):
    """`action` is the place of the node in the state, `options` are the places of those that could have been
    taken, with their probabilities; () if these were not worked out. `took_s` runs from submission to the end, or, with
    `is_bound`, is at least so long. `end_time_s` is None while it runs; with an end and `is_bound` it failed, or was
    cancelled."""

    time_s: float
    cluster: str
    state: State
    action: int
    took_s: float
    is_bound: bool
    end_time_s: float | None
    options: tuple[tuple[int, float], ...] = ()


# The state that a pipeline found on a view, and the nodes in it in their order; None if it has none.
StateOf = Callable[[Job, ClusterView], tuple[State, Sequence[str]] | None]


@dataclass(slots=True)
class PipelineSteps(Generic[State]):
    """`counts` as those of Places, with the placed pipelines that gave no step, by reason."""

    store: LogStore
    index: LogIndex
    state_of: StateOf[State]
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[PipelineStep[State]]:
        """Raises LogError."""
        places = Places(self.store, self.index)
        yield from places.rows(partial(self._step, ExportedLog(self.store.where)))
        self.counts = +places.counts

    def _step(self, log: ExportedLog, placed: Placed) -> PipelineStep[State] | str:
        """The step, or why there is none."""
        job, logged, record = placed.job, placed.run, placed.record
        if not job.subtasks:
            return "no pipeline"
        if placed.outcome.is_overridden:
            return "ran elsewhere"
        if logged is None:
            return "never started"
        try:
            view = log.view_at(record, job.id)
        except NotRebuiltError:
            return "on a view that cannot be rebuilt"
        found, node = self.state_of(with_groups(job, view), view), placed.decided.assignments[0].node
        if found is None or node not in found[1]:
            return "of another kind, or on a node that the net does not see"
        state, nodes = found
        took_s = logged.known_s - (placed.outcome.submit_time_s or record.time_s)
        return PipelineStep(
            record.time_s, record.cluster, state, nodes.index(node), took_s, not logged.has_finished,
            logged.run.end_s if logged.end else None, _options(record, job.id, nodes),
        )  # fmt: skip


def _options(record: DecisionRecord, job_id: str, nodes: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """() if one of them is not among the nodes, or if a probability is none."""
    given = [each for each in record.alternatives or () if each.job_id == job_id and each.propensity is not None]
    if not all(is_probability(each.propensity or 0.0, each.is_chosen) for each in given):
        return ()
    possible = [(each.nodes[0], each.propensity) for each in given if each.propensity]
    if any(node not in nodes for node, _ in possible):
        return ()
    return tuple((nodes.index(node), propensity) for node, propensity in possible)


def choice_gain(
    steps: Sequence[PipelineStep[State]],
    rewards: FloatArray,
    before: Callable[[State], FloatArray | Float32],
    after: Callable[[State], FloatArray | Float32],
    levels: FloatArray,
) -> dict[str, Any]:
    """As gain_of_choices, of two nets that give each node of a state its value; rewards and levels (N,).

    Of the steps before the first whose task still runs: later ones are known the better the faster they were. Raises
    ValueError if none of these has its alternatives.
    """
    until_s = min((step.time_s for step in steps if step.end_time_s is None), default=math.inf)
    decisions: list[LoggedChoice] = []
    choices: tuple[list[int], list[int]] = ([], [])
    kept = [
        i for i, step in enumerate(steps)
        if step.time_s < until_s and step.action in [place for place, _ in step.options]
    ]  # fmt: skip
    for step, reward in [(steps[i], float(rewards[i])) for i in kept]:
        places = [place for place, _ in step.options]
        decisions.append(LoggedChoice(step.time_s, [p for _, p in step.options], places.index(step.action), reward))
        for found, values_of in zip(choices, (before, after), strict=True):
            found.append(int(np.argmax(values_of(step.state)[places])))
    return gain_of_choices(decisions, choices[0], choices[1], levels[kept])


def following(steps: Sequence[PipelineStep[State]]) -> Sequence[int]:
    """The next step of the same cluster, −1 at its end, of each of the steps, which are in the order of time."""
    found, latest = [-1] * len(steps), dict[str, int]()
    for i in reversed(range(len(steps))):
        found[i] = latest.get(steps[i].cluster, -1)
        latest[steps[i].cluster] = i
    return found


def centred(missing: FloatArray, is_bound: BoolArray) -> FloatArray:
    """(N,) sizes of (N,) differences true − forecast, less the mean of those without a bound. If only an upper bound
    of the true value is known, a forecast below the bound counts as right."""
    level = missing[~is_bound].mean() if (~is_bound).any() else 0.0
    return np.where(is_bound, np.maximum(level - missing, 0.0), np.abs(missing - level))
