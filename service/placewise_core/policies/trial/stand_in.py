"""A heuristic under the name of a policy that was switched off."""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView


class StandIn(PlacementPolicy):
    """Answers as `heuristic` does, flagged as the fallback of the policy `name`."""

    def __init__(self, heuristic: PlacementPolicy, name: str) -> None:
        self.name = name
        self.is_drawing = heuristic.is_drawing
        self._heuristic = heuristic

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        given = self._heuristic.propose(job, view, context)
        return given and replace(given, is_fallback=True, fallback_reason=f"{self.name}: kill switch")

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return self._heuristic.order(jobs, view, context)

    def prepare(self, view: ClusterView, now_s: float) -> None:
        self._heuristic.prepare(view, now_s)

    def probability(
        self, assignments: Sequence[Assignment], job: Job, view: ClusterView, context: PlaceContext
    ) -> float:
        return self._heuristic.probability(assignments, job, view, context)
