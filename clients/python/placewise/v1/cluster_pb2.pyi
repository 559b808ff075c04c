from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from placewise.v1 import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Gpu(_message.Message):
    __slots__ = ("index", "model", "memory_gib", "util", "memory_util", "celsius")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    UTIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UTIL_FIELD_NUMBER: _ClassVar[int]
    CELSIUS_FIELD_NUMBER: _ClassVar[int]
    index: int
    model: str
    memory_gib: float
    util: float
    memory_util: float
    celsius: float
    def __init__(self, index: _Optional[int] = ..., model: _Optional[str] = ..., memory_gib: _Optional[float] = ..., util: _Optional[float] = ..., memory_util: _Optional[float] = ..., celsius: _Optional[float] = ...) -> None: ...

class Hardware(_message.Message):
    __slots__ = ("cpu_ghz", "cache_mib", "gpu_ghz", "interconnect_gbps")
    CPU_GHZ_FIELD_NUMBER: _ClassVar[int]
    CACHE_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_GHZ_FIELD_NUMBER: _ClassVar[int]
    INTERCONNECT_GBPS_FIELD_NUMBER: _ClassVar[int]
    cpu_ghz: float
    cache_mib: float
    gpu_ghz: float
    interconnect_gbps: float
    def __init__(self, cpu_ghz: _Optional[float] = ..., cache_mib: _Optional[float] = ..., gpu_ghz: _Optional[float] = ..., interconnect_gbps: _Optional[float] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util", "cache_util", "tx_gbps", "rx_gbps", "cpu_celsius", "gpu_celsius", "limit_celsius", "power_watts", "observe_time", "ambient_celsius")
    CPU_UTIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UTIL_FIELD_NUMBER: _ClassVar[int]
    GPU_UTIL_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_UTIL_FIELD_NUMBER: _ClassVar[int]
    CACHE_UTIL_FIELD_NUMBER: _ClassVar[int]
    TX_GBPS_FIELD_NUMBER: _ClassVar[int]
    RX_GBPS_FIELD_NUMBER: _ClassVar[int]
    CPU_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    GPU_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_TIME_FIELD_NUMBER: _ClassVar[int]
    AMBIENT_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    cpu_util: float
    memory_util: float
    gpu_util: float
    gpu_memory_util: float
    cache_util: float
    tx_gbps: float
    rx_gbps: float
    cpu_celsius: float
    gpu_celsius: float
    limit_celsius: float
    power_watts: float
    observe_time: _timestamp_pb2.Timestamp
    ambient_celsius: float
    def __init__(self, cpu_util: _Optional[float] = ..., memory_util: _Optional[float] = ..., gpu_util: _Optional[float] = ..., gpu_memory_util: _Optional[float] = ..., cache_util: _Optional[float] = ..., tx_gbps: _Optional[float] = ..., rx_gbps: _Optional[float] = ..., cpu_celsius: _Optional[float] = ..., gpu_celsius: _Optional[float] = ..., limit_celsius: _Optional[float] = ..., power_watts: _Optional[float] = ..., observe_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ambient_celsius: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "capacity", "gpus", "max_jobs_per_gpu", "rack", "hardware", "telemetry", "state", "labels")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Node.State]
        READY: _ClassVar[Node.State]
        DRAINING: _ClassVar[Node.State]
        DOWN: _ClassVar[Node.State]
    STATE_UNSPECIFIED: Node.State
    READY: Node.State
    DRAINING: Node.State
    DOWN: Node.State
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_JOBS_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    id: str
    capacity: _job_pb2.Resources
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    max_jobs_per_gpu: int
    rack: str
    hardware: Hardware
    telemetry: Telemetry
    state: Node.State
    labels: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., capacity: _Optional[_Union[_job_pb2.Resources, _Mapping]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., max_jobs_per_gpu: _Optional[int] = ..., rack: _Optional[str] = ..., hardware: _Optional[_Union[Hardware, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., state: _Optional[_Union[Node.State, str]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReportNodesRequest(_message.Message):
    __slots__ = ("cluster", "nodes", "full", "now")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    full: bool
    now: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., full: bool = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReportNodesResponse(_message.Message):
    __slots__ = ("snapshot_version", "nodes")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    nodes: int
    def __init__(self, snapshot_version: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("task", "role", "node", "gpu_indices", "cpu_unit", "demand", "subtask")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    CPU_UNIT_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    task: str
    role: _job_pb2.TaskGroup.Role
    node: str
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    cpu_unit: str
    demand: _job_pb2.Resources
    subtask: str
    def __init__(self, task: _Optional[str] = ..., role: _Optional[_Union[_job_pb2.TaskGroup.Role, str]] = ..., node: _Optional[str] = ..., gpu_indices: _Optional[_Iterable[int]] = ..., cpu_unit: _Optional[str] = ..., demand: _Optional[_Union[_job_pb2.Resources, _Mapping]] = ..., subtask: _Optional[str] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("job_id", "kind", "event_time", "placement", "speed", "epochs_done", "reservation_id", "decision_id", "job", "reason", "share", "subtask")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[JobEvent.Kind]
        SUBMITTED: _ClassVar[JobEvent.Kind]
        STARTED: _ClassVar[JobEvent.Kind]
        PROGRESS: _ClassVar[JobEvent.Kind]
        FINISHED: _ClassVar[JobEvent.Kind]
        FAILED: _ClassVar[JobEvent.Kind]
        CANCELLED: _ClassVar[JobEvent.Kind]
        SHARE_FINISHED: _ClassVar[JobEvent.Kind]
        SHARE_MOVE_REQUESTED: _ClassVar[JobEvent.Kind]
        SUBTASK_FINISHED: _ClassVar[JobEvent.Kind]
    KIND_UNSPECIFIED: JobEvent.Kind
    SUBMITTED: JobEvent.Kind
    STARTED: JobEvent.Kind
    PROGRESS: JobEvent.Kind
    FINISHED: JobEvent.Kind
    FAILED: JobEvent.Kind
    CANCELLED: JobEvent.Kind
    SHARE_FINISHED: JobEvent.Kind
    SHARE_MOVE_REQUESTED: JobEvent.Kind
    SUBTASK_FINISHED: JobEvent.Kind
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_DONE_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    kind: JobEvent.Kind
    event_time: _timestamp_pb2.Timestamp
    placement: _containers.RepeatedCompositeFieldContainer[Assignment]
    speed: float
    epochs_done: float
    reservation_id: str
    decision_id: str
    job: _job_pb2.Job
    reason: str
    share: ShareOutcome
    subtask: SubtaskOutcome
    def __init__(self, job_id: _Optional[str] = ..., kind: _Optional[_Union[JobEvent.Kind, str]] = ..., event_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., placement: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., speed: _Optional[float] = ..., epochs_done: _Optional[float] = ..., reservation_id: _Optional[str] = ..., decision_id: _Optional[str] = ..., job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., reason: _Optional[str] = ..., share: _Optional[_Union[ShareOutcome, _Mapping]] = ..., subtask: _Optional[_Union[SubtaskOutcome, _Mapping]] = ...) -> None: ...

class SubtaskOutcome(_message.Message):
    __slots__ = ("subtask", "kind", "node", "unit", "size", "seconds")
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    subtask: str
    kind: str
    node: str
    unit: str
    size: float
    seconds: float
    def __init__(self, subtask: _Optional[str] = ..., kind: _Optional[str] = ..., node: _Optional[str] = ..., unit: _Optional[str] = ..., size: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class ShareOutcome(_message.Message):
    __slots__ = ("task_kind", "node", "unit", "scale", "seconds", "overhead_seconds", "peak_celsius")
    TASK_KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    task_kind: str
    node: str
    unit: str
    scale: float
    seconds: float
    overhead_seconds: float
    peak_celsius: float
    def __init__(self, task_kind: _Optional[str] = ..., node: _Optional[str] = ..., unit: _Optional[str] = ..., scale: _Optional[float] = ..., seconds: _Optional[float] = ..., overhead_seconds: _Optional[float] = ..., peak_celsius: _Optional[float] = ...) -> None: ...

class ReportJobEventsRequest(_message.Message):
    __slots__ = ("cluster", "events", "now")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    now: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., events: _Optional[_Iterable[_Union[JobEvent, _Mapping]]] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ReportJobEventsResponse(_message.Message):
    __slots__ = ("snapshot_version", "applied", "ignored", "problems")
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    snapshot_version: int
    applied: int
    ignored: int
    problems: _containers.RepeatedCompositeFieldContainer[Overcommit]
    def __init__(self, snapshot_version: _Optional[int] = ..., applied: _Optional[int] = ..., ignored: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[Overcommit, _Mapping]]] = ...) -> None: ...

class Overcommit(_message.Message):
    __slots__ = ("job_id", "node", "gpu_indices", "held_by", "message")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_INDICES_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    node: str
    gpu_indices: _containers.RepeatedScalarFieldContainer[int]
    held_by: _containers.RepeatedScalarFieldContainer[str]
    message: str
    def __init__(self, job_id: _Optional[str] = ..., node: _Optional[str] = ..., gpu_indices: _Optional[_Iterable[int]] = ..., held_by: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ("cluster", "full")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    full: bool
    def __init__(self, cluster: _Optional[str] = ..., full: bool = ...) -> None: ...

class RunningJob(_message.Message):
    __slots__ = ("job_id", "state", "assignments", "reservation_id", "reservation_expire_time", "start_time", "speed", "model", "subtask_size", "decision_id")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RunningJob.State]
        RESERVED: _ClassVar[RunningJob.State]
        RUNNING: _ClassVar[RunningJob.State]
    STATE_UNSPECIFIED: RunningJob.State
    RESERVED: RunningJob.State
    RUNNING: RunningJob.State
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_SIZE_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    state: RunningJob.State
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    reservation_id: str
    reservation_expire_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    speed: float
    model: str
    subtask_size: float
    decision_id: str
    def __init__(self, job_id: _Optional[str] = ..., state: _Optional[_Union[RunningJob.State, str]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., reservation_id: _Optional[str] = ..., reservation_expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., speed: _Optional[float] = ..., model: _Optional[str] = ..., subtask_size: _Optional[float] = ..., decision_id: _Optional[str] = ...) -> None: ...

class QueueHead(_message.Message):
    __slots__ = ("job_id", "nodes", "start_time", "bound_time", "expire_time")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    BOUND_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    bound_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., bound_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class QueueState(_message.Message):
    __slots__ = ("queue", "backlog_seconds", "delay_seconds", "slot", "v", "epsilon_seconds", "tau_seconds", "slot_duration", "waiting_jobs", "wait_bound", "head")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_DURATION_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    WAIT_BOUND_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    queue: str
    backlog_seconds: float
    delay_seconds: float
    slot: int
    v: float
    epsilon_seconds: float
    tau_seconds: float
    slot_duration: _duration_pb2.Duration
    waiting_jobs: int
    wait_bound: _duration_pb2.Duration
    head: QueueHead
    def __init__(self, queue: _Optional[str] = ..., backlog_seconds: _Optional[float] = ..., delay_seconds: _Optional[float] = ..., slot: _Optional[int] = ..., v: _Optional[float] = ..., epsilon_seconds: _Optional[float] = ..., tau_seconds: _Optional[float] = ..., slot_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., waiting_jobs: _Optional[int] = ..., wait_bound: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., head: _Optional[_Union[QueueHead, _Mapping]] = ...) -> None: ...

class QueueSettings(_message.Message):
    __slots__ = ("queue", "v", "epsilon_seconds", "tau_seconds", "slot_duration", "wait_bound")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    EPSILON_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SLOT_DURATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_BOUND_FIELD_NUMBER: _ClassVar[int]
    queue: str
    v: float
    epsilon_seconds: float
    tau_seconds: float
    slot_duration: _duration_pb2.Duration
    wait_bound: _duration_pb2.Duration
    def __init__(self, queue: _Optional[str] = ..., v: _Optional[float] = ..., epsilon_seconds: _Optional[float] = ..., tau_seconds: _Optional[float] = ..., slot_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait_bound: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Explorer(_message.Message):
    __slots__ = ("policy", "weight")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    policy: str
    weight: int
    def __init__(self, policy: _Optional[str] = ..., weight: _Optional[int] = ...) -> None: ...

class ExplorationGuard(_message.Message):
    __slots__ = ("max_gpus", "min_nodes", "spare_urgent")
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    SPARE_URGENT_FIELD_NUMBER: _ClassVar[int]
    max_gpus: float
    min_nodes: int
    spare_urgent: bool
    def __init__(self, max_gpus: _Optional[float] = ..., min_nodes: _Optional[int] = ..., spare_urgent: bool = ...) -> None: ...

class ClusterSettings(_message.Message):
    __slots__ = ("place_policy", "admit_policy", "exploration_rate", "queues", "explorers", "exploration_guard", "admit_exploration_rate", "host_clock", "learn_durations", "learn_throughput", "learn_heat", "learn_capability", "learn_co_runs")
    PLACE_POLICY_FIELD_NUMBER: _ClassVar[int]
    ADMIT_POLICY_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_RATE_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    EXPLORERS_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_GUARD_FIELD_NUMBER: _ClassVar[int]
    ADMIT_EXPLORATION_RATE_FIELD_NUMBER: _ClassVar[int]
    HOST_CLOCK_FIELD_NUMBER: _ClassVar[int]
    LEARN_DURATIONS_FIELD_NUMBER: _ClassVar[int]
    LEARN_THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    LEARN_HEAT_FIELD_NUMBER: _ClassVar[int]
    LEARN_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    LEARN_CO_RUNS_FIELD_NUMBER: _ClassVar[int]
    place_policy: str
    admit_policy: str
    exploration_rate: float
    queues: _containers.RepeatedCompositeFieldContainer[QueueSettings]
    explorers: _containers.RepeatedCompositeFieldContainer[Explorer]
    exploration_guard: ExplorationGuard
    admit_exploration_rate: float
    host_clock: bool
    learn_durations: bool
    learn_throughput: bool
    learn_heat: bool
    learn_capability: bool
    learn_co_runs: bool
    def __init__(self, place_policy: _Optional[str] = ..., admit_policy: _Optional[str] = ..., exploration_rate: _Optional[float] = ..., queues: _Optional[_Iterable[_Union[QueueSettings, _Mapping]]] = ..., explorers: _Optional[_Iterable[_Union[Explorer, _Mapping]]] = ..., exploration_guard: _Optional[_Union[ExplorationGuard, _Mapping]] = ..., admit_exploration_rate: _Optional[float] = ..., host_clock: bool = ..., learn_durations: bool = ..., learn_throughput: bool = ..., learn_heat: bool = ..., learn_capability: bool = ..., learn_co_runs: bool = ...) -> None: ...

class UpdateClusterSettingsRequest(_message.Message):
    __slots__ = ("cluster", "settings", "update_mask")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    settings: ClusterSettings
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, cluster: _Optional[str] = ..., settings: _Optional[_Union[ClusterSettings, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateClusterSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: ClusterSettings
    def __init__(self, settings: _Optional[_Union[ClusterSettings, _Mapping]] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("cluster", "snapshot_version", "nodes", "jobs", "capacity", "used", "node_count", "ready_node_count", "stale_node_count", "running_jobs", "reserved_jobs", "queues", "settings", "stale", "host_time", "disturbance", "heat", "capabilities", "co_runs")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STALE_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_JOBS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    HOST_TIME_FIELD_NUMBER: _ClassVar[int]
    DISTURBANCE_FIELD_NUMBER: _ClassVar[int]
    HEAT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CO_RUNS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    snapshot_version: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    jobs: _containers.RepeatedCompositeFieldContainer[RunningJob]
    capacity: _job_pb2.Resources
    used: _job_pb2.Resources
    node_count: int
    ready_node_count: int
    stale_node_count: int
    running_jobs: int
    reserved_jobs: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueState]
    settings: ClusterSettings
    stale: bool
    host_time: _timestamp_pb2.Timestamp
    disturbance: Disturbance
    heat: _containers.RepeatedCompositeFieldContainer[LearnedHeat]
    capabilities: _containers.RepeatedCompositeFieldContainer[LearnedCapability]
    co_runs: _containers.RepeatedCompositeFieldContainer[LearnedCoRun]
    def __init__(self, cluster: _Optional[str] = ..., snapshot_version: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., jobs: _Optional[_Iterable[_Union[RunningJob, _Mapping]]] = ..., capacity: _Optional[_Union[_job_pb2.Resources, _Mapping]] = ..., used: _Optional[_Union[_job_pb2.Resources, _Mapping]] = ..., node_count: _Optional[int] = ..., ready_node_count: _Optional[int] = ..., stale_node_count: _Optional[int] = ..., running_jobs: _Optional[int] = ..., reserved_jobs: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueState, _Mapping]]] = ..., settings: _Optional[_Union[ClusterSettings, _Mapping]] = ..., stale: bool = ..., host_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., disturbance: _Optional[_Union[Disturbance, _Mapping]] = ..., heat: _Optional[_Iterable[_Union[LearnedHeat, _Mapping]]] = ..., capabilities: _Optional[_Iterable[_Union[LearnedCapability, _Mapping]]] = ..., co_runs: _Optional[_Iterable[_Union[LearnedCoRun, _Mapping]]] = ...) -> None: ...

class LearnedCoRun(_message.Message):
    __slots__ = ("model", "partner", "gpu_type", "relative_speed", "low", "high", "shipped", "reports")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PARTNER_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    partner: str
    gpu_type: str
    relative_speed: float
    low: float
    high: float
    shipped: float
    reports: float
    def __init__(self, model: _Optional[str] = ..., partner: _Optional[str] = ..., gpu_type: _Optional[str] = ..., relative_speed: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., shipped: _Optional[float] = ..., reports: _Optional[float] = ...) -> None: ...

class LearnedCapability(_message.Message):
    __slots__ = ("task_kind", "node_type", "unit", "scale_per_second", "low_per_second", "high_per_second", "shipped_per_second", "reports")
    TASK_KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCALE_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOW_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HIGH_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    task_kind: str
    node_type: str
    unit: str
    scale_per_second: float
    low_per_second: float
    high_per_second: float
    shipped_per_second: float
    reports: float
    def __init__(self, task_kind: _Optional[str] = ..., node_type: _Optional[str] = ..., unit: _Optional[str] = ..., scale_per_second: _Optional[float] = ..., low_per_second: _Optional[float] = ..., high_per_second: _Optional[float] = ..., shipped_per_second: _Optional[float] = ..., reports: _Optional[float] = ...) -> None: ...

class LearnedHeat(_message.Message):
    __slots__ = ("node_type", "unit", "rise_celsius", "low_celsius", "high_celsius", "shipped_celsius", "time_constant_seconds", "low_seconds", "high_seconds", "shipped_seconds", "reports")
    NODE_TYPE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    RISE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    LOW_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    HIGH_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    TIME_CONSTANT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HIGH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    node_type: str
    unit: str
    rise_celsius: float
    low_celsius: float
    high_celsius: float
    shipped_celsius: float
    time_constant_seconds: float
    low_seconds: float
    high_seconds: float
    shipped_seconds: float
    reports: float
    def __init__(self, node_type: _Optional[str] = ..., unit: _Optional[str] = ..., rise_celsius: _Optional[float] = ..., low_celsius: _Optional[float] = ..., high_celsius: _Optional[float] = ..., shipped_celsius: _Optional[float] = ..., time_constant_seconds: _Optional[float] = ..., low_seconds: _Optional[float] = ..., high_seconds: _Optional[float] = ..., shipped_seconds: _Optional[float] = ..., reports: _Optional[float] = ...) -> None: ...

class Disturbance(_message.Message):
    __slots__ = ("loss", "pairs")
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    loss: float
    pairs: float
    def __init__(self, loss: _Optional[float] = ..., pairs: _Optional[float] = ...) -> None: ...

class DeleteClusterRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class DeleteClusterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClustersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClustersResponse(_message.Message):
    __slots__ = ("clusters",)
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    clusters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, clusters: _Optional[_Iterable[str]] = ...) -> None: ...
