"""What policies that score nodes have in common: jobs as they come, each task to the node of highest score."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from placewise_core.job import Job
from placewise_core.place.decode import decode
from placewise_core.place.policy import PlaceContext, Proposal, TaskContext
from placewise_core.view import ClusterView, FloatArray


class ScoredPolicy(ABC):
    """A ClaimingPolicy and the NodeScorer it decodes with, in one."""

    name: str

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context)

    def claim(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context, keeps_claims=True)

    @abstractmethod
    def scores(self, task: TaskContext) -> FloatArray:
        """As NodeScorer.scores."""

    @abstractmethod
    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        """As NodeScorer.terms."""
