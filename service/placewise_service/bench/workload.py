"""The messages of a benchmark: a cluster, running jobs, and the questions asked of it. Sends nothing."""

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration

from placewise.v1.cluster_pb2 import Assignment, ClusterSettings, Gpu, JobEvent, Node
from placewise.v1.decision_pb2 import AdmitOrWaitRequest, DivisibleTask, PartitionRequest, PlaceRequest
from placewise.v1.job_pb2 import GpuSharing, Job, Resources, TaskGroup
from placewise_core.basics.frozen import frozen
from placewise_service.commands.exits import CommandError, Exit

GPUS_PER_NODE = 8
_CORES_PER_NODE = 64.0
_MEMORY_GIB = 512.0
_TASK = Resources(cpu_cores=4, gpus=1, memory_gib=16, network_gbps=1)
_QUEUE = "bench"


@frozen
class Workload:
    """`nodes` × 8 GPUs with `jobs` running gangs of `tasks` single-GPU tasks; questions ask for one more gang.

    `is_sharing` marks jobs as willing to share GPUs, which makes a decision look at neighbours.
    """

    cluster: str
    nodes: int
    jobs: int
    tasks: int
    policy: str = ""
    is_sharing: bool = False

    def check(self) -> None:
        """Raises CommandError if the running jobs and one more gang do not fit."""
        if (self.jobs + 1) * self.tasks > self.nodes * GPUS_PER_NODE:
            message = (
                f"{self.jobs} jobs of {self.tasks} GPUs and one more need over {self.nodes} × {GPUS_PER_NODE} GPUs"
            )
            raise CommandError(message, Exit.USAGE)

    @property
    def free_gangs(self) -> int:
        """Gangs that fit beside the running jobs (in number of GPUs)."""
        return (self.nodes * GPUS_PER_NODE - self.jobs * self.tasks) // self.tasks

    def inventory(self) -> list[Node]:
        """Ready nodes, all alike."""
        capacity = Resources(
            cpu_cores=_CORES_PER_NODE, gpus=GPUS_PER_NODE, memory_gib=_MEMORY_GIB, gpu_memory_gib=256, network_gbps=100
        )
        gpus = [Gpu(index=index, model="V100", memory_gib=32) for index in range(GPUS_PER_NODE)]
        return [
            Node(id=f"node-{index:05d}", capacity=capacity, gpus=gpus, state=Node.READY, max_jobs_per_gpu=2)
            for index in range(self.nodes)
        ]

    def settings(self) -> ClusterSettings:
        """A slot for every millisecond: an answer given again within its slot would measure nothing."""
        settings = ClusterSettings()
        slot = Duration(nanos=1_000_000)
        settings.queues.add(queue=_QUEUE, v=1, epsilon_seconds=60, tau_seconds=3600, slot_duration=slot)
        return settings

    def running(self) -> Iterator[JobEvent]:
        """STARTED events of the jobs that run throughout: each gang spread over neighbouring nodes."""
        for index in range(self.jobs):
            job = self.job(f"running-{index}")
            event = JobEvent(job_id=job.id, kind=JobEvent.STARTED, job=job)
            for task in range(self.tasks):
                slot = index * self.tasks + task  # fills GPU 0 of every node, then GPU 1, …
                event.placement.add().CopyFrom(
                    Assignment(
                        task=f"worker-{task}",
                        role=TaskGroup.WORKER,
                        node=f"node-{slot % self.nodes:05d}",
                        gpu_indices=[slot // self.nodes],
                        demand=_TASK,
                    )
                )
            yield event

    def job(self, job_id: str) -> Job:
        """One gang."""
        return Job(
            id=job_id,
            model="ResNet-50",
            architecture=Job.ALL_REDUCE if self.tasks > 1 else Job.SINGLE,
            groups=[TaskGroup(role=TaskGroup.WORKER, count=self.tasks, demand=_TASK)],
            total_epochs=10,
            batch_size=256,
            dataset_size=100_000,
            queue=_QUEUE,
            gpu_sharing=GpuSharing(allowed=self.is_sharing, max_slowdown=1.5) if self.is_sharing else None,
        )

    def place(self, number: int) -> PlaceRequest:
        """A request whose placement is reserved for one minute."""
        job = self.job(f"asked-{number}")
        ttl = Duration(seconds=60)
        return PlaceRequest(cluster=self.cluster, jobs=[job], policy=self.policy, reserve_ttl=ttl)

    def admit(self, number: int) -> AdmitOrWaitRequest:
        """A queue of one elastic job nobody has asked about before."""
        job = self.job(f"asked-{number}")
        del job.groups[:]
        job.elastic.min_gpus, job.elastic.max_gpus = 1, GPUS_PER_NODE
        return AdmitOrWaitRequest(cluster=self.cluster, queue=_QUEUE, jobs=[job], policy=self.policy)

    def partition(self, number: int) -> PartitionRequest:
        """A task worth splitting over several idle units."""
        task = DivisibleTask(id=f"asked-{number}", kind="bench", parallel_scale=1000, serial_scale=10, overhead_s=1)
        return PartitionRequest(cluster=self.cluster, task=task)
