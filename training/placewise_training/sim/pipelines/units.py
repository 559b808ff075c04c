"""Which subtask runs on which computing unit of a node: IAWP as the service has it, and the paper's baselines.

PATS runs as the service has it. Random and ECT stand here once more, as this ECT knows true times and when each unit is
free. They know no similarity and put one subtask on a GPU at a time; the paper does not say how many its baselines put
there.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from placewise_core.domain.job import Job, Subtask
from placewise_core.subtasks.baselines import PatsRound
from placewise_core.subtasks.graph import split
from placewise_core.subtasks.iawp import SubtaskScheduler
from placewise_core.subtasks.metrics import SPEEDUP, SubtaskMetrics
from placewise_core.view.view import ClusterView
from placewise_training.sim.pipelines.applications import subtask_truths


@dataclass(frozen=True, slots=True)
class UnitState:
    """One unit: what runs there and when it is expected to be free (seconds from now)."""

    name: str
    is_gpu: bool
    running: int
    free_in_s: float


class UnitPolicy(Protocol):
    """Assigns ready subtasks of the tasks on one node to its units. Called at every arrival and completion there.

    `wants_states` False: it reads what runs where from the jobs, and is given no states of units.
    """

    name: str
    wants_states: bool

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        """(job id, subtask id, unit name) of what starts now."""
        ...


class IawpUnits:
    """The service's own scheduler."""

    name = "iawp"
    wants_states = False

    def __init__(self, metrics: SubtaskMetrics | None = None, scheduler: SubtaskScheduler | None = None) -> None:
        self._metrics = metrics
        self._scheduler = scheduler or SubtaskScheduler()

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        return self._scheduler.starts(jobs, node, view, now_s, self._metrics)


class _OneByOne(ABC):
    """A baseline: ready subtasks in order of arrival, each to the unit `choose` wants, one to a unit."""

    name = ""
    wants_states = True

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        free = {unit.name: unit for unit in units if unit.running == 0}
        made: list[tuple[str, str, str]] = []
        for job, subtask in self._ordered(jobs):
            usable = [u for u in units if subtask.has_gpu_version or not u.is_gpu]
            chosen = self.choose(subtask, usable, free)
            if chosen is not None and chosen.name in free:
                del free[chosen.name]
                made.append((job.id, subtask.id, chosen.name))
        return made

    def _ordered(self, jobs: Sequence[Job]) -> list[tuple[Job, Subtask]]:
        return [(job, subtask) for job in jobs for subtask in split(job.subtasks)[0]]

    @abstractmethod
    def choose(self, subtask: Subtask, usable: Sequence[UnitState], free: Mapping[str, UnitState]) -> UnitState | None:
        """The unit wanted; if it is not free the subtask waits."""


class RandomUnits(_OneByOne):
    """Any free unit that can run the subtask."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng((seed, 6))

    def choose(self, subtask: Subtask, usable: Sequence[UnitState], free: Mapping[str, UnitState]) -> UnitState | None:
        candidates = [u for u in usable if u.name in free]
        return candidates[int(self._rng.integers(len(candidates)))] if candidates else None


class EctUnits:
    """Minimum completion time: every ready subtask in turn goes to the unit that should complete it first, behind
    the subtasks there; it starts now if nothing is before it, else it waits.

    `truth` lets it know how long each kind takes on a core; without, all kinds are taken to be alike, as no profile
    holds times.
    """

    name = "ect"
    wants_states = True

    def __init__(self, truth: str = "") -> None:
        self._core_s = {name: kind.core_s for name, kind in subtask_truths(truth).items()} if truth else {}

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        # (free in seconds, place in the order of units, is idle) by kind of unit: units of a kind are alike
        queues: dict[bool, list[tuple[float, int, bool]]] = {False: [], True: []}
        for i, unit in enumerate(units):
            queues[unit.is_gpu].append((unit.free_in_s, i, unit.running == 0))
        for queue in queues.values():
            heapq.heapify(queue)
        made: list[tuple[str, str, str]] = []
        for job in jobs:
            for subtask in split(job.subtasks)[0]:
                core_s = subtask.size * self._core_s.get(subtask.kind, _TYPICAL_CORE_S)
                own_s = {False: core_s, True: core_s / speedup_of(subtask)}
                usable = [
                    is_gpu for is_gpu, queue in queues.items() if queue and (subtask.has_gpu_version or not is_gpu)
                ]
                if not usable:
                    continue
                best = min(usable, key=lambda is_gpu: queues[is_gpu][0][0] + own_s[is_gpu])
                wait_s, i, is_idle = queues[best][0]
                heapq.heapreplace(queues[best], (wait_s + own_s[best], i, False))
                if is_idle:
                    made.append((job.id, subtask.id, units[i].name))
        return made


_TYPICAL_CORE_S = 0.02  # seconds per unit of size on a core


class PatsUnits(IawpUnits):
    """PATS as the service has it."""

    name = "pats"

    def __init__(self, metrics: SubtaskMetrics | None = None) -> None:
        super().__init__(metrics, SubtaskScheduler(rules=PatsRound, name=self.name))


def speedup_of(subtask: Subtask) -> float:
    """Speedup on a GPU as profiled; 1 if unknown, tiny for a subtask without a GPU version."""
    if not subtask.has_gpu_version:
        return 1e-6
    return subtask.profile.get(SPEEDUP, 1.0)
