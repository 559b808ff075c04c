"""Converts a PlacewiseError for each face: google.rpc.Status with ErrorInfo, application/problem+json, Connect's JSON.

All read the class attributes of the error; nothing is decided here.
"""

import base64
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2

from placewise.v1 import decision_pb2
from placewise_core.domain.errors import PlacewiseError

DOMAIN = "placewise"
STATUS_KEY = "grpc-status-details-bin"
PROBLEM_TYPE = "application/problem+json"
UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
_CODE_WORDS = {number: name.lower() for name, number in code_pb2.Code.items()}


def shown(error: PlacewiseError) -> str:
    """The message, led by the field it is about."""
    field = error.metadata.get("field")
    return f"{field}: {error.message}" if field else error.message


def status_metadata(error: PlacewiseError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata of a gRPC status: ErrorInfo always, RetryInfo where asking again makes sense."""
    status = status_pb2.Status(code=error.grpc_code, message=shown(error), details=_details(error))
    return ((STATUS_KEY, status.SerializeToString()),)


def connect_error(error: PlacewiseError) -> bytes:
    """Body of an error in the Connect protocol: the code in words, and the same details in base64 without padding."""
    details = [
        {
            "type": detail.TypeName(),
            "value": base64.b64encode(detail.value).decode().rstrip("="),
            "debug": json_format.MessageToDict(detail),
        }
        for detail in _details(error)
    ]
    return json.dumps({"code": _CODE_WORDS[error.grpc_code], "message": shown(error), "details": details}).encode()


def _details(error: PlacewiseError) -> list[AnyMessage]:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    if error.retry_after_s is None:
        return [_packed(info)]
    return [_packed(info), _packed(error_details_pb2.RetryInfo(retry_delay=_duration(error.retry_after_s)))]


def stream_error(error: PlacewiseError) -> decision_pb2.StreamError:
    """The error of one request of a stream."""
    message = decision_pb2.StreamError(code=error.grpc_code, reason=error.reason, message=shown(error))
    if error.retry_after_s is not None:
        message.retry_delay.CopyFrom(_duration(error.retry_after_s))
    return message


def problem(error: PlacewiseError) -> dict[str, Any]:
    """RFC 9457 body; `reason`, `field` and `metadata` are members of our own."""
    return problem_body(error.http_status, error.reason, shown(error), error.metadata)


def problem_body(status: int, reason: str, detail: str, metadata: dict[str, str] | None = None) -> dict[str, Any]:
    """RFC 9457 body for errors that are not the engine's (no such path, wrong method)."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": reason.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "reason": reason,
    }
    if metadata:
        body["metadata"] = metadata
    return body


def problem_headers(error: PlacewiseError) -> dict[str, str]:
    """Retry-After in whole seconds, as HTTP wants it; and how to authenticate."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="placewise"'
    return headers


def _packed(detail: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


def _duration(span_s: float) -> Duration:
    return Duration(seconds=int(span_s), nanos=round((span_s - int(span_s)) * 1e9))
