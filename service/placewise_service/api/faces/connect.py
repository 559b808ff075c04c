"""The contract's unary calls over plain HTTP/1.1 in the Connect protocol, beside REST on its port.

`POST /placewise.v1.DecisionService/Place` with the message as `application/proto` (or `application/json`); an error is
an HTTP status with its code, reason and details in JSON. Why beside gRPC: one thread of the caller and one of ours
touch such a call, where gRPC wakes several of its own on either side; on a machine whose processors are busy each of
these waits for its turn. Protocol: https://connectrpc.com/docs/protocol, unary requests, without compression.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import Message
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from placewise_core.domain.errors import DeadlineExceededError, InvalidRequestError, PlacewiseError
from placewise_service.api.calls.gateway import Call, Gateway, unforeseen
from placewise_service.api.calls.rpcs import RPCS, Rpc
from placewise_service.api.calls.statuses import UNSUPPORTED_MEDIA_TYPE, connect_error, problem_headers
from placewise_service.api.faces.bodies import read_body
from placewise_service.api.faces.callers import METHOD_NOT_ALLOWED, of_request, record_strange_request, trace_of
from placewise_service.api.faces.pages import Hosts, refuse_foreign_hosts, refuse_foreign_pages

PROTO, JSON = "application/proto", "application/json"
_VERSION = "1"
_MOST_TIMEOUT_DIGITS = 10


class ConnectFace:
    """An ASGI application: the contract's paths are answered here, all others by the application behind it."""

    def __init__(self, gateway: Gateway, rest: ASGIApp, hosts: Hosts = None) -> None:
        self._gateway = gateway
        self._rest = rest
        self._hosts = hosts
        self._rpcs: Mapping[str, Rpc] = {rpc.path: rpc for rpc in RPCS.values()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rpc = self._rpcs.get(scope["path"]) if scope["type"] == "http" else None
        if rpc is None:
            await self._rest(scope, receive, send)
            return
        request = _Request(scope, receive, _headers(scope))
        content_type = _content_type(request.headers)
        response = self._refusal(rpc, request, content_type)
        if response is None:
            try:
                content = await self._answer(rpc, request, content_type)
            except PlacewiseError as error:
                response = self._failed(error)
            except Exception as error:
                response = self._failed(unforeseen(error, rpc.name))
            else:
                await _send(send, content_type, content)
                return
        await response(scope, receive, send)

    def _refusal(self, rpc: Rpc, request: "_Request", content_type: str) -> Response | None:
        """The protocol's answers to a wrong method or content type have no body; every other failure is an error."""
        if request.scope["method"] != "POST":
            record_strange_request(self._gateway, request.scope, request.headers, METHOD_NOT_ALLOWED)
            return Response(status_code=405, headers={"Allow": "POST"})
        if content_type not in (PROTO, JSON):
            caller = of_request(self._gateway, request.scope, request.headers)
            self._gateway.record_refusal(rpc.name, UNSUPPORTED_MEDIA_TYPE, caller)
            return Response(status_code=415, headers={"Accept-Post": f"{PROTO}, {JSON}"})
        return None

    def _failed(self, failure: PlacewiseError) -> Response:
        headers = problem_headers(failure)
        if self._gateway.is_draining:  # the next connection may reach a process that stays
            headers["Connection"] = "close"
        return Response(connect_error(failure), failure.http_status, headers, JSON)

    async def _answer(self, rpc: Rpc, request: "_Request", content_type: str) -> bytes:
        gateway, headers = self._gateway, request.headers
        caller, trace = of_request(gateway, request.scope, headers), trace_of(gateway, headers)
        try:
            _check_headers(headers)
            timeout_s = _timeout_s(headers)
        except InvalidRequestError as error:
            gateway.record_refusal(rpc.name, error.reason, caller)
            raise
        deadline_s = gateway.clock.monotonic_s() + timeout_s
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s):
                with gateway.enter(rpc, caller, deadline_s, trace) as call:
                    refuse_foreign_hosts(headers, self._hosts, call.principal)
                    refuse_foreign_pages(headers)
                    answer = await call.answer(await self._message(call, request, content_type))
                    return answer.SerializeToString() if content_type == PROTO else await gateway.json.rendered(answer)
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {timeout_s * 1000.0:g} ms") from None

    async def _message(self, call: Call, request: "_Request", content_type: str) -> Message:
        body = await read_body(call, request.headers, request.receive)
        if content_type == PROTO:
            return await self._gateway.parsed(call.rpc, body)
        message = call.rpc.request()
        await self._gateway.json.parsed(body, message, request.receive)
        return message


class _Request(NamedTuple):
    """A request as ASGI has it, its headers read once: starlette's look through all of them at each question."""

    scope: Scope
    receive: Receive
    headers: Mapping[str, str]


def _headers(scope: Scope) -> dict[str, str]:
    """By name in lower case; of several with one name the first, as starlette has it."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}


async def _send(send: Send, content_type: str, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", content_type.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _content_type(headers: Mapping[str, str]) -> str:
    kind, _, parameters = headers.get("content-type", "").partition(";")
    return "" if parameters.strip().lower() not in ("", "charset=utf-8") else kind.strip().lower()


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raises InvalidRequestError if the protocol lets a server refuse these headers."""
    if headers.get("connect-protocol-version", _VERSION) != _VERSION:
        raise InvalidRequestError(f"must be {_VERSION}", "Connect-Protocol-Version")
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("compressed messages are not supported: send them uncompressed", "Content-Encoding")


def _timeout_s(headers: Mapping[str, str]) -> float:
    text = headers.get("connect-timeout-ms")
    if text is None:
        return math.inf
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_TIMEOUT_DIGITS):
        raise InvalidRequestError(f"must be milliseconds, {_MOST_TIMEOUT_DIGITS} digits at most", "Connect-Timeout-Ms")
    return int(text) / 1000.0
