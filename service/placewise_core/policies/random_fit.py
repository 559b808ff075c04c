"""Random: every task to a feasible node, each equally likely. Its propensity is exact."""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import Candidate
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import Terms, place_all
from placewise_core.gang.offer import Offer
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView


class Random(PlacementPolicy):
    """Uniform over the nodes that can take the task now, task by task.

    The sequence of choices is a function of the placement, so the propensity of a placement is the product of 1/n over
    its tasks. A gang that runs into a dead end is not placed: a second try would make that product wrong.
    """

    name = "random"
    is_drawing = True
    fills_nodes = False
    is_by_node = True

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return self._placed(Gang(job, view, context), None)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        """Probability with which `propose` puts every task on the node it has here; 0 if it cannot."""
        nodes = {a.task: view.nodes.index.get(a.node, -1) for a in assignments}
        replayed = self._placed(Gang(job, view, context), nodes)
        return replayed.propensity if replayed else 0.0

    def scores(self, offer: Offer) -> FloatArray:
        return np.zeros((1, offer.view.nodes.size))

    def terms(self, offer: Offer, m: int) -> Terms:
        return (("probability", 1.0 / max(1, int(offer.mask.sum()))),)

    def _placed(self, gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
        """The gang on nodes drawn, or on those given by the names of its tasks."""
        propensity, candidates = 1.0, list[Candidate]()

        def choose(gang: Gang, group: TaskGroup, mask: BoolArray) -> int:
            nonlocal propensity
            takers = gang.takers(group, mask)
            nodes = takers.nonzero()[0]
            if not len(nodes):
                return -1
            propensity *= 1.0 / len(nodes)
            if given is None:
                return int(nodes[gang.context.rng.integers(len(nodes))])
            m = given.get(gang.next_name(group), -1)
            return m if m >= 0 and takers[m] else -1

        if not place_all(self, gang, candidates, choose):
            return None
        return Proposal(gang.assignments(), propensity, tuple(candidates))
