"""The two yardsticks that no table goes without, for pipelines: plain consolidation, and shortest remaining first.

The papers on pipelines compare with neither. A task of a pipeline holds no share of a node and always runs on one, so
that both need a reading: consolidation fills one node, and one GPU of it, before it turns to the next; shortest
remaining first orders the tasks on a node, each subtask then going to the unit that is expected to complete it first.
"""

from collections.abc import Iterator, Mapping, Sequence

from placewise_core.domain.job import Job, Subtask, SubtaskState
from placewise_core.subtasks.graph import split
from placewise_core.subtasks.metrics import GPU_METRICS
from placewise_core.view.view import ClusterView
from placewise_training.sim.pipelines.applications import PipelineTask, subtask_truths
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import EctUnits, UnitState

_MOST_ON_A_GPU = 8  # as for IAWP
_UNKNOWN_SHARE = 0.5  # of a GPU's resource, if a metric is not given: as IAWP takes it
# A GPU is full when its subtasks want one of its resources so many times over. Chosen with the two other openings of
# consolidation, when a node is full and whether cores take what GPUs can do, on the training truth: of 1, 1.5 and 3 the
# one with the most throughput, on nine and on eleven nodes.
_FULL_AT = 1.5


class FullestNode:
    """The fullest node that has fewer tasks than GPUs (cores if it has no GPU); if no node has, the one with the
    fewest tasks for each of them."""

    name = "consolidate"

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        fill = {name: len(queue.tasks) / (queue.gpus or queue.cores) for name, queue in nodes.items()}
        return max(
            (name for name in fill if fill[name] < 1.0), key=fill.__getitem__, default=min(fill, key=fill.__getitem__)
        )


class PackedUnits:
    """Ready subtasks in order of arrival, each to the fullest GPU that has room for it by its metrics. What GPUs can do
    waits for one; the rest goes to idle cores."""

    name = "consolidate"
    wants_states = True

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        cores = [unit.name for unit in units if not unit.is_gpu and unit.running == 0]
        there: dict[str, list[Sequence[float]]] = {unit.name: [] for unit in units if unit.is_gpu}
        for name, shares in _on_gpus(jobs):
            there[name].append(shares)
        made: list[tuple[str, str, str]] = []
        for job in jobs:
            for subtask in split(job.subtasks)[0]:
                if there and subtask.has_gpu_version:
                    gpu = _fullest(there, subtask)
                    if gpu:
                        there[gpu].append(_shares(subtask))
                        made.append((job.id, subtask.id, gpu))
                elif cores:
                    made.append((job.id, subtask.id, cores.pop(0)))
        return made


def _on_gpus(jobs: Sequence[Job]) -> Iterator[tuple[str, Sequence[float]]]:
    """(GPU, shares) of what runs on GPUs."""
    for job in jobs:
        for subtask in job.subtasks:
            unit = subtask.unit.rpartition("/")[2]
            if subtask.state is SubtaskState.RUNNING and unit.startswith("gpu"):
                yield unit, _shares(subtask)


def _shares(subtask: Subtask) -> Sequence[float]:
    return [subtask.profile.get(name, _UNKNOWN_SHARE) for name in GPU_METRICS]


def _fullest(there: Mapping[str, list[Sequence[float]]], subtask: Subtask) -> str:
    """The GPU left with the least once the subtask is there; "" if it fits none."""
    more = _shares(subtask)
    best, most = "", 0.0
    for gpu, running in there.items():
        total = max(sum(column) for column in zip(more, *running, strict=True))
        if (total <= _FULL_AT or not running) and len(running) < _MOST_ON_A_GPU and total > most:
            best, most = gpu, total
    return best


class ShortestFirst:
    """ECT's choice of units, which is offered the tasks on a node shortest remaining first, by true times."""

    name = "ect, shortest first"
    wants_states = True

    def __init__(self, truth: str) -> None:
        self._units = EctUnits(truth)
        self._core_s = {name: kind.core_s for name, kind in subtask_truths(truth).items()}

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        return self._units.assign(sorted(jobs, key=self._left_s), node, view, units, now_s)

    def _left_s(self, job: Job) -> float:
        """Core-seconds of the subtasks that are left."""
        return sum(s.size * self._core_s[s.kind] for s in job.subtasks if s.state is not SubtaskState.DONE)
