"""Load balance (Harmony's LB baseline): every task goes to the least loaded node."""

from collections.abc import Sequence

from placewise_core.place.outlook import Outlook
from placewise_core.place.plain_gang import load_of
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

    def counted(self, outlook: Outlook) -> Sequence[int]:
        view = outlook.gang.view
        return outlook.greedy(-load_of(list(view.capacity), list(outlook.free), list(view.inverse_capacity)))
