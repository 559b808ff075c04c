"""Errors of the Placewise API, rebuilt from its answers.

    PlacewiseError
    ├── InvalidRequestError      INVALID_ARGUMENT       the request can never succeed as it is
    ├── UnauthenticatedError     UNAUTHENTICATED        no token, or one that is not known
    ├── PermissionDeniedError    PERMISSION_DENIED      the token lacks the scope or the cluster
    ├── NotFoundError            NOT_FOUND              no such cluster, bundle or decision
    ├── AlreadyExistsError       ALREADY_EXISTS         the request_id belongs to another question: send a new one
    ├── StaleSnapshotError       ABORTED                the cluster changed under the decision; retried
    ├── OverloadedError          RESOURCE_EXHAUSTED     the service sheds load; retried after its own delay
    ├── StateUnavailableError    UNAVAILABLE            service or its state cannot be reached; retried
    ├── DeadlineExceededError    DEADLINE_EXCEEDED      no answer in time
    └── InternalError            anything else          a defect of the service, logged there with the same id

`reason` and `metadata` come from google.rpc.ErrorInfo (domain "placewise"). WAIT and NO_FIT are answers, never errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import grpc

from placewise_client.status import StatusDetails, parse_status

# How the text of gRPC's library begins for a call that found no connection; it has no code of its own.
_NOT_CONNECTED = ("connections to all backends failing", "failed to connect to all addresses", "DNS resolution failed")
STATUS_TRAILER = "grpc-status-details-bin"
DOMAIN = "placewise"


class PlacewiseError(Exception):
    """Base of all errors of this package that come from a call."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    is_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_delay_s: float | None = None,
        was_sent: bool = True,
    ) -> None:
        """`was_sent` False: nothing of the call has left this process, so it has not been carried out."""
        super().__init__(message)
        self.message = message
        self.reason = reason or self.code.name
        self.metadata = dict(metadata or {})
        self.retry_delay_s = retry_delay_s
        self.was_sent = was_sent

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InvalidRequestError(PlacewiseError):
    code = grpc.StatusCode.INVALID_ARGUMENT


class UnauthenticatedError(PlacewiseError):
    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(PlacewiseError):
    code = grpc.StatusCode.PERMISSION_DENIED


class NotFoundError(PlacewiseError):
    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(PlacewiseError):
    code = grpc.StatusCode.ALREADY_EXISTS


class StaleSnapshotError(PlacewiseError):
    code = grpc.StatusCode.ABORTED
    is_retryable = True


class OverloadedError(PlacewiseError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    is_retryable = True


class StateUnavailableError(PlacewiseError):
    code = grpc.StatusCode.UNAVAILABLE
    is_retryable = True


class DeadlineExceededError(PlacewiseError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class InternalError(PlacewiseError):
    code = grpc.StatusCode.INTERNAL


ERRORS: Sequence[type[PlacewiseError]] = (
    InvalidRequestError,
    UnauthenticatedError,
    PermissionDeniedError,
    NotFoundError,
    AlreadyExistsError,
    StaleSnapshotError,
    OverloadedError,
    StateUnavailableError,
    DeadlineExceededError,
    InternalError,
)
_BY_CODE = {error.code: error for error in ERRORS}
_BY_NUMBER = {error.code.value[0]: error for error in ERRORS}


class FailedCall(Protocol):
    """What grpc.RpcError offers on both of its faces (grpc.Call and grpc.aio.AioRpcError)."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...


def error_from_call(call: FailedCall) -> PlacewiseError:
    """The typed error for a failed call; details that cannot be read are left out."""
    details = StatusDetails()
    for key, value in call.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            details = parse_status(value, DOMAIN)
    return error_from(call.code(), details, call.details() or "")


def error_from(code: grpc.StatusCode, details: StatusDetails, text: str = "") -> PlacewiseError:
    """The typed error for a status; `text` is its message if the details have none."""
    return _BY_CODE.get(code, InternalError)(
        details.message or text or code.name,
        reason=details.reason,
        metadata=details.metadata,
        retry_delay_s=details.retry_delay_s,
        was_sent=bool(details.reason) or not text.startswith(_NOT_CONNECTED),
    )


def error_from_stream(code: int, reason: str, message: str, retry_delay_s: float | None) -> PlacewiseError:
    """The typed error for one question of a stream that could not be answered."""
    return _BY_NUMBER.get(code, InternalError)(message, reason=reason, retry_delay_s=retry_delay_s)
