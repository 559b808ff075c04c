from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from placewise.v1 import decision_pb2 as _decision_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Bundle(_message.Message):
    __slots__ = ("name", "state", "feature_schema", "create_time", "sha256", "refusal", "digest", "signed_by")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Bundle.State]
        AVAILABLE: _ClassVar[Bundle.State]
        ACTIVE: _ClassVar[Bundle.State]
        SHADOW: _ClassVar[Bundle.State]
        REFUSED: _ClassVar[Bundle.State]
        CANARY: _ClassVar[Bundle.State]
    STATE_UNSPECIFIED: Bundle.State
    AVAILABLE: Bundle.State
    ACTIVE: Bundle.State
    SHADOW: Bundle.State
    REFUSED: Bundle.State
    CANARY: Bundle.State
    class Sha256Entry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNED_BY_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: Bundle.State
    feature_schema: str
    create_time: _timestamp_pb2.Timestamp
    sha256: _containers.ScalarMap[str, str]
    refusal: str
    digest: str
    signed_by: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[Bundle.State, str]] = ..., feature_schema: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., sha256: _Optional[_Mapping[str, str]] = ..., refusal: _Optional[str] = ..., digest: _Optional[str] = ..., signed_by: _Optional[str] = ...) -> None: ...

class ListBundlesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBundlesResponse(_message.Message):
    __slots__ = ("bundles", "shadows", "own_bundles", "canaries", "kill_switches")
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    OWN_BUNDLES_FIELD_NUMBER: _ClassVar[int]
    CANARIES_FIELD_NUMBER: _ClassVar[int]
    KILL_SWITCHES_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[Bundle]
    shadows: _containers.RepeatedCompositeFieldContainer[Shadow]
    own_bundles: _containers.RepeatedCompositeFieldContainer[OwnBundle]
    canaries: _containers.RepeatedCompositeFieldContainer[Canary]
    kill_switches: _containers.RepeatedCompositeFieldContainer[KillSwitch]
    def __init__(self, bundles: _Optional[_Iterable[_Union[Bundle, _Mapping]]] = ..., shadows: _Optional[_Iterable[_Union[Shadow, _Mapping]]] = ..., own_bundles: _Optional[_Iterable[_Union[OwnBundle, _Mapping]]] = ..., canaries: _Optional[_Iterable[_Union[Canary, _Mapping]]] = ..., kill_switches: _Optional[_Iterable[_Union[KillSwitch, _Mapping]]] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("cluster", "bundle", "share", "by", "salt", "period", "washout", "start_time")
    class By(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        BY_UNSPECIFIED: _ClassVar[Canary.By]
        JOB: _ClassVar[Canary.By]
        TIME: _ClassVar[Canary.By]
    BY_UNSPECIFIED: Canary.By
    JOB: Canary.By
    TIME: Canary.By
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    WASHOUT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    bundle: str
    share: float
    by: Canary.By
    salt: str
    period: _duration_pb2.Duration
    washout: _duration_pb2.Duration
    start_time: _timestamp_pb2.Timestamp
    def __init__(self, cluster: _Optional[str] = ..., bundle: _Optional[str] = ..., share: _Optional[float] = ..., by: _Optional[_Union[Canary.By, str]] = ..., salt: _Optional[str] = ..., period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., washout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class KillSwitch(_message.Message):
    __slots__ = ("cluster", "policy")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    policy: str
    def __init__(self, cluster: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class OwnBundle(_message.Message):
    __slots__ = ("cluster", "bundle")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    bundle: str
    def __init__(self, cluster: _Optional[str] = ..., bundle: _Optional[str] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("cluster", "bundle", "policy")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    bundle: str
    policy: str
    def __init__(self, cluster: _Optional[str] = ..., bundle: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class ActivateBundleRequest(_message.Message):
    __slots__ = ("name", "cluster")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class ActivateBundleResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class RollbackBundleRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class RollbackBundleResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class SetShadowRequest(_message.Message):
    __slots__ = ("name", "cluster", "policy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    policy: str
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...

class SetShadowResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class SetCanaryRequest(_message.Message):
    __slots__ = ("name", "cluster", "share", "by", "period", "washout")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    WASHOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    share: float
    by: Canary.By
    period: _duration_pb2.Duration
    washout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ..., share: _Optional[float] = ..., by: _Optional[_Union[Canary.By, str]] = ..., period: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., washout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SetCanaryResponse(_message.Message):
    __slots__ = ("bundle", "canary")
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    canary: Canary
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ...) -> None: ...

class PromoteBundleRequest(_message.Message):
    __slots__ = ("cluster", "name", "allow_ungated")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOW_UNGATED_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    name: str
    allow_ungated: bool
    def __init__(self, cluster: _Optional[str] = ..., name: _Optional[str] = ..., allow_ungated: bool = ...) -> None: ...

class PromoteBundleResponse(_message.Message):
    __slots__ = ("bundle",)
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    bundle: Bundle
    def __init__(self, bundle: _Optional[_Union[Bundle, _Mapping]] = ...) -> None: ...

class SetKillSwitchRequest(_message.Message):
    __slots__ = ("policy", "cluster")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    policy: str
    cluster: str
    def __init__(self, policy: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class SetKillSwitchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBundleHistoryRequest(_message.Message):
    __slots__ = ("cluster", "page_size")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    page_size: int
    def __init__(self, cluster: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListBundleHistoryResponse(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[BundleChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[BundleChange, _Mapping]]] = ...) -> None: ...

class BundleChange(_message.Message):
    __slots__ = ("change_time", "cluster", "kind", "bundle", "digest", "previous", "share", "policy", "caller", "reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[BundleChange.Kind]
        ACTIVATED: _ClassVar[BundleChange.Kind]
        ROLLED_BACK: _ClassVar[BundleChange.Kind]
        SHADOW_SET: _ClassVar[BundleChange.Kind]
        SHADOW_ENDED: _ClassVar[BundleChange.Kind]
        CANARY_SET: _ClassVar[BundleChange.Kind]
        CANARY_ENDED: _ClassVar[BundleChange.Kind]
        CANARY_ROLLED_BACK: _ClassVar[BundleChange.Kind]
        PROMOTED: _ClassVar[BundleChange.Kind]
        KILLED: _ClassVar[BundleChange.Kind]
        KILL_ENDED: _ClassVar[BundleChange.Kind]
    KIND_UNSPECIFIED: BundleChange.Kind
    ACTIVATED: BundleChange.Kind
    ROLLED_BACK: BundleChange.Kind
    SHADOW_SET: BundleChange.Kind
    SHADOW_ENDED: BundleChange.Kind
    CANARY_SET: BundleChange.Kind
    CANARY_ENDED: BundleChange.Kind
    CANARY_ROLLED_BACK: BundleChange.Kind
    PROMOTED: BundleChange.Kind
    KILLED: BundleChange.Kind
    KILL_ENDED: BundleChange.Kind
    CHANGE_TIME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    change_time: _timestamp_pb2.Timestamp
    cluster: str
    kind: BundleChange.Kind
    bundle: str
    digest: str
    previous: str
    share: float
    policy: str
    caller: str
    reason: str
    def __init__(self, change_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., cluster: _Optional[str] = ..., kind: _Optional[_Union[BundleChange.Kind, str]] = ..., bundle: _Optional[str] = ..., digest: _Optional[str] = ..., previous: _Optional[str] = ..., share: _Optional[float] = ..., policy: _Optional[str] = ..., caller: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetDecisionRequest(_message.Message):
    __slots__ = ("cluster", "decision_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    decision_id: str
    def __init__(self, cluster: _Optional[str] = ..., decision_id: _Optional[str] = ...) -> None: ...

class GetDecisionResponse(_message.Message):
    __slots__ = ("decision_id", "rpc", "decide_time", "place", "partition", "admit_or_wait")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    RPC_FIELD_NUMBER: _ClassVar[int]
    DECIDE_TIME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ADMIT_OR_WAIT_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    rpc: str
    decide_time: _timestamp_pb2.Timestamp
    place: _decision_pb2.PlaceResponse
    partition: _decision_pb2.PartitionResponse
    admit_or_wait: _decision_pb2.AdmitOrWaitResponse
    def __init__(self, decision_id: _Optional[str] = ..., rpc: _Optional[str] = ..., decide_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., place: _Optional[_Union[_decision_pb2.PlaceResponse, _Mapping]] = ..., partition: _Optional[_Union[_decision_pb2.PartitionResponse, _Mapping]] = ..., admit_or_wait: _Optional[_Union[_decision_pb2.AdmitOrWaitResponse, _Mapping]] = ...) -> None: ...

class ListDecisionsRequest(_message.Message):
    __slots__ = ("cluster", "page_size")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    page_size: int
    def __init__(self, cluster: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListDecisionsResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[GetDecisionResponse]
    def __init__(self, decisions: _Optional[_Iterable[_Union[GetDecisionResponse, _Mapping]]] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("cluster", "after", "page_size", "exported", "log")
    class Log(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOG_UNSPECIFIED: _ClassVar[ReadLogRequest.Log]
        DECISIONS: _ClassVar[ReadLogRequest.Log]
        VIEWS: _ClassVar[ReadLogRequest.Log]
    LOG_UNSPECIFIED: ReadLogRequest.Log
    DECISIONS: ReadLogRequest.Log
    VIEWS: ReadLogRequest.Log
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    after: str
    page_size: int
    exported: str
    log: ReadLogRequest.Log
    def __init__(self, cluster: _Optional[str] = ..., after: _Optional[str] = ..., page_size: _Optional[int] = ..., exported: _Optional[str] = ..., log: _Optional[_Union[ReadLogRequest.Log, str]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("position", "record")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    position: str
    record: bytes
    def __init__(self, position: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("entries", "exported", "read_time", "dropped", "host_time")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_FIELD_NUMBER: _ClassVar[int]
    READ_TIME_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    HOST_TIME_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[LogEntry]
    exported: str
    read_time: _timestamp_pb2.Timestamp
    dropped: int
    host_time: _timestamp_pb2.Timestamp
    def __init__(self, entries: _Optional[_Iterable[_Union[LogEntry, _Mapping]]] = ..., exported: _Optional[str] = ..., read_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., dropped: _Optional[int] = ..., host_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
