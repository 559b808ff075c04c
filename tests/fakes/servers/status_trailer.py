"""Writes google.rpc.Status as the service does, for servers that test the SDK."""

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from placewise_client.status import StatusDetails


def build_status(code: int, domain: str, details: StatusDetails) -> bytes:
    """The value of a `grpc-status-details-bin` trailer."""
    found: list[ErrorInfo | RetryInfo] = [ErrorInfo(reason=details.reason, domain=domain, metadata=details.metadata)]
    if details.retry_delay_s is not None:
        delay = Duration()
        delay.FromNanoseconds(round(details.retry_delay_s * 1e9))
        found.append(RetryInfo(retry_delay=delay))
    status = Status(code=code, message=details.message)
    for each in found:
        packed = Packed()
        packed.Pack(each)
        status.details.append(packed)
    return bytes(status.SerializeToString())
