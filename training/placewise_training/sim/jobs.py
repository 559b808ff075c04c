"""A job as the simulator knows it: the core's Job plus the work in it, which no policy may look at."""

from dataclasses import dataclass, field, replace

from placewise_core.domain.job import Architecture, ElasticRange, Job, Resources, Role, Shape, TaskGroup


@dataclass(slots=True)
class SimJob:
    """`samples` is the work in all; `deadline_s` the time QoS expects the finish by (inf: none).

    `dataset_gib` 0 means the data set stays in the page cache; `ideal_s` is the time the work takes as asked, alone;
    `attempt` counts restarts after node failures. `epoch_samples` is a pass over the data, for progress reports; 0: the
    work over the epochs that the job declares.
    """

    job: Job
    samples: float
    submit_time_s: float
    local_batch: float = 0.0
    deadline_s: float = float("inf")
    dataset_gib: float = 0.0
    ideal_s: float = 0.0
    number: int = 0
    attempt: int = 0
    samples_done: float = 0.0
    epoch_samples: float = 0.0
    _signed: tuple[Job | None, tuple[object, ...]] = field(default=(None, ()), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.samples > 0 and self.samples < float("inf")):
            raise ValueError(f"job {self.job.id}: work must be positive and finite, not {self.samples}")

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for jobs that ask for the same: if one of them finds no room, none does."""
        if self._signed[0] is not self.job:
            self._signed = self.job, _signature(self.job)
        return self._signed[1]

    @property
    def id(self) -> str:
        return self.job.id


def _signature(job: Job) -> tuple[object, ...]:
    groups = tuple(
        (
            g.role,
            g.count,
            g.demand.cpu_cores,
            g.demand.gpus,
            g.demand.memory_gib,
            g.demand.gpu_memory_gib,
            g.demand.network_gbps,
            g.max_per_node,
            g.gpu_model,
            tuple(sorted(g.node_selector.items())),
            tuple(sorted(g.demand.extended.items())),
        )
        for g in job.groups
    )
    sharing = (job.gpu_sharing.allowed, job.gpu_sharing.max_slowdown, job.model if job.gpu_sharing.allowed else "")
    return (groups, sharing, job.shape, job.elastic)


def workers_of(job: Job) -> int:
    """Worker tasks of a gang."""
    return sum([group.count for group in job.groups if group.role is Role.WORKER])


def servers_of(job: Job) -> int:
    """Parameter servers of a gang."""
    return sum([group.count for group in job.groups if group.role is Role.PARAMETER_SERVER])


def gang(
    workers: int,
    servers: int = 0,
    *,
    worker_demand: Resources,
    server_demand: Resources | None = None,
) -> tuple[TaskGroup, ...]:
    """Groups of a job with equal workers and equal parameter servers."""
    groups = [TaskGroup(Role.WORKER, workers, worker_demand)]
    if servers:
        groups.append(TaskGroup(Role.PARAMETER_SERVER, servers, server_demand or Resources(cpu_cores=1, memory_gib=2)))
    return tuple(groups)


def elastic(job: Job, max_gpus: int, per_gpu: Resources) -> Job:
    """The same job with its GPU count left to admission; its one group is the pattern of a worker."""
    return replace(job, groups=gang(1, worker_demand=replace(per_gpu, gpus=1.0)), elastic=ElasticRange(1, max_gpus))


def with_shape(job: Job, shape: Shape) -> Job:
    """The gang an admitted shape asks for: one worker per GPU, at most `gpus_per_node` of them on a node."""
    architecture = Architecture.ALL_REDUCE if shape.gpus > 1 else Architecture.SINGLE
    group = replace(job.groups[0], count=shape.gpus, max_per_node=shape.gpus_per_node)
    return replace(job, architecture=architecture, groups=(group,), shape=shape)
