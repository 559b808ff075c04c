"""Load balance (Harmony's LB baseline): every task goes to the least loaded node."""

from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.view import FloatArray


class LoadBalance(ScoredPolicy):
    """Least load first; load = Σ of normalised usage over CPU, memory, network and GPUs."""

    name = "load-balance"

    def scores(self, task: TaskContext) -> FloatArray:
        return -task.view.load()

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (("load", float(task.view.load()[m])),)
