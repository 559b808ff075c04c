"""A job's resources on nodes, in the amounts that the store adds up. Pure; view.py claims the same amounts."""

from collections.abc import Sequence
from typing import NamedTuple

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, Node, NodeState, RunningJob
from placewise_core.domain.job import Job, NodeId, quantise
from placewise_core.view.domains import spans
from placewise_core.view.view import CPU, GPU_MEMORY, MEMORY, ClusterView
from placewise_core.view.view import NETWORK as NETWORK_ROW

# Name of an extended amount that no node has and no caller may use: marks the holds of a job that spans several nodes
# and wants their network for itself.
NETWORK = ""


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


class SeenNode(NamedTuple):
    """The use of a node as a decision saw it, in the order that reserve.lua reads: amounts, the jobs on its GPUs."""

    cpu_cores: float
    memory_gib: float
    gpu_memory_gib: float
    network_gbps: float
    on_gpus: tuple[str, ...]


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
    if running.job.exclusive_network and spans(running):
        return tuple([_marked(hold) for hold in _parts(running)])
    return _parts(running)


def _marked(hold: Hold) -> Hold:
    return hold._replace(extended={**hold.extended, NETWORK: 1.0})


def _parts(running: RunningJob) -> tuple[Hold, ...]:
    assignments = running.assignments
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


def seen_nodes(running: RunningJob, view: ClusterView) -> dict[str, SeenNode]:
    """The nodes of a job that wants their network for itself, as the view has them without it; none of another job."""
    if not running.job.exclusive_network or not spans(running):
        return {}
    nodes = {task.node for task in running.assignments if task.node in view.nodes.index}
    return {node: _seen(view, view.nodes.index[node], running) for node in sorted(nodes)}


def _seen(view: ClusterView, m: int, running: RunningJob) -> SeenNode:
    used = view.nodes.capacity[:, m] - view.usage.free[:, m]
    if view.usage.is_on(running.id, m):
        for task in running.assignments:
            demand = view.nodes.demand_vector(task.demand)
            if view.nodes.index.get(task.node) == m and demand is not None:
                used -= demand
    amounts: list[float] = used[[CPU, MEMORY, GPU_MEMORY, NETWORK_ROW]].tolist()
    on_gpus = {tenant.job_id for g in range(view.nodes.gpu_exists.shape[1]) for tenant in view.usage.tenants(m, g)}
    cpu, memory, gpu_memory, network = amounts
    return SeenNode(cpu, memory, gpu_memory, network, tuple(sorted(on_gpus - {running.id})))


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
