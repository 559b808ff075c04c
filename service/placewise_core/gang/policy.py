"""The Protocol of every placement policy, with its inputs and its proposal. Never claims anything lasting."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from placewise_core.basics.arrays import Float32, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import Candidate
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.view.view import ClusterView

Action = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class NetRead:
    """Inputs and answers of a net that placed a gang: `rows` (C,) its candidates' places in the view; before each task
    `tokens` (C, STEP_FEATURES) and `logits` (2C,) in the order of actions.py."""

    rows: IntArray
    tokens: Sequence[Float32]
    logits: Sequence[Float32]


@frozen
class Proposal:
    """A full placement of one gang. `propensity`: probability with which this policy proposes exactly this. `read`: of
    a net that placed all of it, `judgement`: of a search (search.Judgement), both if the context asks for that."""

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
