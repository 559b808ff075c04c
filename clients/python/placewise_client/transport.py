"""What carries the calls of the asyncio client: a gRPC channel, or the same calls over HTTP/1.1 (`connect.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol, cast

import grpc
import grpc.aio

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise_client.errors import FailedCall, StateUnavailableError, error_from_call
from placewise_client.rpcs import STREAM_PLACE_PATH, Req, Res, Rpc
from placewise_client.target import Target

Invoke = Callable[[Req, float], Awaitable[Res]]
Requests = AsyncIterable[PlaceRequest] | Iterable[PlaceRequest]


class AsyncTransport(Protocol):
    """One try of a call. Raises PlacewiseError and nothing else."""

    def unary(self, rpc: Rpc[Req, Res]) -> Invoke[Req, Res]:
        """A coroutine function: request and seconds that are left, to the response."""
        ...

    def stream_place(self, requests: Requests, timeout_s: float | None) -> AsyncIterator[PlaceResponse]:
        """The answers, in the order of the questions."""
        ...

    async def close(self) -> None: ...


class GrpcTransport:
    """A gRPC channel; build it inside the event loop that will use it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        uri, options, tls = target.uri(), target.options(), target.tls
        self._channel = (
            grpc.aio.secure_channel(uri, tls.credentials(), options) if tls else grpc.aio.insecure_channel(uri, options)
        )

    def unary(self, rpc: Rpc[Req, Res]) -> Invoke[Req, Res]:
        """As `AsyncTransport.unary`."""
        call = self._channel.unary_unary(
            rpc.path, request_serializer=rpc.request.SerializeToString, response_deserializer=rpc.response.FromString
        )

        async def invoke(request: Req, timeout_s: float) -> Res:
            try:
                return cast(Res, await call(request, timeout=timeout_s, metadata=self._target.metadata()))
            except grpc.aio.AioRpcError as cause:
                raise error_from_call(cast(FailedCall, cause)) from cause
            except OSError as cause:  # a token's file may be missing while it is rotated
                raise StateUnavailableError(f"{rpc.path}: {cause}") from cause

        return invoke

    async def stream_place(self, requests: Requests, timeout_s: float | None) -> AsyncIterator[PlaceResponse]:
        """As `AsyncTransport.stream_place`."""
        call = self._channel.stream_stream(
            STREAM_PLACE_PATH,
            request_serializer=PlaceRequest.SerializeToString,
            response_deserializer=PlaceResponse.FromString,
        )
        given = cast(AsyncIterator[PlaceRequest], requests)  # grpc takes any iterable, its types name iterators alone
        try:
            async for response in call(given, timeout=timeout_s, metadata=self._target.metadata()):
                yield response
        except grpc.aio.AioRpcError as cause:
            raise error_from_call(cast(FailedCall, cause)) from cause

    async def close(self) -> None:
        await self._channel.close(None)
