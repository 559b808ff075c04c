"""Nodes and jobs for tests, with the few fields a test cares about."""

from placewise_core.domain.cluster import Gpu, Node
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, TaskGroup


def make_node(name: str, gpus: int = 4, cpu_cores: float = 32.0, gpu_model: str = "V100", **changes: object) -> Node:
    """A node with `gpus` GPUs of 16 GiB."""
    return Node(
        id=NodeId(name),
        capacity=Resources(
            cpu_cores=cpu_cores, gpus=float(gpus), memory_gib=256.0, gpu_memory_gib=16.0 * gpus, network_gbps=50.0
        ),
        gpus=tuple(Gpu(index, gpu_model, 16.0) for index in range(gpus)),
        **changes,  # type: ignore[arg-type]
    )


def make_job(name: str, workers: int = 1, gpus: float = 1.0, cpu_cores: float = 2.0, **changes: object) -> Job:
    """A job of `workers` equal workers."""
    demand = Resources(cpu_cores=cpu_cores, gpus=gpus, memory_gib=4.0)
    return Job(
        id=JobId(name),
        model="ResNet-50",
        groups=(TaskGroup(Role.WORKER, workers, demand),),
        **changes,  # type: ignore[arg-type]
    )
