"""Domain → contract for what GetCluster shows: nodes, running jobs, totals, queues and settings."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration

from placewise.v1 import cluster_pb2, job_pb2
from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import (
    ClusterSettings,
    ExplorationGuard,
    ExplorerSettings,
    Gpu,
    Node,
    NodeState,
    NodeTelemetry,
    QueueSettings,
    QueueState,
    RunningJob,
    RunState,
)
from placewise_core.domain.job import JobId
from placewise_core.view.view import CPU, GPU_MEMORY, GPUS, MEMORY, NETWORK, ClusterView
from placewise_service.api.convert.convert_out import duration, fill_assignments, fill_queue_state, resources, set_time
from placewise_service.state.store import Overcommit

_NODE_STATES: dict[NodeState, Any] = {state: cluster_pb2.Node.State.Value(state) for state in NodeState}
_RUN_STATES: dict[RunState, Any] = {state: cluster_pb2.RunningJob.State.Value(state) for state in RunState}
_READINGS = tuple(name for name in NodeTelemetry.__dataclass_fields__ if name != "observe_time_s")
_GPU_READINGS = ("util", "memory_util", "celsius")


def overcommit(found: Overcommit) -> cluster_pb2.Overcommit:
    """A job that a host started on a node with too little left, with a description in words."""
    if found.gpus:
        gpus = ", ".join(map(str, found.gpus))
        text = f"job {found.job_id!r} runs on GPUs {gpus} of {found.node!r}, which {', '.join(found.others)} hold"
    else:
        text = f"job {found.job_id!r} runs on {found.node!r}, which has too little left"
    return cluster_pb2.Overcommit(
        job_id=found.job_id,
        node=found.node,
        gpu_indices=found.gpus,
        held_by=found.others,
        message=f"{text} ({found.reason}): stop one of them",
    )


def unknown_start(job_id: JobId) -> cluster_pb2.Overcommit:
    """A job that started by a decision that is not known, so that nothing is held for it."""
    text = f"job {job_id!r} started without a placement, and no decision about it is known (DECISION_UNKNOWN)"
    return cluster_pb2.Overcommit(job_id=job_id, message=f"{text}: report its start with the placement")


def totals(
    view: ClusterView, is_stale: bool, now_s: float, queue_settings: Callable[[str], QueueSettings]
) -> cluster_pb2.Cluster:
    """The view without its nodes and jobs one by one."""
    running = list(view.jobs.values())
    reserved = sum(job.state is RunState.RESERVED for job in running)
    host_s = view.host_time_s
    message = cluster_pb2.Cluster(
        cluster=view.cluster,
        snapshot_version=view.version,
        capacity=_amounts(view.nodes.columns, view.nodes.capacity.sum(axis=1)),
        used=_amounts(view.nodes.columns, (view.nodes.capacity - view.usage.free).sum(axis=1)),
        node_count=view.nodes.size,
        ready_node_count=int(view.nodes.is_ready.sum()),
        stale_node_count=int(view.is_stale(now_s if host_s is None else host_s).sum()),
        running_jobs=len(running) - reserved,
        reserved_jobs=reserved,
        queues=[_queue(state, queue_settings(name)) for name, state in sorted(view.queues.items())],
        settings=settings(view.settings),
        stale=is_stale,
    )
    if host_s is not None:
        set_time(message.host_time, host_s)
    if (found := view.estimates.disturbance).weight:
        message.disturbance.CopyFrom(cluster_pb2.Disturbance(loss=found.loss, pairs=found.weight))
    return message


def _amounts(columns: tuple[str, ...], amounts: FloatArray) -> job_pb2.Resources:
    message = job_pb2.Resources(
        cpu_cores=amounts[CPU],
        gpus=amounts[GPUS],
        memory_gib=amounts[MEMORY],
        gpu_memory_gib=amounts[GPU_MEMORY],
        network_gbps=amounts[NETWORK],
    )
    message.extended.update(zip(columns[5:], amounts[5:], strict=True))
    return message


def node(item: Node) -> cluster_pb2.Node:
    message = cluster_pb2.Node(
        id=item.id,
        capacity=resources(item.capacity),
        gpus=[_gpu(gpu) for gpu in item.gpus],
        max_jobs_per_gpu=item.max_jobs_per_gpu,
        rack=item.rack,
        hardware=cluster_pb2.Hardware(
            cpu_ghz=item.hardware.cpu_ghz,
            cache_mib=item.hardware.cache_mib,
            gpu_ghz=item.hardware.gpu_ghz,
            interconnect_gbps=item.hardware.interconnect_gbps,
        ),
        state=_NODE_STATES[item.state],
        labels=item.labels,
    )
    readings = _known(item.telemetry, _READINGS)
    if readings or item.telemetry.observe_time_s:
        message.telemetry.CopyFrom(cluster_pb2.Telemetry(**readings))
        set_time(message.telemetry.observe_time, item.telemetry.observe_time_s)
    return message


def _gpu(gpu: Gpu) -> cluster_pb2.Gpu:
    return cluster_pb2.Gpu(index=gpu.index, model=gpu.model, memory_gib=gpu.memory_gib, **_known(gpu, _GPU_READINGS))


def _known(owner: NodeTelemetry | Gpu, names: tuple[str, ...]) -> dict[str, Any]:
    """The readings somebody reported."""
    return {name: value for name in names if not math.isnan(value := getattr(owner, name))}


def running_job(job: RunningJob) -> cluster_pb2.RunningJob:
    message = cluster_pb2.RunningJob(
        job_id=job.id,
        state=_RUN_STATES[job.state],
        reservation_id=job.reservation_id,
        decision_id=job.decision_id,
        speed=job.speed,
        model=job.job.model,
        subtask_size=max((subtask.size for subtask in job.job.subtasks), default=0.0),
    )
    fill_assignments(message.assignments, job.assignments)
    if job.state is RunState.RESERVED:
        set_time(message.reservation_expire_time, job.expire_time_s)
    set_time(message.start_time, job.start_time_s)
    return message


def settings(value: ClusterSettings) -> cluster_pb2.ClusterSettings:
    return cluster_pb2.ClusterSettings(
        place_policy=value.place_policy,
        admit_policy=value.admit_policy,
        exploration_rate=value.exploration_rate,
        queues=[_queue_settings(queue, item) for queue, item in sorted(value.queues.items())],
        explorers=[cluster_pb2.Explorer(policy=item.policy, weight=item.weight) for item in value.explorers],
        exploration_guard=_guard_message(value.exploration_guard),
        admit_exploration_rate=value.admit_exploration_rate,
        host_clock=value.host_clock,
        learn_durations=value.learn_durations,
        learn_throughput=value.learn_throughput,
        learn_heat=value.learn_heat,
        learn_capability=value.learn_capability,
        learn_co_runs=value.learn_co_runs,
    )


def _guard_message(guard: ExplorationGuard) -> cluster_pb2.ExplorationGuard | None:
    if guard == ExplorationGuard():
        return None
    return cluster_pb2.ExplorationGuard(
        max_gpus=guard.max_gpus, min_nodes=guard.min_nodes, spare_urgent=guard.is_urgent_spared
    )


def _queue(state: QueueState, parameters: QueueSettings) -> cluster_pb2.QueueState:
    message = cluster_pb2.QueueState()
    fill_queue_state(message, state, parameters)
    if (head := state.head) is not None:
        message.head.job_id = head.job
        message.head.nodes.extend(head.nodes)
        set_time(message.head.start_time, head.start_s)
        set_time(message.head.bound_time, head.bound_s)
        set_time(message.head.expire_time, head.expire_s)
    return message


def _queue_settings(queue: str, item: QueueSettings) -> cluster_pb2.QueueSettings:
    return cluster_pb2.QueueSettings(
        queue=queue,
        v=item.v,
        epsilon_seconds=item.epsilon_s,
        tau_seconds=item.tau_s,
        slot_duration=duration(item.slot_s),
        wait_bound=duration(item.bound_s),
    )


def changed_settings(
    request: cluster_pb2.UpdateClusterSettingsRequest,
    current: ClusterSettings,
    queue_settings: Callable[[str], QueueSettings],
) -> ClusterSettings:
    """`current` with the changes of the request: the fields of its mask, or all without a mask."""
    given = request.settings
    wanted = set(request.update_mask.paths) or set(ClusterSettings.__dataclass_fields__)
    return ClusterSettings(
        place_policy=given.place_policy if "place_policy" in wanted else current.place_policy,
        admit_policy=given.admit_policy if "admit_policy" in wanted else current.admit_policy,
        exploration_rate=given.exploration_rate if "exploration_rate" in wanted else current.exploration_rate,
        queues=_changed_queues(given, current.queues, queue_settings) if "queues" in wanted else current.queues,
        explorers=_explorers(given) if "explorers" in wanted else current.explorers,
        exploration_guard=_guard(given) if "exploration_guard" in wanted else current.exploration_guard,
        admit_exploration_rate=(
            given.admit_exploration_rate if "admit_exploration_rate" in wanted else current.admit_exploration_rate
        ),
        host_clock=given.host_clock if "host_clock" in wanted else current.host_clock,
        learn_durations=given.learn_durations if "learn_durations" in wanted else current.learn_durations,
        learn_throughput=given.learn_throughput if "learn_throughput" in wanted else current.learn_throughput,
        learn_heat=given.learn_heat if "learn_heat" in wanted else current.learn_heat,
        learn_capability=given.learn_capability if "learn_capability" in wanted else current.learn_capability,
        learn_co_runs=given.learn_co_runs if "learn_co_runs" in wanted else current.learn_co_runs,
    )


def _explorers(given: cluster_pb2.ClusterSettings) -> tuple[ExplorerSettings, ...]:
    return tuple(ExplorerSettings(item.policy, item.weight or 1) for item in given.explorers)


def _guard(given: cluster_pb2.ClusterSettings) -> ExplorationGuard:
    guard = given.exploration_guard
    return ExplorationGuard(guard.max_gpus, guard.min_nodes, guard.spare_urgent)


def _changed_queues(
    given: cluster_pb2.ClusterSettings,
    current: Mapping[str, QueueSettings],
    queue_settings: Callable[[str], QueueSettings],
) -> dict[str, QueueSettings]:
    queues = dict(current)
    for item in given.queues:
        base = queues.get(item.queue) or queue_settings(item.queue)
        queues[item.queue] = QueueSettings(
            v=item.v if item.HasField("v") else base.v,
            epsilon_s=item.epsilon_seconds if item.HasField("epsilon_seconds") else base.epsilon_s,
            tau_s=item.tau_seconds if item.HasField("tau_seconds") else base.tau_s,
            slot_s=_span_s(item.slot_duration) if item.HasField("slot_duration") else base.slot_s,
            bound_s=_span_s(item.wait_bound) if item.HasField("wait_bound") else base.bound_s,
        )
    return queues


def _span_s(span: Duration) -> float:
    return span.seconds + span.nanos / 1e9
