"""Predicted speed of a placed job, and of the jobs it shares GPUs with, before and after. Changes nothing.

A gang runs at the pace of its slowest task: the least relative speed over its GPUs. Jobs on the same node but on other
GPUs are listed with equal speeds: what they do to each other over CPU, memory and network nobody has measured.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from placewise_core.cluster import Assignment
from placewise_core.decision import Neighbour
from placewise_core.job import Job, JobId
from placewise_core.place.gpus import gpu_model_of
from placewise_core.speed.interference import GpuInterference
from placewise_core.view import ClusterView

# Speed of a job with all its GPUs to itself, in epochs per second; 0 where nothing is known.
SoloSpeed = Callable[[Job, Sequence[Assignment]], float]

Unit = tuple[int, int]  # node index, GPU index

_UNCHANGED = 1.0
_NONE: frozenset[Unit] = frozenset()


@dataclass(frozen=True, slots=True)
class Prediction:
    """`speed` in epochs per second, 0 if unknown. Neighbours' speeds likewise, or relative to alone where unknown."""

    speed: float
    neighbours: tuple[Neighbour, ...]


def declared_speed(job: Job, assignments: Sequence[Assignment]) -> float:
    """Epochs per second from the job's own single-GPU time, times its GPUs: a linear upper bound; 0 if not declared."""
    if job.single_gpu_s <= 0 or job.total_epochs <= 0:
        return 0.0
    gpus = sum(max(a.demand.gpus, 0.0) for a in assignments)
    return job.total_epochs / job.single_gpu_s * max(1.0, gpus)


def predict(
    job: Job,
    assignments: Sequence[Assignment],
    view: ClusterView,
    interference: GpuInterference,
    solo_speed: SoloSpeed = declared_speed,
) -> Prediction:
    """For a placement that is not yet on the view."""
    units = _units(assignments, view)
    nodes = sorted({view.index[a.node] for a in assignments if a.node in view.index})
    shared = {unit for unit in units if view.tenants(*unit)}
    slowed = {tenant.job_id for unit in shared for tenant in view.tenants(*unit)}
    own = min((_relative(job, unit, (), view, interference) for unit in shared), default=_UNCHANGED)
    others = dict.fromkeys([other for m in nodes for other in view.jobs_on(m) if other != job.id])
    return Prediction(
        speed=own * solo_speed(job, assignments),
        neighbours=tuple(
            [
                _neighbour(other, job, shared if other in slowed else _NONE, view, interference, solo_speed)
                for other in others
            ]
        ),
    )


def _neighbour(
    other: JobId,
    job: Job,
    shared: Set[Unit],
    view: ClusterView,
    interference: GpuInterference,
    solo_speed: SoloSpeed,
) -> Neighbour:
    running = view.jobs.get(other)
    if running is None:
        return Neighbour(other, 0.0, 0.0)
    if running.speed > 0 and not shared:
        return Neighbour(other, running.speed, running.speed)
    units = _units(running.assignments, view)
    before = _UNCHANGED
    for unit in units:
        if len(view.tenants(*unit)) > 1:
            before = min(before, _relative(running.job, unit, (), view, interference))
    speed = running.speed if running.speed > 0 else (solo_speed(running.job, running.assignments) or 1.0) * before
    if not shared:
        return Neighbour(other, speed, speed)
    joins = {unit: (job.model,) if unit in shared else () for unit in units}
    after = min((_relative(running.job, unit, joins[unit], view, interference) for unit in units), default=_UNCHANGED)
    return Neighbour(other, speed, speed * after / before if before > 0 else 0.0)


def _units(assignments: Sequence[Assignment], view: ClusterView) -> list[Unit]:
    """The GPUs of a placement; nodes that the view does not know are passed over."""
    index = view.index
    return [(index[a.node], g) for a in assignments if a.node in index for g in a.gpu_indices]


def _relative(job: Job, unit: Unit, joining: Sequence[str], view: ClusterView, interference: GpuInterference) -> float:
    """Relative speed of a job on one GPU beside its other tenants and the models `joining`."""
    others = [*(t.model for t in view.tenants(*unit) if t.job_id != job.id), *joining]
    return interference.relative_speed(job.model, others, gpu_model_of(view, *unit)) if others else _UNCHANGED
