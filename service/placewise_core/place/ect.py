"""ECT (LDWP's baseline): the node where the task is expected to be complete first."""

from collections.abc import Sequence

import numpy as np

from placewise_core.job import Job, TaskGroup
from placewise_core.place.completion import NodeLoads, NodeSpeeds
from placewise_core.place.outlook import Outlook
from placewise_core.place.policy import TaskContext
from placewise_core.place.scored import ScoredPolicy
from placewise_core.place.tables import GpuSpeeds
from placewise_core.view import BoolArray, FloatArray


class ExpectedCompletionTime(ScoredPolicy):
    """Expected completion = work / speed of the node for this job · (1 + load of the node).

    Work is the job's seconds on one reference GPU divided by its workers; where the job does not say, 1, which leaves
    the order of nodes as it is. The load stretches it as time slices would: work waits for a share of a busy node.
    """

    name = "ect"

    def __init__(self, gpu_speeds: GpuSpeeds) -> None:
        self._speeds = NodeSpeeds(gpu_speeds)
        self._loads = NodeLoads()

    def scores(self, task: TaskContext) -> FloatArray:
        scores = self._completion_s(task, task.mask)
        return np.negative(scores, out=scores)

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        return (
            ("completion_s", float(self._completion_s(task, np.ones_like(task.mask))[m])),
            ("speed", float(self._speeds.of(task)[m])),
            ("load", float(self._loads.of(task.view, np.ones_like(task.mask))[m])),
        )

    def counted(self, outlook: Outlook) -> Sequence[int]:
        gang = outlook.gang
        seconds = _seconds(gang.job, gang.group, self._speeds.of(gang), self._loads.after(gang.view, outlook.free))
        return outlook.greedy(np.negative(seconds, out=seconds))

    def _completion_s(self, task: TaskContext, asked: BoolArray) -> FloatArray:
        return _seconds(task.job, task.group, self._speeds.of(task), self._loads.of(task.view, asked))


def _seconds(job: Job, group: TaskGroup, speeds: FloatArray, loads: FloatArray) -> FloatArray:
    """Expected completion by the nodes' speeds (M,) and loads (…, M)."""
    work = job.single_gpu_s / max(1, group.count) if job.single_gpu_s > 0 else 1.0
    seconds: FloatArray = work / speeds * (1.0 + loads)
    return seconds
