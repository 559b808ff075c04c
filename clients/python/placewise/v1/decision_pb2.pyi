from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from placewise.v1 import cluster_pb2 as _cluster_pb2
from placewise.v1 import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    PLACED: _ClassVar[Outcome]
    NO_FIT: _ClassVar[Outcome]
    WAIT: _ClassVar[Outcome]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    INSUFFICIENT_CPU: _ClassVar[Reason]
    INSUFFICIENT_MEMORY: _ClassVar[Reason]
    INSUFFICIENT_GPU: _ClassVar[Reason]
    INSUFFICIENT_GPU_MEMORY: _ClassVar[Reason]
    INSUFFICIENT_NETWORK: _ClassVar[Reason]
    INSUFFICIENT_EXTENDED: _ClassVar[Reason]
    FRAGMENTED: _ClassVar[Reason]
    GPU_MODEL_MISMATCH: _ClassVar[Reason]
    SELECTOR_MISMATCH: _ClassVar[Reason]
    MAX_PER_NODE: _ClassVar[Reason]
    NODE_DOWN: _ClassVar[Reason]
    NODE_DRAINING: _ClassVar[Reason]
    STALE_TELEMETRY: _ClassVar[Reason]
    THERMAL_LIMIT: _ClassVar[Reason]
    SLOWDOWN_LIMIT: _ClassVar[Reason]
    UNIT_BUSY: _ClassVar[Reason]
    CPU_ONLY: _ClassVar[Reason]
    UTILISATION_LIMIT: _ClassVar[Reason]
    SHARE_BELOW_THRESHOLD: _ClassVar[Reason]
    BEHIND_IN_QUEUE: _ClassVar[Reason]
    DRIFT_PLUS_PENALTY: _ClassVar[Reason]
    SLOT_TAKEN: _ClassVar[Reason]
    NO_FEASIBLE_SHAPE: _ClassVar[Reason]
    EMPTY_CLUSTER: _ClassVar[Reason]
    PREDECESSOR_PENDING: _ClassVar[Reason]
    EXPLORATION: _ClassVar[Reason]
    KEEP_TOGETHER: _ClassVar[Reason]
    EXCLUSIVE_NETWORK: _ClassVar[Reason]
OUTCOME_UNSPECIFIED: Outcome
PLACED: Outcome
NO_FIT: Outcome
WAIT: Outcome
REASON_UNSPECIFIED: Reason
INSUFFICIENT_CPU: Reason
INSUFFICIENT_MEMORY: Reason
INSUFFICIENT_GPU: Reason
INSUFFICIENT_GPU_MEMORY: Reason
INSUFFICIENT_NETWORK: Reason
INSUFFICIENT_EXTENDED: Reason
FRAGMENTED: Reason
GPU_MODEL_MISMATCH: Reason
SELECTOR_MISMATCH: Reason
MAX_PER_NODE: Reason
NODE_DOWN: Reason
NODE_DRAINING: Reason
STALE_TELEMETRY: Reason
THERMAL_LIMIT: Reason
SLOWDOWN_LIMIT: Reason
UNIT_BUSY: Reason
CPU_ONLY: Reason
UTILISATION_LIMIT: Reason
SHARE_BELOW_THRESHOLD: Reason
BEHIND_IN_QUEUE: Reason
DRIFT_PLUS_PENALTY: Reason
SLOT_TAKEN: Reason
NO_FEASIBLE_SHAPE: Reason
EMPTY_CLUSTER: Reason
PREDECESSOR_PENDING: Reason
EXPLORATION: Reason
KEEP_TOGETHER: Reason
EXCLUSIVE_NETWORK: Reason

class Blocker(_message.Message):
    __slots__ = ("reason", "nodes", "shortfall", "resource", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    nodes: int
    shortfall: float
    resource: str
    message: str
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., nodes: _Optional[int] = ..., shortfall: _Optional[float] = ..., resource: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ScoreTerm(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("task", "node", "score", "terms", "chosen")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    task: str
    node: str
    score: float
    terms: _containers.RepeatedCompositeFieldContainer[ScoreTerm]
    chosen: bool
    def __init__(self, task: _Optional[str] = ..., node: _Optional[str] = ..., score: _Optional[float] = ..., terms: _Optional[_Iterable[_Union[ScoreTerm, _Mapping]]] = ..., chosen: bool = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("job_id", "speed_before", "speed_after")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SPEED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SPEED_AFTER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    speed_before: float
    speed_after: float
    def __init__(self, job_id: _Optional[str] = ..., speed_before: _Optional[float] = ..., speed_after: _Optional[float] = ...) -> None: ...

class DecisionMeta(_message.Message):
    __slots__ = ("decision_id", "policy", "bundle", "snapshot_version", "propensity", "fallback", "fallback_reason", "decide_ms", "stale", "repeated", "explored", "bundle_digest", "caller", "lengths", "speeds", "heat", "capabilities")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROPENSITY_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    DECIDE_MS_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    EXPLORED_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    HEAT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    policy: str
    bundle: str
    snapshot_version: int
    propensity: float
    fallback: bool
    fallback_reason: str
    decide_ms: float
    stale: bool
    repeated: bool
    explored: bool
    bundle_digest: str
    caller: str
    lengths: _containers.RepeatedCompositeFieldContainer[LearnedLength]
    speeds: _containers.RepeatedCompositeFieldContainer[LearnedSpeed]
    heat: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.LearnedHeat]
    capabilities: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.LearnedCapability]
    def __init__(self, decision_id: _Optional[str] = ..., policy: _Optional[str] = ..., bundle: _Optional[str] = ..., snapshot_version: _Optional[int] = ..., propensity: _Optional[float] = ..., fallback: bool = ..., fallback_reason: _Optional[str] = ..., decide_ms: _Optional[float] = ..., stale: bool = ..., repeated: bool = ..., explored: bool = ..., bundle_digest: _Optional[str] = ..., caller: _Optional[str] = ..., lengths: _Optional[_Iterable[_Union[LearnedLength, _Mapping]]] = ..., speeds: _Optional[_Iterable[_Union[LearnedSpeed, _Mapping]]] = ..., heat: _Optional[_Iterable[_Union[_cluster_pb2.LearnedHeat, _Mapping]]] = ..., capabilities: _Optional[_Iterable[_Union[_cluster_pb2.LearnedCapability, _Mapping]]] = ...) -> None: ...

class LearnedLength(_message.Message):
    __slots__ = ("job_id", "single_gpu_seconds", "low_seconds", "high_seconds", "reports", "source")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SINGLE_GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HIGH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    single_gpu_seconds: float
    low_seconds: float
    high_seconds: float
    reports: float
    source: str
    def __init__(self, job_id: _Optional[str] = ..., single_gpu_seconds: _Optional[float] = ..., low_seconds: _Optional[float] = ..., high_seconds: _Optional[float] = ..., reports: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class LearnedSpeed(_message.Message):
    __slots__ = ("job_id", "gpu_type", "nodes", "gpus", "samples_per_second", "low_per_second", "high_per_second", "forecast_per_second", "reports", "source")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOW_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HIGH_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FORECAST_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    gpu_type: str
    nodes: int
    gpus: int
    samples_per_second: float
    low_per_second: float
    high_per_second: float
    forecast_per_second: float
    reports: float
    source: str
    def __init__(self, job_id: _Optional[str] = ..., gpu_type: _Optional[str] = ..., nodes: _Optional[int] = ..., gpus: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., low_per_second: _Optional[float] = ..., high_per_second: _Optional[float] = ..., forecast_per_second: _Optional[float] = ..., reports: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("cluster", "request_id", "jobs", "policy", "scope", "node_id", "dry_run", "explain", "reserve_ttl", "seed", "now")
    class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SCOPE_UNSPECIFIED: _ClassVar[PlaceRequest.Scope]
        CLUSTER: _ClassVar[PlaceRequest.Scope]
        NODE: _ClassVar[PlaceRequest.Scope]
    SCOPE_UNSPECIFIED: PlaceRequest.Scope
    CLUSTER: PlaceRequest.Scope
    NODE: PlaceRequest.Scope
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    RESERVE_TTL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    request_id: str
    jobs: _containers.RepeatedCompositeFieldContainer[_job_pb2.Job]
    policy: str
    scope: PlaceRequest.Scope
    node_id: str
    dry_run: bool
    explain: bool
    reserve_ttl: _duration_pb2.Duration
    seed: int
    now: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., request_id: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[_job_pb2.Job, _Mapping]]] = ..., policy: _Optional[str] = ..., scope: _Optional[_Union[PlaceRequest.Scope, str]] = ..., node_id: _Optional[str] = ..., dry_run: bool = ..., explain: bool = ..., reserve_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., seed: _Optional[int] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobDecision(_message.Message):
    __slots__ = ("job_id", "outcome", "assignments", "predicted_speed", "neighbours", "blockers", "candidates", "reservation_id", "reservation_expire_time", "propensity", "profile_model")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SPEED_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    PROPENSITY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_MODEL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    outcome: Outcome
    assignments: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Assignment]
    predicted_speed: float
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    blockers: _containers.RepeatedCompositeFieldContainer[Blocker]
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    reservation_id: str
    reservation_expire_time: _timestamp_pb2.Timestamp
    propensity: float
    profile_model: str
    def __init__(self, job_id: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., assignments: _Optional[_Iterable[_Union[_cluster_pb2.Assignment, _Mapping]]] = ..., predicted_speed: _Optional[float] = ..., neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., blockers: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., reservation_id: _Optional[str] = ..., reservation_expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., propensity: _Optional[float] = ..., profile_model: _Optional[str] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("decisions", "meta", "request_id", "error")
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[JobDecision]
    meta: DecisionMeta
    request_id: str
    error: StreamError
    def __init__(self, decisions: _Optional[_Iterable[_Union[JobDecision, _Mapping]]] = ..., meta: _Optional[_Union[DecisionMeta, _Mapping]] = ..., request_id: _Optional[str] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "reason", "message", "retry_delay")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    retry_delay: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retry_delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DivisibleTask(_message.Message):
    __slots__ = ("id", "serial_scale", "parallel_scale", "overhead_s", "kind", "demand")
    ID_FIELD_NUMBER: _ClassVar[int]
    SERIAL_SCALE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_SCALE_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    id: str
    serial_scale: float
    parallel_scale: float
    overhead_s: float
    kind: str
    demand: _job_pb2.Resources
    def __init__(self, id: _Optional[str] = ..., serial_scale: _Optional[float] = ..., parallel_scale: _Optional[float] = ..., overhead_s: _Optional[float] = ..., kind: _Optional[str] = ..., demand: _Optional[_Union[_job_pb2.Resources, _Mapping]] = ...) -> None: ...

class PartitionRequest(_message.Message):
    __slots__ = ("cluster", "task", "units", "dry_run", "explain", "request_id", "progress", "policy", "now")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    task: DivisibleTask
    units: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    explain: bool
    request_id: str
    progress: _containers.RepeatedCompositeFieldContainer[ShareProgress]
    policy: str
    now: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., task: _Optional[_Union[DivisibleTask, _Mapping]] = ..., units: _Optional[_Iterable[str]] = ..., dry_run: bool = ..., explain: bool = ..., request_id: _Optional[str] = ..., progress: _Optional[_Iterable[_Union[ShareProgress, _Mapping]]] = ..., policy: _Optional[str] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ShareProgress(_message.Message):
    __slots__ = ("node", "unit", "scale", "predicted_seconds", "capability", "done", "elapsed_seconds", "move_requested")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOVE_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    node: str
    unit: str
    scale: float
    predicted_seconds: float
    capability: float
    done: float
    elapsed_seconds: float
    move_requested: bool
    def __init__(self, node: _Optional[str] = ..., unit: _Optional[str] = ..., scale: _Optional[float] = ..., predicted_seconds: _Optional[float] = ..., capability: _Optional[float] = ..., done: _Optional[float] = ..., elapsed_seconds: _Optional[float] = ..., move_requested: bool = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("node", "unit", "scale", "predicted_seconds", "predicted_peak_celsius", "capability")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_PEAK_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    node: str
    unit: str
    scale: float
    predicted_seconds: float
    predicted_peak_celsius: float
    capability: float
    def __init__(self, node: _Optional[str] = ..., unit: _Optional[str] = ..., scale: _Optional[float] = ..., predicted_seconds: _Optional[float] = ..., predicted_peak_celsius: _Optional[float] = ..., capability: _Optional[float] = ...) -> None: ...

class Excluded(_message.Message):
    __slots__ = ("node", "unit", "reason", "message")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    unit: str
    reason: Reason
    message: str
    def __init__(self, node: _Optional[str] = ..., unit: _Optional[str] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class PartitionResponse(_message.Message):
    __slots__ = ("outcome", "shares", "units", "threshold_scale", "predicted_seconds", "excluded", "meta", "overhead_s", "blockers")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_SCALE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    units: int
    threshold_scale: float
    predicted_seconds: float
    excluded: _containers.RepeatedCompositeFieldContainer[Excluded]
    meta: DecisionMeta
    overhead_s: float
    blockers: _containers.RepeatedCompositeFieldContainer[Blocker]
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., units: _Optional[int] = ..., threshold_scale: _Optional[float] = ..., predicted_seconds: _Optional[float] = ..., excluded: _Optional[_Iterable[_Union[Excluded, _Mapping]]] = ..., meta: _Optional[_Union[DecisionMeta, _Mapping]] = ..., overhead_s: _Optional[float] = ..., blockers: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ...) -> None: ...

class AdmitOrWaitRequest(_message.Message):
    __slots__ = ("cluster", "queue", "jobs", "policy", "dry_run", "explain", "request_id", "seed", "place", "now")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    queue: str
    jobs: _containers.RepeatedCompositeFieldContainer[_job_pb2.Job]
    policy: str
    dry_run: bool
    explain: bool
    request_id: str
    seed: int
    place: PlaceRequest
    now: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., queue: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[_job_pb2.Job, _Mapping]]] = ..., policy: _Optional[str] = ..., dry_run: bool = ..., explain: bool = ..., request_id: _Optional[str] = ..., seed: _Optional[int] = ..., place: _Optional[_Union[PlaceRequest, _Mapping]] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DriftPlusPenalty(_message.Message):
    __slots__ = ("gpus", "value", "cost_seconds")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    gpus: int
    value: float
    cost_seconds: float
    def __init__(self, gpus: _Optional[int] = ..., value: _Optional[float] = ..., cost_seconds: _Optional[float] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("job_id", "verdict", "gpus", "nodes", "gpus_per_node", "rank", "expected_finish_time", "slack_seconds", "drift_plus_penalty", "blockers", "profile_model", "cer", "propensity")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[Admission.Verdict]
        ADMIT: _ClassVar[Admission.Verdict]
        WAIT: _ClassVar[Admission.Verdict]
    VERDICT_UNSPECIFIED: Admission.Verdict
    ADMIT: Admission.Verdict
    WAIT: Admission.Verdict
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FINISH_TIME_FIELD_NUMBER: _ClassVar[int]
    SLACK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DRIFT_PLUS_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    PROFILE_MODEL_FIELD_NUMBER: _ClassVar[int]
    CER_FIELD_NUMBER: _ClassVar[int]
    PROPENSITY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    verdict: Admission.Verdict
    gpus: int
    nodes: int
    gpus_per_node: int
    rank: int
    expected_finish_time: _timestamp_pb2.Timestamp
    slack_seconds: float
    drift_plus_penalty: _containers.RepeatedCompositeFieldContainer[DriftPlusPenalty]
    blockers: _containers.RepeatedCompositeFieldContainer[Blocker]
    profile_model: str
    cer: float
    propensity: float
    def __init__(self, job_id: _Optional[str] = ..., verdict: _Optional[_Union[Admission.Verdict, str]] = ..., gpus: _Optional[int] = ..., nodes: _Optional[int] = ..., gpus_per_node: _Optional[int] = ..., rank: _Optional[int] = ..., expected_finish_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., slack_seconds: _Optional[float] = ..., drift_plus_penalty: _Optional[_Iterable[_Union[DriftPlusPenalty, _Mapping]]] = ..., blockers: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ..., profile_model: _Optional[str] = ..., cer: _Optional[float] = ..., propensity: _Optional[float] = ...) -> None: ...

class AdmitOrWaitResponse(_message.Message):
    __slots__ = ("admissions", "queue", "meta", "placed")
    ADMISSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    admissions: _containers.RepeatedCompositeFieldContainer[Admission]
    queue: _cluster_pb2.QueueState
    meta: DecisionMeta
    placed: PlaceResponse
    def __init__(self, admissions: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., queue: _Optional[_Union[_cluster_pb2.QueueState, _Mapping]] = ..., meta: _Optional[_Union[DecisionMeta, _Mapping]] = ..., placed: _Optional[_Union[PlaceResponse, _Mapping]] = ...) -> None: ...
