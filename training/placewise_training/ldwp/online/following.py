"""LDWP's DQN learns from a running cluster, one look at it after the other (4.2, Algorithm 1). Calls nothing.

Each pipeline that was placed since the last look is an action, even if another policy chose the node: Q learning is off
policy. The reward is the change of throughput: of a running cluster that is pipelines ended per minute, as hosts report
them. A pipeline that began and ended between two looks is missed.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from placewise.v1 import cluster_pb2, job_pb2
from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeTelemetry, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, Subtask
from placewise_core.inputs.ldwp_paper import order_of, state_of
from placewise_core.view.view import ClusterView
from placewise_training.ldwp.agent import TYPES, PaperDqn

_TELEMETRY = ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util", "tx_gbps", "rx_gbps")


@dataclass(slots=True)
class Following:
    """One cluster. `decisions` counts the pipelines that were learned from."""

    agent: PaperDqn
    decisions: int = 0
    _known: frozenset[str] | None = None  # pipelines there at the last look
    _ended_s: deque[float] = field(default_factory=deque)

    def look(self, seen: cluster_pb2.Cluster, now_s: float) -> None:
        """Learns from a snapshot of the cluster; the net is transferred if its nodes changed."""
        names = tuple(node.id for node in seen.nodes)
        if not names:
            return  # a service that has just started: its nodes are still to be reported
        pipelines = {job.job_id: job for job in seen.jobs if _is_known_pipeline(job)}
        net = self.agent.net_for(names)
        throughput = self._throughput(pipelines, now_s)
        new = self._placed(pipelines, names)
        new_ids = {job.job_id for job in new}
        view = view_of(seen.nodes, (job for job in seen.jobs if job.job_id not in new_ids))
        order = order_of(view, net.nodes)
        for message in new:
            running = running_of(message)
            state = state_of(running.job, view, TYPES, order)
            self.agent.follow(net, state, net.nodes.index(running.assignments[0].node), throughput)
            view.add_job(running)
        self.decisions += len(new)
        self._known = frozenset(pipelines)

    def _throughput(self, pipelines: Mapping[str, cluster_pb2.RunningJob], now_s: float) -> float:
        """Pipelines ended per minute over the window."""
        window_s = self.agent.settings.window_s
        self._ended_s.extend([now_s] * len((self._known or frozenset()) - pipelines.keys()))
        while self._ended_s and self._ended_s[0] <= now_s - window_s:
            self._ended_s.popleft()
        return 60.0 * len(self._ended_s) / window_s

    def _placed(
        self, pipelines: Mapping[str, cluster_pb2.RunningJob], names: tuple[str, ...]
    ) -> list[cluster_pb2.RunningJob]:
        """Those placed since the last look, in order. None at the first: the states that they found are unknown."""
        if self._known is None:
            return []
        new = [
            job
            for name, job in pipelines.items()
            if name not in self._known and job.assignments and job.assignments[0].node in names
        ]
        return sorted(new, key=lambda job: (job.start_time.ToNanoseconds(), job.job_id))


def view_of(nodes: Iterable[cluster_pb2.Node], jobs: Iterable[cluster_pb2.RunningJob]) -> ClusterView:
    """The view of a cluster as far as LDWP's state reads it: capacity, telemetry, and the resources of each job."""
    records = ClusterRecords("", 1, "", tuple(map(_node, nodes)), tuple(map(running_of, jobs)))
    return ClusterView(records)


def running_of(message: cluster_pb2.RunningJob) -> RunningJob:
    subtasks = (Subtask("", "", size=message.subtask_size),) if message.subtask_size > 0 else ()
    job = Job(JobId(message.job_id), model=message.model, subtasks=subtasks)
    return RunningJob(
        job,
        tuple(map(_assignment, message.assignments)),
        start_time_s=message.start_time.ToNanoseconds() / 1e9,
    )


def _is_known_pipeline(job: cluster_pb2.RunningJob) -> bool:
    return job.subtask_size > 0 and job.model in TYPES


def _node(message: cluster_pb2.Node) -> Node:
    readings = message.telemetry
    return Node(
        NodeId(message.id),
        _resources(message.capacity),
        tuple(Gpu(gpu.index, gpu.model, gpu.memory_gib) for gpu in message.gpus),
        max_jobs_per_gpu=message.max_jobs_per_gpu,
        telemetry=NodeTelemetry(**{name: getattr(readings, name) for name in _TELEMETRY if readings.HasField(name)}),
    )


def _assignment(message: cluster_pb2.Assignment) -> Assignment:
    gpus = tuple(message.gpu_indices)
    return Assignment(message.task, Role.WORKER, NodeId(message.node), gpus, _resources(message.demand))


def _resources(message: job_pb2.Resources) -> Resources:
    return Resources(
        cpu_cores=message.cpu_cores,
        gpus=message.gpus,
        memory_gib=message.memory_gib,
        gpu_memory_gib=message.gpu_memory_gib,
        network_gbps=message.network_gbps,
    )
