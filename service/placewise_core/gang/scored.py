"""What policies that score nodes have in common: jobs as they come, each task to the node of highest score."""

from abc import abstractmethod

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import Terms, propose
from placewise_core.gang.offer import Offer
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView


class ScoredPolicy(PlacementPolicy):
    """A PlacementPolicy and the NodeScorer that it places by, in one."""

    fills_nodes = False
    is_by_node = True

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return propose(self, job, view, context)

    def prepare(self, view: ClusterView, now_s: float) -> None:
        view.slots.count_ahead()

    @abstractmethod
    def scores(self, offer: Offer) -> FloatArray:
        """As NodeScorer.scores."""

    @abstractmethod
    def terms(self, offer: Offer, m: int) -> Terms:
        """As NodeScorer.terms."""
