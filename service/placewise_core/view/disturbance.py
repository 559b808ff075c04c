"""Turns progress reports into measurements of how multi-node jobs disturb each other. Does no I/O;
speed/learned/disturbance.py estimates from the measurements.

A report counts if its job has whole GPUs of one model on several nodes, shares no GPU, and its samples per epoch are
known. The neighbours since the job's last report are unknown, so its present neighbours are assumed. A report's weight
is the share of the job's work that is new in it, as for throughput (view/speeds.py).
"""

import math

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import JobId
from placewise_core.domain.model_names import canonical
from placewise_core.speed.learned.disturbance import Group
from placewise_core.speed.learned.sums import Addition
from placewise_core.view.speeds import gpu_type_of, new_share, shape_of
from placewise_core.view.view import ClusterView


def wide_beside(nodes: set[int], view: ClusterView) -> set[JobId]:
    """The multi-node jobs that have tasks on one of `nodes`."""
    return {job_id for m in nodes if view.gangs_on[m] for job_id in view.usage.jobs_on(m) if is_wide(job_id, view)}


def is_wide(job_id: JobId, view: ClusterView) -> bool:
    """Whether a running job spans several nodes. False while its tasks are still being claimed."""
    running = view.jobs.get(job_id)
    return running is not None and any(task.node != running.assignments[0].node for task in running.assignments)


def disturbance_of(running: RunningJob, speed: float, epochs_done: float, view: ClusterView) -> Addition | None:
    """A report's addition to the sums; None if it does not count. `running` is the job before the report; `speed` is
    in epochs per second."""
    job, tasks = running.job, running.assignments
    shape, weight = shape_of(tasks), new_share(running, epochs_done)
    if shape is None or shape[0] < 2 or not 0 < speed < math.inf or job.dataset_size <= 0 or weight <= 0:
        return None
    gpu_type, nodes = gpu_type_of(tasks, view), {view.nodes.index.get(task.node, -1) for task in tasks}
    if not gpu_type or -1 in nodes or _shares_gpus(running, view):
        return None
    group = Group(canonical(job.model), gpu_type, job.batch_size, len(tasks), *shape)
    is_beside = bool(wide_beside(nodes, view) - {running.id})
    return Addition(group.kind(is_beside=is_beside), math.log(speed * job.dataset_size), weight)


def _shares_gpus(running: RunningJob, view: ClusterView) -> bool:
    """Whether another job has tasks on a GPU of this one."""
    return any(
        tenant.job_id != running.id
        for task in running.assignments
        for gpu in task.gpu_indices
        for tenant in view.usage.tenants(view.nodes.index[task.node], gpu)
    )
