"""Small clusters and jobs for placement tests."""

from collections.abc import Sequence

import numpy as np

from placewise_core.domain.cluster import Assignment, Gpu, Node, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.view.view import ClusterView


def node(name: str, gpus: int = 4, model: str = "V100", cpu: float = 32, **more: object) -> Node:
    fields: dict[str, object] = {
        "capacity": Resources(cpu_cores=cpu, gpus=gpus, memory_gib=128, gpu_memory_gib=16 * gpus, network_gbps=50),
        "gpus": tuple(Gpu(g, model, 16) for g in range(gpus)),
    }
    return Node(id=NodeId(name), **{**fields, **more})  # type: ignore[arg-type]


def view_of(nodes: Sequence[Node], jobs: Sequence[RunningJob] = ()) -> ClusterView:
    return ClusterView(ClusterRecords("c", 0, "e", tuple(nodes), tuple(jobs)))


def gang(
    name: str = "job",
    workers: int = 2,
    gpus: float = 1,
    cpu: float = 4,
    servers: int = 0,
    sharing: GpuSharing | None = None,
    group: dict[str, object] | None = None,
    gpu_memory_gib: float = 0.0,
    network_gbps: float = 1.0,
    **more: object,
) -> Job:
    """A job of `workers` GPU workers and `servers` parameter servers."""
    demand = Resources(cpu, gpus, 8, gpu_memory_gib, network_gbps)
    groups = [TaskGroup(Role.WORKER, workers, demand, **(group or {}))]  # type: ignore[arg-type]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, Resources(cpu, 0, 8, 0, network_gbps)))
    return Job(JobId(name), groups=tuple(groups), gpu_sharing=sharing or GpuSharing(), **more)  # type: ignore[arg-type]


def running(name: str, where: str, gpus: Sequence[int], demand: Resources | None = None, **more: object) -> RunningJob:
    """A job of one task that holds these GPUs of a node."""
    demand = demand or Resources(4, len(gpus), 8, 0, 1)
    job = Job(JobId(name), groups=(TaskGroup(Role.WORKER, 1, demand),), **more)  # type: ignore[arg-type]
    return RunningJob(job, (Assignment("worker-0", Role.WORKER, NodeId(where), tuple(gpus), demand),))


def context(seed: int = 0, **more: object) -> PlaceContext:
    return PlaceContext(now_s=1000.0, randomness=seed, **more)  # type: ignore[arg-type]


def arrays(view: ClusterView) -> dict[str, np.ndarray]:
    """A copy of every array of the view that claims may change, without stamps and arrays worked out when asked."""
    return {
        name: value.copy()
        for name, value in (vars(view.nodes) | vars(view.usage)).items()
        if isinstance(value, np.ndarray) and name not in ("node_stamp", "report_stamp", "report_number")
    }
