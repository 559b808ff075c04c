from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resources(_message.Message):
    __slots__ = ("cpu_cores", "gpus", "memory_gib", "gpu_memory_gib", "network_gbps", "extended")
    class ExtendedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_GIB_FIELD_NUMBER: _ClassVar[int]
    NETWORK_GBPS_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    cpu_cores: float
    gpus: float
    memory_gib: float
    gpu_memory_gib: float
    network_gbps: float
    extended: _containers.ScalarMap[str, float]
    def __init__(self, cpu_cores: _Optional[float] = ..., gpus: _Optional[float] = ..., memory_gib: _Optional[float] = ..., gpu_memory_gib: _Optional[float] = ..., network_gbps: _Optional[float] = ..., extended: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GpuSharing(_message.Message):
    __slots__ = ("allowed", "max_slowdown", "co_runs")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    MAX_SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    CO_RUNS_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    max_slowdown: float
    co_runs: _containers.RepeatedCompositeFieldContainer[CoRun]
    def __init__(self, allowed: bool = ..., max_slowdown: _Optional[float] = ..., co_runs: _Optional[_Iterable[_Union[CoRun, _Mapping]]] = ...) -> None: ...

class CoRun(_message.Message):
    __slots__ = ("model", "relative_speed", "neighbour_relative_speed", "gpu_model", "step_seconds")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOUR_RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    relative_speed: float
    neighbour_relative_speed: float
    gpu_model: str
    step_seconds: float
    def __init__(self, model: _Optional[str] = ..., relative_speed: _Optional[float] = ..., neighbour_relative_speed: _Optional[float] = ..., gpu_model: _Optional[str] = ..., step_seconds: _Optional[float] = ...) -> None: ...

class TaskGroup(_message.Message):
    __slots__ = ("role", "count", "demand", "max_per_node", "gpu_model", "node_selector")
    class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ROLE_UNSPECIFIED: _ClassVar[TaskGroup.Role]
        WORKER: _ClassVar[TaskGroup.Role]
        PARAMETER_SERVER: _ClassVar[TaskGroup.Role]
    ROLE_UNSPECIFIED: TaskGroup.Role
    WORKER: TaskGroup.Role
    PARAMETER_SERVER: TaskGroup.Role
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    MAX_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    role: TaskGroup.Role
    count: int
    demand: Resources
    max_per_node: int
    gpu_model: str
    node_selector: _containers.ScalarMap[str, str]
    def __init__(self, role: _Optional[_Union[TaskGroup.Role, str]] = ..., count: _Optional[int] = ..., demand: _Optional[_Union[Resources, _Mapping]] = ..., max_per_node: _Optional[int] = ..., gpu_model: _Optional[str] = ..., node_selector: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Subtask(_message.Message):
    __slots__ = ("id", "kind", "after", "has_gpu_version", "profile", "size", "state", "unit")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Subtask.State]
        PENDING: _ClassVar[Subtask.State]
        RUNNING: _ClassVar[Subtask.State]
        DONE: _ClassVar[Subtask.State]
    STATE_UNSPECIFIED: Subtask.State
    PENDING: Subtask.State
    RUNNING: Subtask.State
    DONE: Subtask.State
    class ProfileEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    HAS_GPU_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    after: _containers.RepeatedScalarFieldContainer[str]
    has_gpu_version: bool
    profile: _containers.ScalarMap[str, float]
    size: float
    state: Subtask.State
    unit: str
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., after: _Optional[_Iterable[str]] = ..., has_gpu_version: bool = ..., profile: _Optional[_Mapping[str, float]] = ..., size: _Optional[float] = ..., state: _Optional[_Union[Subtask.State, str]] = ..., unit: _Optional[str] = ...) -> None: ...

class Layer(_message.Message):
    __slots__ = ("kind", "inputs", "outputs", "kernel", "height", "width")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Layer.Kind]
        CONVOLUTION: _ClassVar[Layer.Kind]
        FULLY_CONNECTED: _ClassVar[Layer.Kind]
    KIND_UNSPECIFIED: Layer.Kind
    CONVOLUTION: Layer.Kind
    FULLY_CONNECTED: Layer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    kind: Layer.Kind
    inputs: int
    outputs: int
    kernel: int
    height: int
    width: int
    def __init__(self, kind: _Optional[_Union[Layer.Kind, str]] = ..., inputs: _Optional[int] = ..., outputs: _Optional[int] = ..., kernel: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class ElasticRange(_message.Message):
    __slots__ = ("min_gpus", "max_gpus")
    MIN_GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    min_gpus: int
    max_gpus: int
    def __init__(self, min_gpus: _Optional[int] = ..., max_gpus: _Optional[int] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("nodes", "gpus_per_node")
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    gpus_per_node: int
    def __init__(self, nodes: _Optional[int] = ..., gpus_per_node: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "model", "architecture", "groups", "total_epochs", "batch_size", "dataset_size", "iterations", "priority", "queue", "submit_time", "subtasks", "single_gpu_seconds", "params_millions", "gpu_sharing", "elastic", "shape", "attained_gpu_seconds", "layers", "user", "keep_together", "exclusive_network")
    class Architecture(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ARCHITECTURE_UNSPECIFIED: _ClassVar[Job.Architecture]
        SINGLE: _ClassVar[Job.Architecture]
        PARAMETER_SERVER: _ClassVar[Job.Architecture]
        ALL_REDUCE: _ClassVar[Job.Architecture]
        PIPELINE: _ClassVar[Job.Architecture]
    ARCHITECTURE_UNSPECIFIED: Job.Architecture
    SINGLE: Job.Architecture
    PARAMETER_SERVER: Job.Architecture
    ALL_REDUCE: Job.Architecture
    PIPELINE: Job.Architecture
    class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PRIORITY_UNSPECIFIED: _ClassVar[Job.Priority]
        URGENT: _ClassVar[Job.Priority]
        PRIOR: _ClassVar[Job.Priority]
        NORMAL: _ClassVar[Job.Priority]
    PRIORITY_UNSPECIFIED: Job.Priority
    URGENT: Job.Priority
    PRIOR: Job.Priority
    NORMAL: Job.Priority
    class KeepTogether(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KEEP_TOGETHER_UNSPECIFIED: _ClassVar[Job.KeepTogether]
        NONE: _ClassVar[Job.KeepTogether]
        NODE: _ClassVar[Job.KeepTogether]
        RACK: _ClassVar[Job.KeepTogether]
    KEEP_TOGETHER_UNSPECIFIED: Job.KeepTogether
    NONE: Job.KeepTogether
    NODE: Job.KeepTogether
    RACK: Job.KeepTogether
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATASET_SIZE_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_TIME_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    SINGLE_GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_MILLIONS_FIELD_NUMBER: _ClassVar[int]
    GPU_SHARING_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ATTAINED_GPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_NETWORK_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    architecture: Job.Architecture
    groups: _containers.RepeatedCompositeFieldContainer[TaskGroup]
    total_epochs: float
    batch_size: int
    dataset_size: int
    iterations: float
    priority: Job.Priority
    queue: str
    submit_time: _timestamp_pb2.Timestamp
    subtasks: _containers.RepeatedCompositeFieldContainer[Subtask]
    single_gpu_seconds: float
    params_millions: float
    gpu_sharing: GpuSharing
    elastic: ElasticRange
    shape: Shape
    attained_gpu_seconds: float
    layers: _containers.RepeatedCompositeFieldContainer[Layer]
    user: str
    keep_together: Job.KeepTogether
    exclusive_network: bool
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., architecture: _Optional[_Union[Job.Architecture, str]] = ..., groups: _Optional[_Iterable[_Union[TaskGroup, _Mapping]]] = ..., total_epochs: _Optional[float] = ..., batch_size: _Optional[int] = ..., dataset_size: _Optional[int] = ..., iterations: _Optional[float] = ..., priority: _Optional[_Union[Job.Priority, str]] = ..., queue: _Optional[str] = ..., submit_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., subtasks: _Optional[_Iterable[_Union[Subtask, _Mapping]]] = ..., single_gpu_seconds: _Optional[float] = ..., params_millions: _Optional[float] = ..., gpu_sharing: _Optional[_Union[GpuSharing, _Mapping]] = ..., elastic: _Optional[_Union[ElasticRange, _Mapping]] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ..., attained_gpu_seconds: _Optional[float] = ..., layers: _Optional[_Iterable[_Union[Layer, _Mapping]]] = ..., user: _Optional[str] = ..., keep_together: _Optional[_Union[Job.KeepTogether, str]] = ..., exclusive_network: bool = ...) -> None: ...
