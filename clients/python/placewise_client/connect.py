"""Calls over plain HTTP/1.1 in the Connect protocol, for targets that are named by http:// or https://.

All work is done in the caller's event loop. gRPC has threads of its own, each of which waits for its turn on a busy
machine. Several addresses share the calls in turn; one that cannot be reached is left out for a moment.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_client.backoff import Backoff
from placewise_client.errors import (
    DOMAIN,
    DeadlineExceededError,
    InternalError,
    PlacewiseError,
    StateUnavailableError,
    error_from,
)
from placewise_client.http1 import HttpAnswer, HttpPool, NotConnectedError
from placewise_client.rpcs import Req, Res, Rpc
from placewise_client.status import StatusDetails, read_details
from placewise_client.target import Target, TargetError
from placewise_client.transport import Invoke, Requests

_AWAY = Backoff(1.0, 16.0)
# The service closes a connection that was idle for 75 s.
_MOST_IDLE_S = 60.0
_UNAVAILABLE = 503
_PROTO = "application/proto"
_CODES = {code.name.lower(): code for code in grpc.StatusCode} | {"canceled": grpc.StatusCode.CANCELLED}
# A proxy before the service may answer by itself, without the protocol's words.
_CODES_BY_STATUS = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(slots=True)
class _Replica:
    pool: HttpPool
    away_until_s: float = float("-inf")
    silent_in_a_row: int = 0


class ConnectTransport:
    """One per event loop. Raises PlacewiseError and nothing else."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        tls = target.tls_context()
        name = target.tls.server_name if target.tls else ""
        self._target = target
        self._clock = clock
        self._replicas = [
            _Replica(HttpPool(address, tls, name, idle_s=min(target.keepalive_s, _MOST_IDLE_S)))
            for address in target.hosts()
        ]
        self._turn = 0

    def unary(self, rpc: Rpc[Req, Res]) -> Invoke[Req, Res]:
        """As `AsyncTransport.unary`."""

        async def invoke(request: Req, timeout_s: float) -> Res:
            headers = {
                "Content-Type": _PROTO,
                "Connect-Protocol-Version": "1",
                "Connect-Timeout-Ms": str(max(1, round(min(timeout_s * 1e3, 1e10 - 1.0)))),
            }
            body = request.SerializeToString()
            try:
                headers.update(self._target.metadata())  # a token's file may be missing while it is rotated
                async with asyncio.timeout(timeout_s):
                    answer = await self._exchange(rpc.path, headers, body)
            except TimeoutError:
                raise DeadlineExceededError(f"no answer within {timeout_s * 1e3:.0f} ms") from None
            except (OSError, ValueError) as error:
                text, was_sent = str(error) or type(error).__name__, not isinstance(error, NotConnectedError)
                raise StateUnavailableError(f"{rpc.path}: {text}", was_sent=was_sent) from error
            if answer.status != 200:
                raise _error(answer)
            return _message(rpc, answer)

        return invoke

    def stream_place(self, requests: Requests, timeout_s: float | None) -> AsyncIterator[PlaceResponse]:
        """Raises TargetError: streams need gRPC."""
        raise TargetError("stream_place needs the service's gRPC address, host:port instead of http://host:port")

    async def close(self) -> None:
        for replica in self._replicas:
            await replica.pool.close()

    async def _exchange(self, path: str, headers: dict[str, str], body: bytes) -> HttpAnswer:
        """Asks the next replica in turn. If nothing could be sent to it, asks the one after it.

        A replica that is shutting down is left out for a moment. So is one that did not answer in time, each time for
        longer: a machine that is off never answers, and each try costs a call.
        """
        refusal: NotConnectedError | None = None
        for replica in self._in_turn():
            try:
                answer = await replica.pool.request("POST", path, headers, body)
            except NotConnectedError as error:
                replica.away_until_s = self._clock() + _AWAY.pause_s(1)
                refusal = error
            except asyncio.CancelledError:
                replica.silent_in_a_row += 1
                replica.away_until_s = self._clock() + _AWAY.pause_s(replica.silent_in_a_row)
                raise
            else:
                is_away = answer.status == _UNAVAILABLE
                replica.away_until_s = self._clock() + _AWAY.pause_s(1) if is_away else float("-inf")
                replica.silent_in_a_row = 0
                return answer
        raise refusal or NotConnectedError("no address")

    def _in_turn(self) -> Sequence[_Replica]:
        """The replicas, round robin; those that are away come last."""
        if len(self._replicas) == 1:
            return self._replicas
        self._turn = (self._turn + 1) % len(self._replicas)
        turned = self._replicas[self._turn :] + self._replicas[: self._turn]
        now_s = self._clock()
        return sorted(turned, key=lambda replica: replica.away_until_s > now_s)


def _message(rpc: Rpc[Any, Res], answer: HttpAnswer) -> Res:
    """Raises InternalError for an answer that another server or a proxy sent."""
    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != _PROTO:
        raise InternalError(f"{rpc.path}: the answer is not {_PROTO}: another server or a proxy sent it")
    try:
        return rpc.response.FromString(answer.body)
    except DecodeError:
        raise InternalError(f"{rpc.path}: the answer cannot be decoded") from None


def _error(answer: HttpAnswer) -> PlacewiseError:
    """The typed error of a failed call. An answer that does not come from the service is read by its HTTP status."""
    try:
        document: Any = json.loads(answer.body)
        code = _CODES[document["code"]]
        details = read_details(str(document.get("message", "")), _details(document.get("details", ())), DOMAIN)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        code = _CODES_BY_STATUS.get(answer.status, grpc.StatusCode.UNKNOWN)
        details = StatusDetails(f"HTTP status {answer.status} without an error of the service")
    return error_from(code, details)


def _details(documents: Any) -> list[tuple[str, bytes]]:
    """(type name, message) of each detail that can be read."""
    found = []
    for document in documents:
        text = str(document["value"])
        try:
            found.append((str(document["type"]), base64.b64decode(text + "=" * (-len(text) % 4), validate=True)))
        except ValueError:
            continue
    return found
