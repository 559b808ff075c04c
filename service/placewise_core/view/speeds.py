"""Reports of progress as measurements of throughput, and forecasts by them. Pure;
speed/learned/throughputs.py estimates.

A report counts if its speed is the model's own: a data-parallel job of whole GPUs of one model, which has its nodes to
itself, so that no neighbour slows it, and whose samples per epoch are known. Its nodes and GPUs are the shape; how
evenly the GPUs lie on the nodes is left to the noise. Who was beside it before its last report, nobody knows: that a
report tells of the time since then, alone, is an assumption. A job's reports resemble each other. Each weighs as the
share of the job's work that was new in it, so that n of them at equal distances count as 1 + 1/2 + … + 1/n.
"""

import math
from collections.abc import Callable, Sequence

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.decision import Admission, JobDecision, LearnedSpeed
from placewise_core.domain.job import Architecture, Job
from placewise_core.domain.model_names import canonical
from placewise_core.speed.learned.sums import Addition
from placewise_core.speed.learned.throughputs import Row
from placewise_core.speed.solo import ThroughputSpeed
from placewise_core.speed.throughput import Match, ThroughputModel
from placewise_core.view.view import ClusterView

# Of a job on a GPU type and a shape (nodes, GPUs); None before the first report.
LearnedSpeedOf = Callable[[Job, str, tuple[int, int], ClusterView], LearnedSpeed | None]

_DATA_PARALLEL = (Architecture.SINGLE, Architecture.ALL_REDUCE)


def addition_of(running: RunningJob, speed: float, epochs_done: float, view: ClusterView) -> Addition | None:
    """The addition of a report to the sums; None if it tells nothing of the model's throughput. `running` is the job
    before the report; speed in epochs per second."""
    job, tasks = running.job, running.assignments
    weight = new_share(running, epochs_done)
    if job.architecture not in _DATA_PARALLEL or not 0 < speed < math.inf or job.dataset_size <= 0 or weight <= 0:
        return None
    gpu_type, shape = gpu_type_of(tasks, view), shape_of(tasks)
    if not gpu_type or shape is None or not _is_alone(running, view):
        return None
    row = Row(canonical(job.model), gpu_type, job.batch_size, *shape)
    return Addition(row.kind, math.log(speed * job.dataset_size), weight)


def new_share(running: RunningJob, epochs_done: float) -> float:
    """The share of a job's work so far that no report of it has covered."""
    if epochs_done > 0:
        return max(0.0, 1.0 - running.epochs_done / epochs_done)
    return 1.0 if running.speed <= 0 else 0.0


def _is_alone(running: RunningJob, view: ClusterView) -> bool:
    """Whether no other job holds anything on the nodes of a job, all of which the view knows."""
    nodes = {view.nodes.index.get(task.node, -1) for task in running.assignments}
    return -1 not in nodes and all(set(view.usage.jobs_on(m)) == {running.id} for m in nodes)


def gpu_type_of(tasks: Sequence[Assignment], view: ClusterView) -> str:
    """The model of all GPUs of a placement; "" if unknown, or if they are of several."""
    found = {
        gpu.model
        for task in tasks
        if task.node in view.nodes.index
        for gpu in view.nodes.records[view.nodes.index[task.node]].gpus
        if gpu.index in task.gpu_indices
    }
    return found.pop() if len(found) == 1 else ""


def gpu_types_of(tasks: Sequence[Assignment], view: ClusterView) -> Sequence[str]:
    """The models of the GPUs of a placement, unknown ones left out, and those that their node has no more.

    Read from the arrays: a gang may have thousands of GPUs, and an answer waits for this."""
    index, models = view.nodes.index, view.nodes.gpu_model
    most = models.shape[1]
    spots = [(index[task.node], g) for task in tasks if task.node in index for g in task.gpu_indices if g < most]
    names = view.nodes.gpu_model_names()
    found = {models.item(m, g) for m, g in spots}
    return sorted([names[i] for i in found if i >= 0 and names[i]])


def shape_of(tasks: Sequence[Assignment]) -> tuple[int, int] | None:
    """Nodes and GPUs of a placement; None without GPUs, or with parts of them."""
    with_gpus = [task for task in tasks if task.gpu_indices]
    if not with_gpus or any(task.demand.is_gpu_fraction for task in with_gpus):
        return None
    return len({task.node for task in with_gpus}), sum([len(task.gpu_indices) for task in with_gpus])


def match_on(model: ThroughputModel, job: Job, gpu_type: str, view: ClusterView) -> Match:
    """The profile behind the job's prediction on a GPU type, with the cluster's own factors if its setting
    `learn_throughput` is on."""
    match = model.match(job, gpu_type)
    if not view.settings.learn_throughput:
        return match
    factors = view.estimates.throughputs.factors(model, job, match, gpu_type)
    return match if factors is None else Match(match.profile, match.label, factors)


def learned_speed(
    model: ThroughputModel, job: Job, gpu_type: str, shape: tuple[int, int], view: ClusterView
) -> LearnedSpeed | None:
    """The throughput that the cluster has learned for a job on a shape (nodes, GPUs), in samples per second, with the
    90 % interval of the next job's; None before the first report."""
    match = model.match(job, gpu_type)
    found = view.estimates.throughputs.estimate(model, job, match, gpu_type, shape)
    if found is None:
        return None
    nodes, gpus = shape
    forecast = float(model.throughput(job, match, nodes, gpus / nodes))
    middle, low, high = (forecast * math.exp(found.log_factor + by) for by in (0.0, -found.spread, found.spread))
    middle, low, high, forecast, reports = map(_rounded, (middle, low, high, forecast, found.reports))
    return LearnedSpeed(job.id, gpu_type, nodes, gpus, middle, low, high, forecast, reports, found.source)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


class SiteSpeed:
    """Speed of a placed job with its GPUs to itself (solo.py), as its cluster has learned it if that is on."""

    def __init__(self, model: ThroughputModel) -> None:
        self._model = model
        self._forecast = ThroughputSpeed(model)

    def __call__(self, job: Job, assignments: Sequence[Assignment], view: ClusterView) -> float:
        if view.settings.learn_throughput and (gpu_type := gpu_type_of(assignments, view)):
            match = match_on(self._model, job, gpu_type, view)
            if match.factors is not None:
                return self._forecast.measured(job, assignments, match)
        return self._forecast(job, assignments)

    def profile_model(self, job: Job, assignments: Sequence[Assignment], view: ClusterView) -> str:
        """Whose profile the speed rests on, if the job's own is unknown on its GPUs (ThroughputSpeed.profile_model)."""
        if view.settings.learn_throughput and (gpu_type := gpu_type_of(assignments, view)):
            match = match_on(self._model, job, gpu_type, view)
            if match.factors is not None:
                return match.label
        return self._forecast.profile_model(job, assignments, gpu_types_of(assignments, view))

    def learned(self, job: Job, gpu_type: str, shape: tuple[int, int], view: ClusterView) -> LearnedSpeed | None:
        """The job's learned throughput on that shape."""
        return learned_speed(self._model, job, gpu_type, shape, view)


def of_placed(
    jobs: Sequence[Job], decisions: Sequence[JobDecision], view: ClusterView, learned: LearnedSpeedOf
) -> tuple[LearnedSpeed, ...]:
    """The learned throughputs of the jobs that were placed. Empty unless its setting `learn_throughput` is on."""
    if not view.settings.learn_throughput:
        return ()
    by_id = {job.id: job for job in jobs}
    shaped = [(by_id[each.job_id], gpu_type_of(tasks := each.assignments, view), shape_of(tasks)) for each in decisions]
    found = [learned(job, gpu_type, shape, view) for job, gpu_type, shape in shaped if gpu_type and shape is not None]
    return tuple([each for each in found if each is not None])


def of_admitted(
    jobs: Sequence[Job], admissions: Sequence[Admission], gpu_type: str, view: ClusterView, learned: LearnedSpeedOf
) -> tuple[LearnedSpeed, ...]:
    """The same of those that were admitted, on the platform's usual GPU type."""
    if not view.settings.learn_throughput or not gpu_type:
        return ()
    by_id = {job.id: job for job in jobs}
    shaped = [(by_id[each.job_id], (each.nodes, each.gpus)) for each in admissions if each.nodes > 0 and each.gpus > 0]
    found = [learned(job, gpu_type, shape, view) for job, shape in shaped]
    return tuple([each for each in found if each is not None])
