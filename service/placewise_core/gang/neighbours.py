"""Predicted speed of a placed job, and of the jobs it shares GPUs with, before and after. Changes nothing.

A gang runs as fast as its slowest task: the least relative speed over its GPUs. Jobs on the same node but on other
GPUs are listed with equal speeds: nobody has measured their effect on each other over CPU, memory and network.
"""

from collections.abc import Callable, Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import Neighbour
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.gpus import gpu_model_of
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.view import ClusterView

# Speed of a job with all its GPUs to itself, in epochs per second; 0 if unknown.
SoloSpeed = Callable[[Job, Sequence[Assignment], ClusterView], float]
# Whose profile that speed rests on, if not the job's own; "" if it is, or if the speed rests on none.
ProfileModel = Callable[[Job, Sequence[Assignment], ClusterView], str]

Unit = tuple[int, int]  # node index, GPU index

_UNCHANGED = 1.0


@frozen
class Prediction:
    """`speed` in epochs per second, 0 if unknown. Neighbours' speeds likewise, or relative to alone where unknown."""

    speed: float
    neighbours: tuple[Neighbour, ...]


def declared_speed(job: Job, assignments: Sequence[Assignment], view: ClusterView) -> float:
    """Epochs per second from the job's own single-GPU time, times its GPUs: a linear upper bound; 0 if not declared."""
    if job.single_gpu_s <= 0 or job.total_epochs <= 0:
        return 0.0
    gpus = sum(max(a.demand.gpus, 0.0) for a in assignments)
    return job.total_epochs / job.single_gpu_s * max(1.0, gpus)


def no_profile(job: Job, assignments: Sequence[Assignment], view: ClusterView) -> str:
    """The profile behind `declared_speed`: none."""
    return ""


def predict(
    job: Job,
    assignments: Sequence[Assignment],
    view: ClusterView,
    interference: GpuInterference,
    solo_speed: SoloSpeed = declared_speed,
    slices: Slices = ONE_SLICE,
) -> Prediction:
    """For a placement that is on the view, or one on GPUs that serve nobody else."""
    units = _units(assignments, view)
    nodes = sorted({view.nodes.index[a.node] for a in assignments if a.node in view.nodes.index})
    others = dict.fromkeys([other for m in nodes for other in view.usage.jobs_on(m) if other != job.id])
    slowed = {t.job_id for unit in units for t in view.usage.tenants(*unit)} if units else ()
    speed = _slowest(job, units, view, interference) * solo_speed(job, assignments, view)
    beside = []
    for other in others:
        slices.pause()
        beside.append(_neighbour(other, job.id, other in slowed, view, interference, solo_speed))
    return Prediction(speed, tuple(beside))


def _neighbour(
    other: JobId,
    newcomer: JobId,
    is_slowed: bool,
    view: ClusterView,
    interference: GpuInterference,
    solo_speed: SoloSpeed,
) -> Neighbour:
    running = view.jobs.get(other)
    if running is None:
        return Neighbour(other, 0.0, 0.0)
    if running.speed > 0 and not is_slowed:
        return Neighbour(other, running.speed, running.speed)
    units = _units(running.assignments, view)
    before = _slowest(running.job, units, view, interference, newcomer)
    speed = running.speed
    if speed <= 0:
        speed = (solo_speed(running.job, running.assignments, view) or 1.0) * before
    if not is_slowed:
        return Neighbour(other, speed, speed)
    after = _slowest(running.job, units, view, interference)
    return Neighbour(other, speed, speed * after / before if before > 0 else 0.0)


def _slowest(
    job: Job, units: Sequence[Unit], view: ClusterView, interference: GpuInterference, without: JobId | None = None
) -> float:
    """Relative speed of a job beside its other tenants, the least over its GPUs; `without` a newcomer."""
    slowest = _UNCHANGED
    for unit in units:
        tenants = view.usage.tenants(*unit)
        if len(tenants) > 1:
            others = [t.model for t in tenants if t.job_id not in (job.id, without)]
            if others:
                relative = interference.relative_speed(job.model, others, gpu_model_of(view, *unit))
                slowest = min(slowest, relative)
    return slowest


def _units(assignments: Sequence[Assignment], view: ClusterView) -> list[Unit]:
    """The GPUs of a placement on which somebody could be slowed down; nodes that the view does not know are passed
    over."""
    if not view.usage.shared_gpus:
        return []
    index = view.nodes.index
    return [(index[a.node], g) for a in assignments if a.node in index for g in a.gpu_indices]
