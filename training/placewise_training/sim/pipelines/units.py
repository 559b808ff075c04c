"""Which subtask runs on which computing unit of a node: IAWP as the service has it, and the paper's baselines.

PATS is the service's own. ECT follows the service's rule, and knows the true times and when each unit becomes free.
Random is written again, because it draws from its own stream. The baselines ignore similarity and put one subtask on a
GPU at a time; the paper does not say how many.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from placewise_core.domain.job import Job, Subtask
from placewise_core.subtasks.baselines import PatsRound, UnitQueue, first_done
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
    """The service's ECT, which knows when each unit is free.

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
        queues: dict[bool, UnitQueue] = {False: [], True: []}
        for i, unit in enumerate(units):
            queues[unit.is_gpu].append((unit.free_in_s, i, unit.name, unit.running == 0))
        for queue in queues.values():
            heapq.heapify(queue)
        ready = [(job.id, subtask) for job in jobs for subtask in split(job.subtasks)[0]]
        asked = [((job_id, subtask.id), self._own_s(subtask)) for job_id, subtask in ready]
        return [(job_id, subtask_id, unit) for (job_id, subtask_id), unit in first_done(asked, queues)]

    def _own_s(self, subtask: Subtask) -> dict[bool, float]:
        core_s = subtask.size * self._core_s.get(subtask.kind, _TYPICAL_CORE_S)
        if not subtask.has_gpu_version:
            return {False: core_s}
        return {False: core_s, True: core_s / subtask.profile.get(SPEEDUP, 1.0)}


_TYPICAL_CORE_S = 0.02  # seconds per unit of size on a core


class PatsUnits(IawpUnits):
    """PATS as the service has it."""

    name = "pats"

    def __init__(self, metrics: SubtaskMetrics | None = None) -> None:
        super().__init__(metrics, SubtaskScheduler(rules=PatsRound, name=self.name))
