"""Python SDK of Placewise: ask where, how and when to run a job."""

from placewise_client.aio import AsyncClient
from placewise_client.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
    UnauthenticatedError,
)
from placewise_client.fallback import Decided, decide_or, decide_or_async
from placewise_client.retry import RetryPolicy
from placewise_client.sync import Client
from placewise_client.target import Target, TargetError, Tls

__all__ = [
    "AlreadyExistsError",
    "AsyncClient",
    "Client",
    "DeadlineExceededError",
    "Decided",
    "InternalError",
    "InvalidRequestError",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "PlacewiseError",
    "RetryPolicy",
    "StaleSnapshotError",
    "StateUnavailableError",
    "Target",
    "TargetError",
    "Tls",
    "UnauthenticatedError",
    "decide_or",
    "decide_or_async",
]
