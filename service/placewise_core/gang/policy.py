"""The Protocol of every placement policy, with its inputs and its proposal. Never claims anything lasting."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import Candidate
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.view.view import ClusterView

Action = tuple[tuple[str, str], ...]
NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class NetRead:
    """The arrays that a net reads, and its answers, while it places a gang; for the log.

    `rows` (C,) are the places of its candidates in the view. `observation` has the tokens that it read of the cluster
    and the job by name, as inputs.cluster.Observation has them; empty for a net that reads none. `jobs`: the ids of the
    running jobs behind them. For each task that it placed: the `tokens` that it read before it, of Harmony's net
    (C, STEP_FEATURES), its `logits` (2C,), the `masks` (2C,) of the actions that were open, and the `actions` taken, in
    the order of actions.py. A net that values nodes has tokens alone, and in `step_rows` the places of those nodes.
    """

    rows: IntArray
    observation: Mapping[str, Float32] = field(default_factory=dict)
    jobs: Sequence[JobId] = ()
    tokens: list[Float32] = field(default_factory=list)
    logits: list[Float32] = field(default_factory=list)
    masks: list[BoolArray] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    step_rows: list[IntArray] = field(default_factory=list)


@frozen
class Proposal:
    """A full placement of one gang. `propensity`: probability with which this policy proposes exactly this. `read`: of
    the net that placed it, `judgement`: of a search (search.Judgement), both if the context asks for that."""

    assignments: tuple[Assignment, ...]
    propensity: float = 1.0
    candidates: tuple[Candidate, ...] = ()
    info: Mapping[str, float] = field(default_factory=dict)
    is_fallback: bool = False
    fallback_reason: str = ""
    read: NetRead | None = field(default=None, compare=False, repr=False)
    judgement: Any = field(default=None, compare=False, repr=False)


class PlacementPolicy(Protocol):
    """Chooses nodes and GPUs for one gang. Policies derive from it, and state what differs from the usual.

    Pure: the view is as it was when `propose` returns. Equal inputs and an equally seeded `rng` give equal output.
    Raises nothing for a job that does not fit: it returns None (gang/why.py then finds out why). `is_drawing`: it draws
    from `rng`.
    """

    name: str
    is_drawing: bool = False

    @abstractmethod
    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """A placement of the whole gang, or None."""

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        """The order in which the jobs of one request are placed: usually as they come."""
        return jobs

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """Works ahead on a view, when it has changed and nobody waits: a net encodes the cluster, say. Decides nothing
        and raises nothing; usually there is nothing to do."""
        return

    def stopped_after(self, asked: int) -> "PlacementPolicy":
        """The policy as if the clock had stopped it after it had asked so many others for proposals: to repeat a
        decision. Usually itself, as it asks none."""
        return self

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        """Probability with which `propose` puts every task on the node it has here; usually `propose` draws nothing.
        Draws nothing from `context.rng`."""
        own = self.propose(job, view, context)
        return float(own is not None and action_of(own.assignments) == action_of(assignments))


def action_of(assignments: Sequence[Assignment]) -> Action:
    """(task, node) of every task, by the task's name: two placements are one action if these are equal."""
    return tuple(sorted((assignment.task, assignment.node) for assignment in assignments))
