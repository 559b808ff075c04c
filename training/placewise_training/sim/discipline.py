"""When and in which order waiting jobs are offered to the placement policy. Holds no state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from placewise_core.place.policy import PlaceContext, PlacementPolicy
from placewise_core.view import ClusterView
from placewise_training.sim.jobs import SimJob

Order = Literal["fifo", "policy", "srtf"]


@dataclass(frozen=True, slots=True)
class Discipline:
    """`every_s` > 0: at multiples of it (Harmony's intervals, Proteus' slots); 0: at every arrival and completion.

    `order`: arrival, the policy's own, or shortest remaining work first (in GPU seconds as submitted: an oracle, for
    comparison). `backfills`: jobs behind one that does not fit may start. `window`: how many of the queue are offered
    at once, the limit of one request.
    """

    every_s: float = 0.0
    order: Order = "policy"
    backfills: bool = True
    window: int = 256

    def ordered(
        self, jobs: list[SimJob], policy: PlacementPolicy, view: ClusterView, context: PlaceContext
    ) -> Sequence[SimJob]:
        """The jobs in the order they are offered."""
        if len(jobs) < 2 or self.order == "fifo":
            return jobs
        if self.order == "srtf":
            return sorted(jobs, key=lambda job: (job.ideal_s, job.number))
        by_id = {job.id: job for job in jobs}
        return [by_id[job.id] for job in policy.order([job.job for job in jobs], view, context)]
