"""Reads a caller's credentials and trace from a call, for each transport."""

from collections.abc import Mapping

import grpc
from starlette.types import Scope

from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.identity.auth import NOBODY, Credentials, bearer_token
from placewise_service.api.identity.certificates import subjects_of_pem
from placewise_service.telemetry import TRACE_HEADERS

NO_SUCH_PATH, METHOD_NOT_ALLOWED = "NO_SUCH_PATH", "METHOD_NOT_ALLOWED"
SUBJECTS = "certificate_subjects"  # in the state of a request: names in the certificate of its connection


def of_request(gateway: Gateway, scope: Scope, headers: Mapping[str, str]) -> Credentials:
    """Credentials of an HTTP request, given as ASGI has it; empty if nothing uses them."""
    if not gateway.needs_credentials and gateway.audit is None:
        return NOBODY
    header = headers.get("authorization")
    peer = scope.get("client")
    return Credentials(
        token=None if header is None else bearer_token(header),
        subjects=scope.get("state", {}).get(SUBJECTS, ()) if gateway.reads_certificates else (),
        peer="" if peer is None else f"{peer[0]}:{peer[1]}",
    )


def record_strange_request(gateway: Gateway, scope: Scope, headers: Mapping[str, str], reason: str) -> None:
    """Puts on record that a path, or a method of a path, does not exist. A query string may hold a secret: it is left
    out."""
    gateway.record_refusal("http", reason, of_request(gateway, scope, headers), f"{scope['method']} {scope['path']}")


def of_context(gateway: Gateway, context: "grpc.aio.ServicerContext[bytes, bytes]") -> Credentials:
    """Credentials of a gRPC call; empty if nothing uses them."""
    if not gateway.needs_credentials and gateway.audit is None:
        return NOBODY
    peer = context.peer().partition(":")[2]  # ipv4:127.0.0.1:5000
    subjects = _subjects(context) if gateway.reads_certificates else ()
    if gateway.needs_credentials:  # gRPC makes the metadata anew at each look
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                return Credentials(bearer_token(value if isinstance(value, str) else ""), subjects, peer)
    return Credentials(None, subjects, peer)


def _subjects(context: "grpc.aio.ServicerContext[bytes, bytes]") -> tuple[str, ...]:
    shown = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
    return subjects_of_pem(bytes(shown)) if shown else ()


def trace_of(gateway: Gateway, headers: Mapping[str, str]) -> dict[str, str] | None:
    """The caller's trace, where anybody records it."""
    if not gateway.telemetry.is_tracing:
        return None
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def trace_of_context(gateway: Gateway, context: "grpc.aio.ServicerContext[bytes, bytes]") -> dict[str, str] | None:
    """As `trace_of`."""
    if not gateway.telemetry.is_tracing:
        return None
    sent = context.invocation_metadata() or ()
    return {key: value for key, value in sent if key in TRACE_HEADERS and isinstance(value, str)}
