"""Jobs and placements of a truth in the words of the contract, and back. Times become the epoch's by `base_s`."""

from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1 import cluster_pb2, job_pb2
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Architecture, Job, NodeId, Priority, Role, Shape, TaskGroup
from placewise_service.api.convert.convert_out import resources

_ROLES: dict[Role, Any] = {role: job_pb2.TaskGroup.Role.Value(role) for role in Role}
_ROLE_NAMES = {number: role for role, number in _ROLES.items()}
_PRIORITIES: dict[Priority, Any] = {priority: job_pb2.Job.Priority.Value(priority) for priority in Priority}
_ARCHITECTURES: dict[Architecture, Any] = {name: job_pb2.Job.Architecture.Value(name) for name in Architecture}


def timestamp(time_s: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(round(time_s * 1e9))
    return stamp


def job_message(job: Job, base_s: float, shape: Shape | None = None) -> job_pb2.Job:
    """The job as a scheduler would describe it; `shape` if it was admitted with one."""
    message = job_pb2.Job(
        id=job.id,
        model=job.model,
        architecture=_ARCHITECTURES[job.architecture],
        groups=[_group(group) for group in job.groups],
        total_epochs=job.total_epochs,
        batch_size=job.batch_size,
        dataset_size=job.dataset_size,
        iterations=job.iterations,
        priority=_PRIORITIES[job.priority],
        queue=job.queue,
        submit_time=timestamp(base_s + job.submit_time_s),
        single_gpu_seconds=job.single_gpu_s,
        params_millions=job.params_millions,
        attained_gpu_seconds=job.attained_gpu_s,
    )
    if job.elastic is not None:
        message.elastic.CopyFrom(job_pb2.ElasticRange(min_gpus=job.elastic.min_gpus, max_gpus=job.elastic.max_gpus))
    if shape is not None:
        message.shape.CopyFrom(job_pb2.Shape(nodes=shape.nodes, gpus_per_node=shape.gpus_per_node))
    return message


def _group(group: TaskGroup) -> job_pb2.TaskGroup:
    return job_pb2.TaskGroup(
        role=_ROLES[group.role],
        count=group.count,
        demand=resources(group.demand),
        max_per_node=group.max_per_node,
        gpu_model=group.gpu_model,
        node_selector=group.node_selector,
    )


def assignment(message: cluster_pb2.Assignment, job: Job) -> Assignment:
    """One task's placement. The demand is the one of the task's group: an answer need not repeat it."""
    role = _ROLE_NAMES[message.role]
    demand = next(group.demand for group in job.groups if group.role is role)
    return Assignment(message.task, role, NodeId(message.node), tuple(message.gpu_indices), demand=demand)
