"""The contract's unary calls over plain HTTP/1.1 in the Connect protocol, beside REST on its port.

`POST /placewise.v1.DecisionService/Place` with the message as `application/proto` (or `application/json`); an error is
an HTTP status with its code, reason and details in JSON. Why beside gRPC: one thread of the caller and one of ours
touch such a call, where gRPC wakes several of its own on either side; on a machine whose processors are busy each of
these waits for its turn. Protocol: https://connectrpc.com/docs/protocol, unary requests, without compression.
"""

import asyncio
import math
from collections.abc import Mapping

from google.protobuf.message import Message
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from placewise_core.domain.errors import DeadlineExceededError, InvalidRequestError, PlacewiseError
from placewise_service.api.calls.gateway import Call, Gateway, unforeseen
from placewise_service.api.calls.rpcs import RPCS, Rpc
from placewise_service.api.calls.statuses import UNSUPPORTED_MEDIA_TYPE, connect_error, problem_headers
from placewise_service.api.faces.bodies import read_body
from placewise_service.api.faces.callers import of_request, trace_of
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
        response = await self._response(rpc, Request(scope, receive))
        await response(scope, receive, send)

    async def _response(self, rpc: Rpc, request: Request) -> Response:
        """The protocol's answers to a wrong method or content type have no body; every other failure is an error."""
        content_type = _content_type(request.headers)
        if request.method != "POST":
            return Response(status_code=405, headers={"Allow": "POST"})
        if content_type not in (PROTO, JSON):
            self._gateway.record_refusal(rpc.name, UNSUPPORTED_MEDIA_TYPE, of_request(self._gateway, request))
            return Response(status_code=415, headers={"Accept-Post": f"{PROTO}, {JSON}"})
        try:
            return Response(await self._answer(rpc, request, content_type), media_type=content_type)
        except PlacewiseError as error:
            failure = error
        except Exception as error:
            failure = unforeseen(error, rpc.name)
        headers = problem_headers(failure)
        if self._gateway.is_draining:  # the next connection may reach a process that stays
            headers["Connection"] = "close"
        return Response(connect_error(failure), failure.http_status, headers, JSON)

    async def _answer(self, rpc: Rpc, request: Request, content_type: str) -> bytes:
        _check_headers(request.headers)
        gateway, timeout_s = self._gateway, _timeout_s(request.headers)
        deadline_s = gateway.clock.monotonic_s() + timeout_s
        caller, trace = of_request(gateway, request), trace_of(gateway, request.headers)
        try:
            async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s):
                with gateway.enter(rpc, caller, deadline_s, trace) as call:
                    refuse_foreign_hosts(request, self._hosts)
                    refuse_foreign_pages(request)
                    answer = await call.answer(await self._message(call, request, content_type))
                    return answer.SerializeToString() if content_type == PROTO else await gateway.json.rendered(answer)
        except TimeoutError:
            raise DeadlineExceededError(f"no answer within {timeout_s * 1000.0:g} ms") from None

    async def _message(self, call: Call, request: Request, content_type: str) -> Message:
        body = await read_body(call, request)
        if content_type == PROTO:
            return await self._gateway.parsed(call.rpc, body)
        message = call.rpc.request()
        await self._gateway.json.parsed(body, message, request.receive)
        return message


def _content_type(headers: Headers) -> str:
    kind, _, parameters = headers.get("content-type", "").partition(";")
    return "" if parameters.strip().lower() not in ("", "charset=utf-8") else kind.strip().lower()


def _check_headers(headers: Headers) -> None:
    """Raises InvalidRequestError if the protocol lets a server refuse these headers."""
    if headers.get("connect-protocol-version", _VERSION) != _VERSION:
        raise InvalidRequestError(f"must be {_VERSION}", "Connect-Protocol-Version")
    if headers.get("content-encoding", "identity") != "identity":
        raise InvalidRequestError("compressed messages are not supported: send them uncompressed", "Content-Encoding")


def _timeout_s(headers: Headers) -> float:
    text = headers.get("connect-timeout-ms")
    if text is None:
        return math.inf
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_TIMEOUT_DIGITS):
        raise InvalidRequestError(f"must be milliseconds, {_MOST_TIMEOUT_DIGITS} digits at most", "Connect-Timeout-Ms")
    return int(text) / 1000.0
