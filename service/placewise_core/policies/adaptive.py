"""Best of K by what a cluster's jobs report: how much gangs on several nodes slow each other down there.

The inventory does not say that, and it decides whether a spread gang pays (docs/unseen.md). Until gangs beside each
other have reported, the first heuristic answers alone. From then on the forecasts of the reward model are lowered by
the learned loss (gang/contention.py), and gangs that keep apart are among the proposals.
"""

from collections.abc import Sequence
from dataclasses import replace

from placewise_core.domain.job import Job
from placewise_core.gang.contention import contention_factors
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.search import BestOfK, PlacementScores, Scores, progress
from placewise_core.view.view import ClusterView


class Adaptive(BestOfK):
    """A search that knows the cluster's loss. Its first proposer keeps gangs together, its second keeps them apart."""

    name = "adaptive"

    def prepare(self, view: ClusterView, now_s: float) -> None:
        if knows_loss(view):
            super().prepare(view, now_s)
            return
        for policy in self._asked_on(view):
            policy.prepare(view, now_s)

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return super().order(jobs, view, context) if knows_loss(view) else jobs

    def _asked_on(self, view: ClusterView) -> Sequence[PlacementPolicy]:
        asked = super()._asked_on(view)
        return asked if knows_loss(view) else asked[:1]

    def _info_of(self, view: ClusterView) -> dict[str, float]:
        return {"disturbance": view.estimates.disturbance.loss} if knows_loss(view) else {}

    def _foreseen(self, judged: PlacementScores, proposals: Sequence[Proposal], view: ClusterView) -> Scores:
        tokens, neighbours = judged.tokens, [held.id for held in judged.tokens.neighbours]
        loss = view.estimates.disturbance.loss
        speeds = judged.scores.speeds * contention_factors(tokens.job, neighbours, proposals, view, loss)
        return replace(judged.scores, progress=progress(speeds, judged.job, tokens), speeds=speeds)


def knows_loss(view: ClusterView) -> bool:
    """Whether the loss rests on any report."""
    return view.estimates.disturbance.weight > 0.0
