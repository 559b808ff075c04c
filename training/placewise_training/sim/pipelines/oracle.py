"""How well could units be chosen, knowing the truth? Each subtask to the best unit by the simulator's own times.

A yardstick for headroom, never a policy of the service, as `sim.gangs.oracle` is for gangs: it knows every true time,
the cost of each neighbour on a GPU, and when each unit is free. It looks one subtask ahead and knows no later arrivals,
so that its gain is a lower bound of the possible gain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placewise_core.domain.job import Job
from placewise_core.subtasks.graph import split
from placewise_core.view.view import ClusterView
from placewise_training.sim.pipelines.applications import SubtaskTruth, gpu_relative_speed
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import UnitState

_MOST_ON_A_GPU = 8  # as for IAWP


@dataclass(frozen=True, slots=True)
class _Running:
    """A subtask on a unit: the seconds that are left of it, alone there."""

    truth: SubtaskTruth
    left_s: float


class OracleUnits:
    """Ready subtasks in order of arrival, each to the unit where its own completion and the time that its neighbours
    lose by it are least together. It may wait for a unit; then it keeps that unit from those behind it, as in ECT."""

    name = "oracle"
    wants_states = True

    def __init__(self) -> None:
        self.simulation: PipelineSimulation | None = None

    def assign(
        self, jobs: Sequence[Job], node: str, view: ClusterView, units: Sequence[UnitState], now_s: float
    ) -> list[tuple[str, str, str]]:
        simulation = self.simulation
        if simulation is None:
            raise RuntimeError("the oracle is not attached to a simulation")
        queue = simulation.nodes[node]
        free_s = {unit.name: unit.free_in_s for unit in units}
        there = {
            unit.name: [_Running(r.truth, max(0.0, r.left - r.rate * (now_s - r.settled_s)) / r.base_rate) for r in on]
            for unit in units
            if (on := queue.on(unit.name)) or unit.is_gpu
        }
        made: list[tuple[str, str, str]] = []
        ready = [(job, subtask) for job in jobs for subtask in split(job.subtasks)[0]]
        for job, subtask in ready:
            task, kind = queue.tasks[job.id][0], simulation.kinds[subtask.kind]
            alone_s = {
                unit.name: task.size / simulation.base_rate(queue, task, kind, unit.name)
                for unit in units
                if subtask.has_gpu_version or not unit.is_gpu
            }
            options = _options(alone_s, free_s, there, kind, simulation.truth)
            _, ends_s, unit, starts = min(options, key=lambda option: option[0])
            free_s[unit] = ends_s
            if starts:
                there.setdefault(unit, []).append(_Running(kind, alone_s[unit]))
                made.append((job.id, subtask.id, unit))
        return made


def _options(
    alone_s: Mapping[str, float],
    free_s: Mapping[str, float],
    there: Mapping[str, Sequence[_Running]],
    kind: SubtaskTruth,
    truth: str,
) -> Iterator[tuple[float, float, str, bool]]:
    """(seconds of this subtask and lost by others, seconds until the unit is free, unit, whether it starts now)."""
    for unit, own_s in alone_s.items():
        ends_s = free_s[unit] + own_s
        yield ends_s, ends_s, unit, free_s[unit] <= 0.0
        running = there.get(unit, ())
        if unit.startswith("gpu") and 0 < len(running) < _MOST_ON_A_GPU:
            shared_s, lost_s = _beside(kind, own_s, running, truth)
            yield shared_s + lost_s, max(free_s[unit] + lost_s, shared_s), unit, True


def _beside(kind: SubtaskTruth, own_s: float, running: Sequence[_Running], truth: str) -> tuple[float, float]:
    """(seconds of the subtask beside those that run, seconds that they lose) if nothing else starts or ends."""
    kinds = [each.truth for each in running]
    lost_s = 0.0
    for i, each in enumerate(running):
        others = kinds[:i] + kinds[i + 1 :]
        before, after = (gpu_relative_speed(each.truth, beside, truth) for beside in (others, [*others, kind]))
        lost_s += each.left_s / after - each.left_s / before
    return own_s / gpu_relative_speed(kind, kinds, truth), lost_s
