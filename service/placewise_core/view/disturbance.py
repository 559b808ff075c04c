"""Reports of progress as measurements of how jobs on several nodes disturb each other. Pure;
speed/learned/disturbance.py estimates.

A report counts if its job has whole GPUs of one model on several nodes, shares no GPU, and its samples per epoch are
known. Who was beside it since its last report, nobody knows: that those were its neighbours of now is an assumption. It
weighs as the share of the job's work that was new in it, as a report of throughput does (view/speeds.py).
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
    """The jobs on several nodes that hold something on one of these."""
    return {job_id for m in nodes if view.gangs_on[m] for job_id in view.usage.jobs_on(m) if is_wide(job_id, view)}


def is_wide(job_id: JobId, view: ClusterView) -> bool:
    """Whether a running job holds several nodes; not of one whose tasks are being claimed still."""
    running = view.jobs.get(job_id)
    return running is not None and any(task.node != running.assignments[0].node for task in running.assignments)


def disturbance_of(running: RunningJob, speed: float, epochs_done: float, view: ClusterView) -> Addition | None:
    """The addition of a report to the sums; None if it says nothing of disturbance. `running` is the job before the
    report; speed in epochs per second."""
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
