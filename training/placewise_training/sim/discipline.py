"""When and in which order waiting jobs are offered to the placement policy. Holds no state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.view.view import ClusterView
from placewise_training.sim.jobs import SimJob

# fifo: by arrival. policy: as the policy wants it (Tiresias: least attained service). srtf: shortest remaining first,
# by the true time the work takes alone, which a host seldom knows: a bound. declared: the same by what jobs declare.
Order = Literal["fifo", "policy", "srtf", "declared"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True, slots=True)
class Discipline:
    """`every_s` > 0: at multiples of it (Harmony's intervals, Proteus' slots); 0: at every arrival and completion.

    `backfills`: jobs behind one that does not fit may start. `window`: how many of the queue are offered at once, the
    limit of one request.
    """

    every_s: float = 0.0
    order: Order = "policy"
    backfills: bool = True
    window: int = 256

    def ordered(
        self, jobs: list[SimJob], policy: PlacementPolicy, view: ClusterView, context: PlaceContext
    ) -> Sequence[SimJob]:
        """The jobs in the order they are offered.

        The policy gets all of them at once in any case, as in a request: it may look ahead.
        """
        offered: Sequence[SimJob] = jobs
        if self.order == "srtf":
            offered = sorted(jobs, key=lambda job: (_remaining_s(job), job.number))
        elif self.order == "declared":
            offered = sorted(jobs, key=lambda job: (_declared_s(job), job.number))
        wanted = policy.order([job.job for job in offered], view, context)
        if self.order != "policy":
            return offered
        by_id = {job.id: job for job in offered}
        return [by_id[job.id] for job in wanted]


def _remaining_s(job: SimJob) -> float:
    return job.ideal_s * (1.0 - job.samples_done / job.samples)


def _declared_s(job: SimJob) -> float:
    """Seconds on one GPU over the GPUs asked for; a job that declares nothing goes last."""
    return job.job.single_gpu_s / max(1.0, job.job.gpus) if job.job.single_gpu_s > 0 else float("inf")
