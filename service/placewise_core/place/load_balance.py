"""Load balance (Harmony's LB baseline): every task goes to the least loaded node."""

from collections.abc import Sequence

from placewise_core.job import Job
from placewise_core.place.decode import decode
from placewise_core.place.policy import PlaceContext, Proposal, TaskContext
from placewise_core.view import ClusterView, FloatArray


class LoadBalance:
    """Least load first; load = Σ of normalised usage over CPU, memory, network and GPUs."""

    name = "load-balance"

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context)

    def claim(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        return decode(self, job, view, context, keeps_claims=True)

    def scores(self, task: TaskContext) -> FloatArray:
        return -task.view.load()

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("load", float(task.view.load()[m])),)
