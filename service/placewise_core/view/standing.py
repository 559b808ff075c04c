"""A job before its placement: its shape as task groups, whether it may share GPUs, the placement it already holds."""

from dataclasses import replace

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Job, Resources, Role, Shape, TaskGroup
from placewise_core.view.view import ClusterView


def with_groups(job: Job, view: ClusterView) -> Job:
    """The job with task groups: its own, or those of the shape it names or was admitted with.

    A shaped job is one worker per node, each with the shape's GPUs; the demand of a single worker group scales with
    them. A pipeline without either is one worker that holds nothing: its subtasks get their units on the node. Raises
    InvalidRequestError for another job that has neither groups nor a shape.
    """
    if job.is_rigid:
        return job
    if job.subtasks and not job.groups and job.shape is None and job.elastic is None:
        return replace(job, groups=(TaskGroup(Role.WORKER, 1, Resources()),))
    shape = job.shape or _admitted_shape(job, view)
    if shape is None:
        if not job.groups:
            raise InvalidRequestError(
                f"job {job.id!r} has neither task groups nor an admitted shape: set groups", "jobs.groups"
            )
        return job
    return replace(job, shape=shape, groups=(_shaped_group(job, shape),))


def _admitted_shape(job: Job, view: ClusterView) -> Shape | None:
    for queue in view.queues.values():
        if (admitted := queue.admitted.get(job.id)) is not None:
            return Shape(admitted[0], admitted[1])
    return None


def _shaped_group(job: Job, shape: Shape) -> TaskGroup:
    if not job.groups:
        return TaskGroup(Role.WORKER, shape.nodes, Resources(gpus=float(shape.gpus_per_node)), max_per_node=1)
    group = job.groups[0]
    per_gpu = group.demand
    factor = shape.gpus_per_node / per_gpu.gpus if per_gpu.gpus > 0 else 1.0
    demand = Resources(
        cpu_cores=per_gpu.cpu_cores * factor,
        gpus=float(shape.gpus_per_node),
        memory_gib=per_gpu.memory_gib * factor,
        gpu_memory_gib=per_gpu.gpu_memory_gib * factor,
        network_gbps=per_gpu.network_gbps * factor,
        extended={name: amount * factor for name, amount in per_gpu.extended.items()},
    )
    return replace(group, count=shape.nodes, demand=demand, max_per_node=1)


def may_share(job: Job) -> bool:
    """True if a GPU of the job may serve other jobs as well."""
    return job.gpu_sharing.allowed or any(group.demand.is_gpu_fraction for group in job.groups)


def held(running: RunningJob) -> JobDecision:
    """The placement a job already holds: asking again must not place it twice."""
    return JobDecision(
        job_id=running.id,
        outcome=Outcome.PLACED,
        assignments=running.assignments,
        reservation_id=running.reservation_id,
        expire_time_s=running.expire_time_s,
        predicted_speed=running.speed,
    )
