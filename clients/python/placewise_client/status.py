"""google.rpc.Status and the two details that Placewise sends, read and written without googleapis-common-protos.

The three messages are declared here in a descriptor pool of their own, so that they cannot clash with a copy that
another library may have registered. Nothing else of google.rpc is understood; unknown details are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.message import DecodeError

_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_INT32 = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """What a status carries beside its code."""

    message: str = ""
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_delay_s: float | None = None


def _declare() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, duration_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="placewise_client/rpc_status.proto",
        package="google.rpc",
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name],
    )
    status = file.message_type.add(name="Status")
    _add(status, "code", 1, _INT32)
    _add(status, "message", 2, _STRING)
    _add(status, "details", 3, _MESSAGE, ".google.protobuf.Any", is_repeated=True)
    info = file.message_type.add(name="ErrorInfo")
    _add(info, "reason", 1, _STRING)
    _add(info, "domain", 2, _STRING)
    _add(info, "metadata", 3, _MESSAGE, ".google.rpc.ErrorInfo.MetadataEntry", is_repeated=True)
    entry = info.nested_type.add(name="MetadataEntry")
    _add(entry, "key", 1, _STRING)
    _add(entry, "value", 2, _STRING)
    entry.options.map_entry = True
    _add(file.message_type.add(name="RetryInfo"), "retry_delay", 1, _MESSAGE, ".google.protobuf.Duration")
    pool.Add(file)
    names = ("Status", "ErrorInfo", "RetryInfo")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.rpc.{n}")) for n in names}


def _add(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
    type_name: str = "",
    is_repeated: bool = False,
) -> None:
    proto = descriptor_pb2.FieldDescriptorProto
    label = proto.LABEL_REPEATED if is_repeated else proto.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)


_MESSAGES = _declare()


def parse_status(payload: bytes, domain: str) -> StatusDetails:
    """Reads the value of the `grpc-status-details-bin` trailer; empty where it cannot be read."""
    try:
        status = _MESSAGES["Status"].FromString(payload)
    except DecodeError:
        return StatusDetails()
    found = [(detail.type_url.rpartition("/")[2], detail.value) for detail in status.details]
    return read_details(status.message, found, domain)


def read_details(message: str, found: Iterable[tuple[str, bytes]], domain: str) -> StatusDetails:
    """Reads (type name, message) of each detail; empty where one of ours cannot be read."""
    reason, metadata, delay_s = "", {}, None
    try:
        for name, value in found:
            if name == "google.rpc.ErrorInfo":
                info = _MESSAGES["ErrorInfo"].FromString(value)
                if info.domain == domain:
                    reason, metadata = info.reason, dict(info.metadata)
            elif name == "google.rpc.RetryInfo":
                delay = _MESSAGES["RetryInfo"].FromString(value).retry_delay
                delay_s = (delay.seconds * 10**9 + delay.nanos) / 1e9  # one rounding: 5.669 comes back as 5.669
    except DecodeError:
        return StatusDetails()
    return StatusDetails(message, reason, metadata, delay_s)


def build_status(code: int, domain: str, details: StatusDetails) -> bytes:
    """Writes such a trailer; for servers that are tests of this client."""
    status = _MESSAGES["Status"](code=code, message=details.message)
    info = _MESSAGES["ErrorInfo"](reason=details.reason, domain=domain, metadata=dict(details.metadata))
    status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
    if details.retry_delay_s is not None:
        retry = _MESSAGES["RetryInfo"]()
        seconds, nanos = divmod(round(details.retry_delay_s * 1e9), 10**9)
        retry.retry_delay.seconds, retry.retry_delay.nanos = seconds, nanos
        status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString())
    return bytes(status.SerializeToString())
