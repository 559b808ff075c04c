"""Contract → domain. Reads each field once and builds each object once: Place passes here on every call.

Unknown enum numbers are refused here, since the domain has no name for them; every other rule is validate.py's.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import nan
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1 import cluster_pb2, decision_pb2, job_pb2
from placewise_core.domain.cluster import (
    Assignment,
    Gpu,
    Hardware,
    Node,
    NodeState,
    NodeTelemetry,
    gpu_without_telemetry,
)
from placewise_core.domain.commands import (
    AdmitCommand,
    JobEvent,
    JobEventKind,
    PartitionCommand,
    PlaceCommand,
    Scope,
    ShareOutcome,
    SubtaskOutcome,
)
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import (
    Architecture,
    CoRun,
    ElasticRange,
    GpuSharing,
    Job,
    JobId,
    KeepTogether,
    NodeId,
    Priority,
    Resources,
    Role,
    Shape,
    Subtask,
    SubtaskState,
    TaskGroup,
)
from placewise_core.domain.validate import NO_TELEMETRY
from placewise_core.speed.params import Convolution, FullyConnected, Layer, millions_of

_Name = TypeVar("_Name")
_Timed = (
    decision_pb2.PlaceRequest
    | decision_pb2.PartitionRequest
    | decision_pb2.AdmitOrWaitRequest
    | cluster_pb2.ReportNodesRequest
    | cluster_pb2.ReportJobEventsRequest
)

# By number; 0 (unspecified) stands for the usual case.
_ROLES = (Role.WORKER, Role.WORKER, Role.PARAMETER_SERVER)
_PRIORITIES = (Priority.NORMAL, Priority.URGENT, Priority.PRIOR, Priority.NORMAL)
_KEEP_TOGETHER = (KeepTogether.NONE, KeepTogether.NONE, KeepTogether.NODE, KeepTogether.RACK)
_SUBTASK_STATES = (SubtaskState.PENDING, SubtaskState.PENDING, SubtaskState.RUNNING, SubtaskState.DONE)
_SCOPES = (Scope.CLUSTER, Scope.CLUSTER, Scope.NODE)
_NODE_STATES = (NodeState.READY, NodeState.READY, NodeState.DRAINING, NodeState.DOWN)
_ARCHITECTURES = (
    None,
    Architecture.SINGLE,
    Architecture.PARAMETER_SERVER,
    Architecture.ALL_REDUCE,
    Architecture.PIPELINE,
)
_EVENT_KINDS = (None, *JobEventKind)

_NO_DEMAND = Resources()
_NO_SHARING = GpuSharing()
_NO_HARDWARE = Hardware()
_KEPT_GROUPS, _KEPT_BYTES = 1024, 512
_TELEMETRY_FIELDS = frozenset(NodeTelemetry.__dataclass_fields__) - {"observe_time_s"}


def place_command(request: decision_pb2.PlaceRequest, caller: str = "", fingerprint: bytes = b"") -> PlaceCommand:
    """Raises InvalidRequestError for an unknown enum number."""
    return PlaceCommand(
        cluster=request.cluster,
        jobs=tuple([job(item) for item in request.jobs]),
        request_id=request.request_id,
        policy=request.policy,
        scope=_named(_SCOPES, request.scope, "scope"),
        node_id=request.node_id,
        is_dry_run=request.dry_run,
        is_explaining=request.explain,
        reserve_ttl_s=seconds(request.reserve_ttl) if request.HasField("reserve_ttl") else 0.0,
        seed=request.seed if request.HasField("seed") else None,
        caller=caller,
        fingerprint=fingerprint,
        now_s=host_time(request),
    )


def admit_command(request: decision_pb2.AdmitOrWaitRequest, caller: str = "", fingerprint: bytes = b"") -> AdmitCommand:
    """Raises InvalidRequestError for an unknown enum number."""
    return AdmitCommand(
        cluster=request.cluster,
        queue=request.queue,
        jobs=tuple([job(item) for item in request.jobs]),
        policy=request.policy,
        request_id=request.request_id,
        is_dry_run=request.dry_run,
        is_explaining=request.explain,
        seed=request.seed if request.HasField("seed") else None,
        caller=caller,
        fingerprint=fingerprint,
        now_s=host_time(request),
    )


def partition_command(
    request: decision_pb2.PartitionRequest, caller: str = "", fingerprint: bytes = b""
) -> PartitionCommand:
    task = request.task
    return PartitionCommand(
        cluster=request.cluster,
        task=DivisibleTask(
            id=task.id,
            parallel_scale=task.parallel_scale,
            serial_scale=task.serial_scale,
            overhead_s=task.overhead_s,
            kind=task.kind,
            demand=resources(task.demand) if task.HasField("demand") else _NO_DEMAND,
        ),
        units=tuple(request.units),
        request_id=request.request_id,
        is_dry_run=request.dry_run,
        is_explaining=request.explain,
        progress=tuple(map(_share_progress, request.progress)) if request.progress else (),
        policy=request.policy,
        caller=caller,
        fingerprint=fingerprint,
        now_s=host_time(request),
    )


def _share_progress(share: decision_pb2.ShareProgress) -> ShareProgress:
    return ShareProgress(
        node=share.node,
        unit=share.unit,
        scale=share.scale,
        predicted_s=share.predicted_seconds,
        capability=share.capability,
        done=share.done,
        elapsed_s=share.elapsed_seconds,
        is_move_requested=share.move_requested,
    )


def job(message: job_pb2.Job) -> Job:
    """Raises InvalidRequestError for an unknown enum number."""
    has = message.HasField
    groups = tuple([_group(group) for group in message.groups])
    subtasks = tuple([_subtask(subtask) for subtask in message.subtasks])
    return Job(
        id=JobId(message.id),
        model=message.model,
        architecture=_named(_ARCHITECTURES, message.architecture, "jobs.architecture")
        or _architecture(groups, subtasks),
        groups=groups,
        total_epochs=message.total_epochs,
        batch_size=message.batch_size,
        dataset_size=message.dataset_size,
        iterations=message.iterations,
        priority=_named(_PRIORITIES, message.priority, "jobs.priority"),
        queue=message.queue,
        submit_time_s=seconds(message.submit_time) if has("submit_time") else 0.0,
        subtasks=subtasks,
        single_gpu_s=message.single_gpu_seconds,
        params_millions=message.params_millions
        or (millions_of(_layers(layers)) if (layers := message.layers) else 0.0),
        gpu_sharing=_sharing(message.gpu_sharing) if has("gpu_sharing") else _NO_SHARING,
        elastic=ElasticRange(message.elastic.min_gpus, message.elastic.max_gpus) if has("elastic") else None,
        shape=Shape(message.shape.nodes, message.shape.gpus_per_node) if has("shape") else None,
        attained_gpu_s=message.attained_gpu_seconds,
        user=message.user,
        keep_together=_named(_KEEP_TOGETHER, message.keep_together, "jobs.keep_together"),
        exclusive_network=message.exclusive_network,
    )


def _layers(messages: Sequence[job_pb2.Layer]) -> list[Layer]:
    """Raises InvalidRequestError for a layer of an unknown kind or without its sizes."""
    return [_layer(message, f"jobs.layers[{i}]") for i, message in enumerate(messages)]


def _layer(message: job_pb2.Layer, field: str) -> Layer:
    is_convolution = message.kind == job_pb2.Layer.CONVOLUTION
    if not is_convolution and message.kind != job_pb2.Layer.FULLY_CONNECTED:
        raise InvalidRequestError("must be CONVOLUTION or FULLY_CONNECTED", f"{field}.kind")
    for name in ("inputs", "outputs", *(("kernel",) if is_convolution else ())):
        if getattr(message, name) < 1:
            raise InvalidRequestError("must be at least 1", f"{field}.{name}")
    for name in ("height", "width"):
        if getattr(message, name) < 0:
            raise InvalidRequestError("must not be negative", f"{field}.{name}")
    if is_convolution:
        return Convolution(message.inputs, message.outputs, message.kernel)
    return FullyConnected(message.inputs, message.outputs, message.height or 1, message.width or 1)


def _architecture(groups: Sequence[TaskGroup], subtasks: Sequence[Subtask]) -> Architecture:
    """The architecture of a job that names none."""
    if subtasks:
        return Architecture.PIPELINE
    count = 0
    for group in groups:
        if group.role is Role.PARAMETER_SERVER:
            return Architecture.PARAMETER_SERVER
        count += group.count
    return Architecture.ALL_REDUCE if count > 1 else Architecture.SINGLE


def _group(message: job_pb2.TaskGroup) -> TaskGroup:
    """Jobs come in few shapes, and most are one of a series: groups of usual size are kept."""
    serialized = message.SerializeToString()
    return _kept_group(serialized) if len(serialized) <= _KEPT_BYTES else _new_group(message)


@lru_cache(_KEPT_GROUPS)
def _kept_group(serialized: bytes) -> TaskGroup:
    return _new_group(job_pb2.TaskGroup.FromString(serialized))


def _new_group(message: job_pb2.TaskGroup) -> TaskGroup:
    return TaskGroup(
        role=_named(_ROLES, message.role, "jobs.groups.role"),
        count=message.count,
        demand=resources(message.demand) if message.HasField("demand") else _NO_DEMAND,
        max_per_node=message.max_per_node,
        gpu_model=message.gpu_model,
        node_selector=dict(message.node_selector) if message.node_selector else {},
    )


@lru_cache(_KEPT_GROUPS)
def _kept_capacity(serialized: bytes) -> Resources:
    """One object for nodes alike."""
    return resources(job_pb2.Resources.FromString(serialized))


def resources(message: job_pb2.Resources) -> Resources:
    return Resources(
        cpu_cores=message.cpu_cores,
        gpus=message.gpus,
        memory_gib=message.memory_gib,
        gpu_memory_gib=message.gpu_memory_gib,
        network_gbps=message.network_gbps,
        extended=dict(message.extended) if message.extended else {},
    )


def _sharing(message: job_pb2.GpuSharing) -> GpuSharing:
    return GpuSharing(
        message.allowed,
        message.max_slowdown or _NO_SHARING.max_slowdown,
        tuple([_co_run(co_run) for co_run in message.co_runs]) if message.co_runs else (),
    )


def _co_run(message: job_pb2.CoRun) -> CoRun:
    return CoRun(
        message.model, message.relative_speed, message.neighbour_relative_speed, message.gpu_model, message.step_seconds
    )


def _subtask(message: job_pb2.Subtask) -> Subtask:
    return Subtask(
        id=message.id,
        kind=message.kind,
        after=tuple(message.after),
        has_gpu_version=message.has_gpu_version,
        profile=dict(message.profile),
        size=message.size,
        state=_named(_SUBTASK_STATES, message.state, "jobs.subtasks.state"),
        unit=message.unit,
    )


def node(message: cluster_pb2.Node) -> Node:
    """Raises InvalidRequestError for an unknown enum number."""
    has = message.HasField
    return Node(
        id=NodeId(message.id),
        capacity=_kept_capacity(message.capacity.SerializeToString()) if has("capacity") else _NO_DEMAND,
        gpus=tuple([_gpu(gpu) for gpu in message.gpus]),
        max_jobs_per_gpu=message.max_jobs_per_gpu,
        rack=message.rack,
        hardware=_hardware(message.hardware) if has("hardware") else _NO_HARDWARE,
        telemetry=_telemetry(message.telemetry) if has("telemetry") else NO_TELEMETRY,
        state=_named(_NODE_STATES, message.state, "nodes.state"),
        labels=dict(message.labels),
    )


def _gpu(message: cluster_pb2.Gpu) -> Gpu:
    has = message.HasField
    if not (has("util") or has("memory_util") or has("celsius")):
        return gpu_without_telemetry(message.index, message.model, message.memory_gib)
    return Gpu(
        index=message.index,
        model=message.model,
        memory_gib=message.memory_gib,
        util=message.util if has("util") else nan,
        memory_util=message.memory_util if has("memory_util") else nan,
        celsius=message.celsius if has("celsius") else nan,
    )


def _hardware(message: cluster_pb2.Hardware) -> Hardware:
    return Hardware(message.cpu_ghz, message.cache_mib, message.gpu_ghz, message.interconnect_gbps)


def _telemetry(message: cluster_pb2.Telemetry) -> NodeTelemetry:
    """Only the fields that are there: those that are not stay unknown."""
    values = {field.name: value for field, value in message.ListFields() if field.name in _TELEMETRY_FIELDS}
    observe_time_s = seconds(message.observe_time) if message.HasField("observe_time") else 0.0
    return NodeTelemetry(**values, observe_time_s=observe_time_s)


def job_event(message: cluster_pb2.JobEvent) -> JobEvent:
    """Raises InvalidRequestError for an unknown or missing kind."""
    kind = _named(_EVENT_KINDS, message.kind, "events.kind")
    if kind is None:
        raise InvalidRequestError("must be given", "events.kind")
    has = message.HasField
    return JobEvent(
        job_id=JobId(message.job_id),
        kind=kind,
        event_time_s=seconds(message.event_time) if has("event_time") else 0.0,
        placement=tuple([_assignment(item) for item in message.placement]),
        speed=message.speed,
        epochs_done=message.epochs_done,
        reservation_id=message.reservation_id,
        decision_id=message.decision_id,
        job=job(message.job) if has("job") else None,
        reason=message.reason,
        share=_share(message.share) if has("share") else None,
        subtask=_subtask_outcome(message.subtask) if has("subtask") else None,
    )


def _assignment(message: cluster_pb2.Assignment) -> Assignment:
    return Assignment(
        task=message.task,
        role=_named(_ROLES, message.role, "events.placement.role"),
        node=NodeId(message.node),
        gpu_indices=tuple(message.gpu_indices),
        demand=resources(message.demand) if message.HasField("demand") else _NO_DEMAND,
        cpu_unit=message.cpu_unit,
        subtask=message.subtask,
    )


def _share(message: cluster_pb2.ShareOutcome) -> ShareOutcome:
    return ShareOutcome(
        task_kind=message.task_kind,
        node=message.node,
        unit=message.unit,
        scale=message.scale,
        seconds=message.seconds,
        overhead_s=message.overhead_seconds,
        peak_celsius=message.peak_celsius,
    )


def _subtask_outcome(message: cluster_pb2.SubtaskOutcome) -> SubtaskOutcome:
    return SubtaskOutcome(
        subtask=message.subtask,
        kind=message.kind,
        unit=message.unit,
        seconds=message.seconds,
        size=message.size,
        node=message.node,
    )


def host_time(request: _Timed) -> float | None:
    """The host's time in seconds since the epoch; None if the request does not tell it."""
    return seconds(request.now) if request.HasField("now") else None


def seconds(message: Timestamp | Duration) -> float:
    """Seconds since the epoch, or a span of seconds."""
    return message.seconds + message.nanos / 1e9


def _named(names: Sequence[_Name], number: int, field: str) -> _Name:
    if 0 <= number < len(names):
        return names[number]
    raise InvalidRequestError(f"unknown value {number}", field)
