"""From Slurm's words to Placewise's: jobs to gangs with one task per node, nodes to inventory. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1.cluster_pb2 import Assignment, Gpu, Node
from placewise.v1.job_pb2 import ElasticRange, Job, Resources, TaskGroup
from placewise_client.adapter.native import End, NativeJob, Stage
from placewise_slurm import gres, hostlist
from placewise_slurm.records import SlurmJob, SlurmNode

_LIVE = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
)
_FINISHED = frozenset({"COMPLETED"})
_CANCELLED = frozenset({"CANCELLED", "REVOKED"})
# Requeue states are pending again in a moment.
_IN_BETWEEN = frozenset({"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})

_DOWN = frozenset(
    {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG", "ERROR"}
)
_DRAINING = frozenset({"DRAIN", "DRAINED", "DRAINING", "MAINT", "RESERVED", "PLANNED_DOWN", "FUTURE"})

# The contract's limits: a comment may hold any number.
_MOST_BATCH = 2**31 - 1
_MOST_SAMPLES = 2**53

# Reasons that keep Slurm from starting a job even on an empty cluster: limits of its QOS, association or partition,
# licences, reservations. Others give way by themselves (Resources) or are answered by another place (ReqNodeNotAvail).
_LIMITS = re.compile(
    r"(QOS|Assoc|Account|InvalidQOS|InvalidAccount|Licenses|Reservation|Partition\w+Limit|Max\w+PerAccount|DeadLine)\w*"
)
_RESERVED = "Reserved for maintenance"
_OUTRANKED = "Priority"
_MAY_BE_RESERVED = "May be reserved for other job"

# Features that all nodes of a job need ("a100&ib"); the submit hook lets other constraints pass to Slurm.
_FEATURES = re.compile(r"[\w.:-]+(?:&[\w.:-]+)*")
_PAIR = re.compile(r"([a-z_]+)=([^\s,;]+)")
_PRIORITIES = {"urgent": Job.URGENT, "prior": Job.PRIOR, "normal": Job.NORMAL}
_TOGETHER = {"none": Job.NONE, "node": Job.NODE, "rack": Job.RACK}


@dataclass(frozen=True, slots=True)
class SiteNames:
    """The site's names. Keys of `priorities` are QOS names, then partition names."""

    priorities: Mapping[str, str] = field(default_factory=dict)
    gpu_model: str = ""
    """Model of all GPUs whose gres type does not name one."""
    network_gbps: float = 0.0
    gpu_memory_gib: float = 0.0
    rack_prefix: str = ""
    """A feature that begins so names the rack of its nodes. Empty: nodes have no racks."""


def comment_pairs(comment: str) -> dict[str, str]:
    """`key=value` words of a job comment: "model=ResNet-50 epochs=90"."""
    return dict(_PAIR.findall(comment))


def stage(job: SlurmJob) -> Stage | None:
    """None for a pending job that the submit hook has not marked: it is not ours."""
    if job.state in _LIVE:
        return Stage.RUNNING
    if job.is_pending or job.state in _IN_BETWEEN:
        if job.is_watched:
            return Stage.WAITING
        if not job.is_marked:
            return None
        if job.is_held:
            return Stage.RELEASED if job.is_held_after_failure else Stage.WAITING
        return Stage.APPLIED if job.required_nodes else Stage.RELEASED
    return Stage.ENDED


def key(job: SlurmJob) -> str:
    """A job that Slurm has queued again is a new one for the service."""
    return f"{job.id}.r{job.restarts}" if job.restarts else str(job.id)


def gpus_per_node(job: SlurmJob) -> int:
    """GPUs of each node. A count for the whole job (`--gpus`), or tasks with GPUs, are split evenly, rounded up."""
    if job.asked_per_node:
        return gres.gpu_count(job.asked_per_node)
    if gpus_per_task(job):
        return math.ceil(job.tasks / job.min_nodes) * gpus_per_task(job)
    return math.ceil(gres.gpu_count(job.tres_per_job) / job.min_nodes)


def gpus_per_task(job: SlurmJob) -> int:
    """From 23.11 the same field also names the processors of a task (`cpu=2`)."""
    return gres.gpu_count(job.tres_per_task)


def cpus_per_node(job: SlurmJob) -> int:
    return max(1, job.min_cpus_per_node, math.ceil(job.cpus / job.min_nodes))


def task_group(job: SlurmJob, types: Sequence[str] = ()) -> TaskGroup:
    """The gang: one task per node, with the resources that the job gets on each node."""
    memory_mib = job.memory_per_node_mib or job.memory_per_cpu_mib * cpus_per_node(job)
    demand = Resources(cpu_cores=cpus_per_node(job), gpus=gpus_per_node(job), memory_gib=memory_mib / 1024)
    per_task = job.tres_per_task if gpus_per_task(job) else ""
    asked = gres.gpu_model(job.asked_per_node or per_task or job.tres_per_job)
    model = asked if asked not in types else ""
    return TaskGroup(
        role=TaskGroup.WORKER,
        count=job.min_nodes,
        demand=demand,
        max_per_node=1,
        gpu_model=model,
        node_selector=dict.fromkeys(_labels_of(job), "true"),
    )


def _labels_of(job: SlurmJob) -> list[str]:
    """Labels (see `to_node`) of the nodes that Slurm would take for the job: of its partition, with its features."""
    features = job.features.split("&") if _FEATURES.fullmatch(job.features) else []
    return [*([f"partition/{job.partition}"] if job.partition else []), *(f"feature/{name}" for name in features)]


def is_elastic(job: SlurmJob) -> bool:
    """A node range (`-N1-4`) with GPUs: the service chooses the size, unless GPUs go with a number of tasks."""
    return job.max_nodes > job.min_nodes and gpus_per_node(job) > 0 and not gpus_per_task(job)


def to_job(job: SlurmJob, names: SiteNames, types: Sequence[str] = ()) -> Job:
    """The question about this job. What Slurm does not know (model, epochs) comes from the job's comment."""
    group = task_group(job, types)
    settings = comment_pairs(job.comment)
    result = Job(
        id=key(job),
        model=settings.get("model", ""),
        architecture=Job.ALL_REDUCE if job.min_nodes > 1 or is_elastic(job) else Job.SINGLE,
        queue=job.partition,
        user=job.user,
        priority=_priority(job, names),
        submit_time=Timestamp(seconds=int(job.submit_time_s)),
        total_epochs=_float(settings, "epochs"),
        batch_size=int(min(_float(settings, "batch"), _MOST_BATCH)),
        dataset_size=int(min(_float(settings, "samples"), _MOST_SAMPLES)),
        iterations=_float(settings, "iterations"),
        single_gpu_seconds=_float(settings, "gpu_seconds"),
        keep_together=_TOGETHER.get(settings.get("keep_together", "").lower(), Job.KEEP_TOGETHER_UNSPECIFIED),
        exclusive_network=settings.get("exclusive_network", "").lower() in ("yes", "true", "1"),
    )
    if is_elastic(job):
        per_node = int(group.demand.gpus)
        result.elastic.CopyFrom(ElasticRange(min_gpus=job.min_nodes * per_node, max_gpus=job.max_nodes * per_node))
    else:
        result.groups.append(group)
    return result


def _priority(job: SlurmJob, names: SiteNames) -> Job.Priority:
    named = names.priorities.get(job.qos) or names.priorities.get(job.partition) or "normal"
    return _PRIORITIES[named]


def _float(settings: Mapping[str, str], name: str) -> float:
    try:
        value = float(settings.get(name, 0))
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value >= 0 else 0.0


def to_native(job: SlurmJob, names: SiteNames, types: Sequence[str] = ()) -> NativeJob | None:
    """The job as the adapter's skeleton sees it; None if it does not concern Placewise."""
    now = stage(job)
    if now is None:
        return None
    return NativeJob(
        key=key(job),
        job=to_job(job, names, types),
        stage=now,
        template=task_group(job, types) if is_elastic(job) else None,
        most_nodes=job.max_nodes,
        placement=placement(job),
        is_managed=job.is_marked or job.is_watched,
        are_gpus_exact=bool(job.gres_detail or job.gpu_layout) and _names_indices(job, types),
        begin_time_s=job.begin_time_s if job.is_pending else 0.0,
        start_time_s=job.start_time_s if now in (Stage.RUNNING, Stage.ENDED) else 0.0,
        end=_end(job) if now is Stage.ENDED else None,
        end_time_s=job.end_time_s if now is Stage.ENDED else 0.0,
        end_reason=f"{job.state}, exit code {job.exit_code}" if now is Stage.ENDED else "",
        blocked_by=blocked_by(job) if now is Stage.APPLIED else "",
    )


def blocked_by(job: SlurmJob) -> str:
    """The rule of Slurm's own that keeps a pending job from starting, in its word; "" if only places are missing."""
    if _LIMITS.fullmatch(job.reason):
        return job.reason
    return job.reason_text if _RESERVED in job.reason_text else ""


def is_outranked(job: SlurmJob, others: int) -> bool:
    """Whether Slurm keeps the nodes of a pending job for other jobs, or starts others first.

    `others` is the highest priority of the other jobs that wait in its partition. Slurm gives the reason "Priority" to
    a job that it has not looked at yet, too.
    """
    return _MAY_BE_RESERVED in job.reason_text or (job.reason == _OUTRANKED and others >= job.priority)


def _names_indices(job: SlurmJob, types: Sequence[str]) -> bool:
    asked = {entry.type for entry in gres.gpu_entries(job.tres_per_node)}
    return bool(types) and bool(asked) and asked <= set(types)


def _end(job: SlurmJob) -> End:
    if job.state in _FINISHED:
        return End.FINISHED
    return End.CANCELLED if job.state in _CANCELLED else End.FAILED


def placement(job: SlurmJob) -> tuple[Assignment, ...]:
    """The job's real nodes, one task each, with the GPU indices that Slurm shows while it runs."""
    nodes = hostlist.expand(job.nodes) if job.nodes not in ("", "(null)") else []
    if not nodes:
        return ()
    cpus = math.ceil(job.cpus / len(nodes))
    memory_mib = job.memory_per_node_mib or job.memory_per_cpu_mib * cpus
    details = job.gres_detail if len(job.gres_detail) == len(nodes) else ("",) * len(nodes)
    assignments = []
    for position, (node, detail) in enumerate(zip(nodes, details, strict=True)):
        indices = gres.allocated_indices(detail) if job.gpu_layout is None else job.gpu_layout.get(node, ())
        gpus = len(indices) or gpus_per_node(job)
        assignments.append(
            Assignment(
                task=f"worker-{position}",
                role=TaskGroup.WORKER,
                node=node,
                gpu_indices=indices,
                demand=Resources(cpu_cores=cpus, gpus=gpus, memory_gib=memory_mib / 1024),
            )
        )
    return tuple(assignments)


def to_node(node: SlurmNode, names: SiteNames) -> Node:
    """Inventory of one node, and the little telemetry that Slurm has."""
    types = gres.index_types(node.gres)
    count = gres.gpu_count(node.gres)
    model = names.gpu_model if types else gres.gpu_model(node.gres) or names.gpu_model
    result = Node(
        id=node.name,
        capacity=Resources(
            cpu_cores=node.cpus,
            gpus=count,
            memory_gib=node.memory_mib / 1024,
            network_gbps=names.network_gbps,
            gpu_memory_gib=names.gpu_memory_gib * count,
        ),
        gpus=[Gpu(index=index, model=model, memory_gib=names.gpu_memory_gib) for index in range(count)],
        max_jobs_per_gpu=1,
        rack=next((name for name in node.features if names.rack_prefix and name.startswith(names.rack_prefix)), ""),
        state=_node_state(node),
        labels=dict.fromkeys(
            [*(f"feature/{name}" for name in node.features), *(f"partition/{name}" for name in node.partitions)], "true"
        ),
    )
    if node.cpus:
        result.telemetry.cpu_util = min(1.0, node.cpu_load / node.cpus)
    if node.memory_mib:
        result.telemetry.memory_util = min(1.0, max(0.0, 1.0 - node.free_memory_mib / node.memory_mib))
    return result


def _node_state(node: SlurmNode) -> Node.State:
    if node.states & _DOWN:
        return Node.DOWN
    return Node.DRAINING if node.states & _DRAINING else Node.READY
