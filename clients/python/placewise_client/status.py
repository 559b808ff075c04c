"""Reads google.rpc.Status with the two details that Placewise sends. Other details are skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

_ERROR_INFO, _RETRY_INFO = ErrorInfo.DESCRIPTOR.full_name, RetryInfo.DESCRIPTOR.full_name


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """Everything a status carries beside its code."""

    message: str = ""
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_delay_s: float | None = None


def parse_status(payload: bytes, domain: str) -> StatusDetails:
    """Reads the value of the `grpc-status-details-bin` trailer; empty if it cannot be decoded."""
    try:
        status = Status.FromString(payload)
    except DecodeError:
        return StatusDetails()
    found = [(detail.type_url.rpartition("/")[2], detail.value) for detail in status.details]
    return read_details(status.message, found, domain)


def read_details(message: str, found: Iterable[tuple[str, bytes]], domain: str) -> StatusDetails:
    """Reads (type name, message) of each detail; empty if one of ours cannot be decoded."""
    reason, metadata, delay_s = "", {}, None
    try:
        for name, value in found:
            if name == _ERROR_INFO:
                info = ErrorInfo.FromString(value)
                if info.domain == domain:
                    reason, metadata = info.reason, dict(info.metadata)
            elif name == _RETRY_INFO:
                delay = RetryInfo.FromString(value).retry_delay
                delay_s = (delay.seconds * 10**9 + delay.nanos) / 1e9  # one rounding: 5.669 comes back as 5.669
    except DecodeError:
        return StatusDetails()
    return StatusDetails(message, reason, metadata, delay_s)
