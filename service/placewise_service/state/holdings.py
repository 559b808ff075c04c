"""A job's resources on nodes, in the amounts that the store adds up. Pure; view.py claims the same amounts."""

from collections.abc import Sequence
from typing import NamedTuple

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, Node, NodeState, RunningJob
from placewise_core.domain.job import Job, NodeId, quantise


class Hold(NamedTuple):
    """Resources of one task, or of several alike, on a node, in the order that shared/holdings.lua reads. Amounts are
    quantised."""

    node: NodeId
    cpu_cores: float
    memory_gib: float
    gpu_memory_gib: float
    network_gbps: float
    extended: dict[str, float]
    gpus: tuple[int, ...]
    gpu_fraction: float
    gpu_memory_each_gib: float
    is_sharing: int


class NodeCapacity(NamedTuple):
    """The capacity of a node, in the order that reserve.lua reads."""

    is_ready: int
    max_jobs_per_gpu: int
    cpu_cores: float
    memory_gib: float
    gpu_memory_gib: float
    network_gbps: float
    extended: dict[str, float]
    gpu_memory_by_index_gib: dict[int, float]


@frozen
class Tenant:
    """A task on one GPU."""

    job_id: str
    fraction: float
    memory_gib: float
    is_sharing: bool


def hold_of(job: Job, tasks: Sequence[Assignment]) -> Hold:
    """The hold of one task, or of several alike: sums are exact, as amounts are multiples of 2⁻²⁰."""
    first, count = tasks[0], len(tasks)
    demand, gpus = first.demand, first.gpu_indices
    is_fraction = demand.is_gpu_fraction
    return Hold(
        first.node,
        count * quantise(demand.cpu_cores),
        count * quantise(demand.memory_gib),
        count * quantise(demand.gpu_memory_gib),
        count * quantise(demand.network_gbps),
        {name: amount for name, raw in demand.extended.items() if (amount := quantise(raw)) > 0},
        gpus if count == 1 else tuple([g for task in tasks for g in task.gpu_indices]),
        quantise(demand.gpus) if is_fraction else 1.0,
        quantise(demand.gpu_memory_gib / max(1, len(gpus))),
        int(is_fraction or job.gpu_sharing.allowed),
    )


def holds_of(running: RunningJob) -> tuple[Hold, ...]:
    """The holds of a job. Equal tasks on one node are one hold: the scripts' work grows with the holds.

    Only tasks that share no GPU are put together, so that a GPU named by two of them still conflicts.
    """
    assignments = running.assignments
    if _is_one_hold(assignments):
        return (hold_of(running.job, assignments),)
    parts: dict[object, list[Assignment]] = {}
    for i, assignment in enumerate(assignments):
        key = _alike(assignment)
        others = parts.get(key)
        if key is None or others is None:
            parts[i if key is None else key] = [assignment]
        elif any(not set(assignment.gpu_indices).isdisjoint(other.gpu_indices) for other in others):
            parts[i] = [assignment]
        else:
            others.append(assignment)
    return tuple([hold_of(running.job, tasks) for tasks in parts.values()])


def _is_one_hold(assignments: Sequence[Assignment]) -> bool:
    """True for a gang whose tasks ask for the same of one node, each for GPUs of its own: the usual small one."""
    if len(assignments) < 2:
        return len(assignments) == 1
    first = assignments[0]
    node, demand, count = first.node, first.demand, len(first.gpu_indices)
    if demand.extended or demand.is_gpu_fraction:
        return False
    gpus: set[int] = set()
    for assignment in assignments:
        if assignment.node != node or assignment.demand is not demand or len(assignment.gpu_indices) != count:
            return False
        gpus.update(assignment.gpu_indices)
    return len(gpus) == count * len(assignments)


def _alike(assignment: Assignment) -> object:
    """Equal for tasks whose amounts may be added up; None for a task that stands alone."""
    demand = assignment.demand
    if demand.extended or demand.is_gpu_fraction:
        return None
    gpus = len(assignment.gpu_indices)
    return (assignment.node, gpus, demand.cpu_cores, demand.memory_gib, demand.gpu_memory_gib, demand.network_gbps)


def check_reservable(jobs: Sequence[RunningJob]) -> None:
    """Raises ValueError for a request that no decision may make: a job twice, a GPU twice in one task, or GPUs without
    indices, which could be given twice. (A host's report may do so.)"""
    if len(jobs) > 1 and len({job.id for job in jobs}) < len(jobs):
        raise ValueError("a reservation must not name a job twice")
    for running in jobs:
        for assignment in running.assignments:
            gpus = assignment.gpu_indices
            if assignment.demand.gpus > 0 and not gpus:
                raise ValueError(f"task {assignment.task!r} of job {running.id!r} asks for GPUs but names none")
            if len(gpus) > 1 and len(set(gpus)) < len(gpus):
                raise ValueError(f"task {assignment.task!r} of job {running.id!r} names a GPU twice")


def capacity_of(node: Node) -> NodeCapacity:
    """The capacity record of a node."""
    capacity = node.capacity
    return NodeCapacity(
        is_ready=int(node.state is NodeState.READY),
        max_jobs_per_gpu=max(1, node.max_jobs_per_gpu),
        cpu_cores=quantise(capacity.cpu_cores),
        memory_gib=quantise(capacity.memory_gib),
        gpu_memory_gib=quantise(capacity.gpu_memory_gib),
        network_gbps=quantise(capacity.network_gbps),
        extended={name: quantise(amount) for name, amount in capacity.extended.items()},
        gpu_memory_by_index_gib={gpu.index: gpu.memory_gib for gpu in node.gpus},
    )
