"""Errors that mean no decision could be made, with the status each face gives them.

    PlacewiseError
    ├── InvalidRequestError       3 / 400   the request cannot be understood or breaks a rule
    ├── UnauthenticatedError     16 / 401   no or wrong credentials
    ├── PermissionDeniedError     7 / 403   the credentials do not allow this
    ├── NotFoundError             5 / 404   no such cluster, node, bundle or decision
    ├── AlreadyExistsError        6 / 409   the request_id belongs to another question
    ├── StaleSnapshotError       10 / 409   the view was out of date twice; ask again
    ├── OverloadedError           8 / 429   too much at once; ask again later
    ├── StateUnavailableError    14 / 503   the state cannot be reached; ask again
    │   └── DrainingError                   this process is shutting down; ask again soon
    └── DeadlineExceededError     4 / 504   the caller's time ran out

WAIT and NO_FIT are answers, not errors. Both faces read the class attributes; nothing else maps errors to statuses.
"""

from collections.abc import Mapping
from typing import ClassVar


class PlacewiseError(Exception):
    """Base of every error a caller may see. `message` is safe to show; `metadata` holds names and numbers only."""

    grpc_code: ClassVar[int] = 13
    http_status: ClassVar[int] = 500
    reason: ClassVar[str] = "INTERNAL"
    retry_after_s: ClassVar[float | None] = None

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})


class InvalidRequestError(PlacewiseError):
    """The request cannot be understood or breaks a rule; `metadata["field"]` names where. `limit` names the limit of
    the service that it went over, if that is the rule."""

    grpc_code = 3
    http_status = 400
    reason = "INVALID_REQUEST"

    def __init__(
        self, message: str, field: str = "", metadata: Mapping[str, str] | None = None, limit: str = ""
    ) -> None:
        super().__init__(message, {**({"field": field} if field else {}), **(metadata or {})})
        self.limit = limit

    def within(self, field: str) -> "InvalidRequestError":
        """The error of a part of a request, as one of the whole: the part is its `field`."""
        return InvalidRequestError(
            self.message, metadata={**self.metadata, "field": f"{field}.{self.metadata['field']}"}
        )


class UnauthenticatedError(PlacewiseError):
    """No credentials, or wrong ones."""

    grpc_code = 16
    http_status = 401
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(PlacewiseError):
    """The credentials do not allow this call on this cluster."""

    grpc_code = 7
    http_status = 403
    reason = "PERMISSION_DENIED"


class NotFoundError(PlacewiseError):
    """No such cluster, node, bundle or decision."""

    grpc_code = 5
    http_status = 404
    reason = "NOT_FOUND"


class AlreadyExistsError(PlacewiseError):
    """The request_id belongs to another question, or to another caller's."""

    grpc_code = 6
    http_status = 409
    reason = "ALREADY_EXISTS"


class StaleSnapshotError(PlacewiseError):
    """The state moved under the decision more often than it may be retried."""

    grpc_code = 10
    http_status = 409
    reason = "STALE_SNAPSHOT"
    retry_after_s = 0.05


class OverloadedError(PlacewiseError):
    """More requests in flight than the limit."""

    grpc_code = 8
    http_status = 429
    reason = "OVERLOADED"
    retry_after_s = 0.1


class StateUnavailableError(PlacewiseError):
    """The state store does not answer."""

    grpc_code = 14
    http_status = 503
    reason = "STATE_UNAVAILABLE"
    retry_after_s = 1.0


class DrainingError(StateUnavailableError):
    """This process is shutting down; another one, or the one that takes its place, answers."""

    retry_after_s = 0.05

    def __init__(self) -> None:
        super().__init__("this process is shutting down")


class DeadlineExceededError(PlacewiseError):
    """The caller's deadline passed before a decision was made."""

    grpc_code = 4
    http_status = 504
    reason = "DEADLINE_EXCEEDED"
