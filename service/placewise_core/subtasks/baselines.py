"""Node scope, the baselines that LDWP/IAWP compares with: Random, ECT and PATS on computing units.

They get what IAWP gets: the same ready subtasks, metrics and units. They know no similarity and put one subtask on a
GPU at a time; the paper does not say how many its baselines put there.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from placewise_core.domain.job import Job, Subtask, SubtaskState
from placewise_core.subtasks.metrics import CORE_SECONDS
from placewise_core.subtasks.round import Ready, SubtaskRound
from placewise_core.subtasks.units import GpuUnit
from placewise_core.view.view import ClusterView


class OneToAUnit(SubtaskRound):
    """A unit runs one subtask at a time."""

    def dispatch(self) -> None:
        """Nothing is queued."""

    def _idle_gpus(self) -> list[GpuUnit]:
        return [gpu for gpu in self.units.gpus if not gpu.running and not gpu.jobs]

    def _start(self, chosen: Ready, unit: str) -> None:
        self.ready.remove(chosen)
        if unit in self.units.idle_cores:
            self.units.idle_cores.remove(unit)
        self.made.append((chosen, unit))

    def _by_arrival(self, jobs: Iterable[Job]) -> list[Ready]:
        place = {(job.id, s.id): i for i, (job, s) in enumerate((job, s) for job in jobs for s in job.subtasks)}
        return sorted(self.ready, key=lambda r: place[r.job.id, r.subtask.id])


class PatsRound(OneToAUnit):
    """PATS (Teodoro et al.): of the ready subtasks, in order of their speedup, an idle GPU takes the one with the most
    and an idle core the one with the least; of equal ones the oldest. A subtask that no GPU makes faster goes to a GPU
    only if no core is left for it."""

    def share_out(self) -> None:
        gpus = self._idle_gpus()
        while gpus and self.ready and self.ready[-1].speedup > 1.0:
            self._start(self.ready[self.largest()], _name(gpus.pop(0)))
        while self.ready and self.units.idle_cores:
            self._start(self.ready[0], self.units.idle_cores[0])
        while gpus and self.ready and self.ready[-1].subtask.has_gpu_version:
            self._start(self.ready[self.largest()], _name(gpus.pop(0)))


class RandomRound(OneToAUnit):
    """In order of arrival, each to any idle unit that can run it. A job's propensity is the product of its draws'."""

    def share_out(self) -> None:
        rng, gpus = np.random.default_rng(self.seed), [_name(gpu) for gpu in self._idle_gpus()]
        for ready in self._by_arrival(self.jobs):
            candidates = [*self.units.idle_cores, *(gpus if ready.subtask.has_gpu_version else ())]
            if candidates:
                unit, job_id = candidates[int(rng.integers(len(candidates)))], ready.job.id
                self.propensity[job_id] = self.propensity.get(job_id, 1.0) / len(candidates)
                self._start(ready, unit)
                gpus = [gpu for gpu in gpus if gpu != unit]


# Heap of units of one kind: (seconds until free, position, name, is idle).
UnitQueue = list[tuple[float, int, str, bool]]
Item = TypeVar("Item")


def first_done(
    asked: Iterable[tuple[Item, Mapping[bool, float]]], queues: Mapping[bool, UnitQueue]
) -> Iterator[tuple[Item, str]]:
    """ECT: the items that start now, each with its unit. `asked` has an item's seconds by kind of unit (True: a GPU).
    Each in turn joins the queue of the unit that should complete it first; it starts if that unit is idle."""
    for item, own_s in asked:
        open_kinds = [is_gpu for is_gpu in own_s if queues[is_gpu]]
        if not open_kinds:
            continue
        best = min(open_kinds, key=lambda is_gpu: queues[is_gpu][0][0] + own_s[is_gpu])
        wait_s, i, unit, is_idle = queues[best][0]
        heapq.heapreplace(queues[best], (wait_s + own_s[best], i, unit, False))
        if is_idle:
            yield item, unit


class EctRound(OneToAUnit):
    """Minimum completion time, in order of arrival. A running subtask counts with its whole time, as no report says
    when it began."""

    def share_out(self) -> None:
        seconds = core_seconds(self.jobs, self.view)
        asked = [(ready, _own_s(ready, seconds)) for ready in self._by_arrival(self.jobs)]
        for ready, unit in first_done(asked, self._queues(seconds)):
            self._start(ready, unit)

    def _queues(self, seconds: Mapping[str, float]) -> dict[bool, UnitQueue]:
        left: dict[str, float] = {}
        for job in self.jobs:
            for s in job.subtasks:
                if s.state is SubtaskState.RUNNING and s.unit:
                    unit = s.unit.rpartition("/")[2]
                    gain = max(self.metrics.of(s).get("speedup", 1.0), 1e-9) if unit.startswith("gpu") else 1.0
                    left[unit] = left.get(unit, 0.0) + seconds[s.kind] * _size(s) / gain
        cores = [*self.units.idle_cores, *sorted(unit for unit in left if unit.startswith("cpu"))]
        idle_gpus = {_name(gpu) for gpu in self._idle_gpus()}
        gpus = [unit for gpu in self.units.gpus if (unit := _name(gpu)) in idle_gpus or unit in left]
        free = {
            False: [(left.get(unit, 0.0), i, unit, unit not in left) for i, unit in enumerate(cores)],
            True: [(left.get(unit, 0.0), i, unit, unit in idle_gpus) for i, unit in enumerate(gpus)],
        }
        for queue in free.values():
            heapq.heapify(queue)
        return free


def _own_s(ready: Ready, seconds: Mapping[str, float]) -> dict[bool, float]:
    own_s = {False: seconds[ready.subtask.kind] * _size(ready.subtask)}
    if ready.subtask.has_gpu_version:
        own_s[True] = own_s[False] / max(ready.speedup, 1e-9)
    return own_s


def core_seconds(jobs: Sequence[Job], view: ClusterView) -> dict[str, float]:
    """Seconds per unit of size on a core, by kind: from the request's profiles or the reports; 1 for all kinds if one
    of them is unknown."""
    kinds = {s.kind: s.profile for job in jobs for s in job.subtasks}
    known = {
        kind: float({**view.subtask_profiles.get(kind, {}), **profile}.get(CORE_SECONDS, 0.0))
        for kind, profile in kinds.items()
    }
    return known if all(known.values()) else dict.fromkeys(known, 1.0)


def untimed(jobs: Sequence[Job], view: ClusterView) -> str:
    """What ECT says of kinds without a time; "" if all have one."""
    missing = sorted(
        {
            s.kind
            for job in jobs
            for s in job.subtasks
            if not {**view.subtask_profiles.get(s.kind, {}), **s.profile}.get(CORE_SECONDS)
        }
    )
    named = ", ".join(missing[:8])
    return f"ect: no time is known of {named}: all kinds count alike" if missing else ""


def _name(gpu: GpuUnit) -> str:
    return f"gpu{gpu.index}"


def _size(subtask: Subtask) -> float:
    return subtask.size if subtask.size > 0 else 1.0
