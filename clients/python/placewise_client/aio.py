"""The asyncio client. One per event loop. What it can call is in `rpcs.Rpcs`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Self, cast

import grpc
import grpc.aio

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise_client.errors import FailedCall, error_from_call
from placewise_client.retry import DEFAULT_RETRY, RetryPolicy
from placewise_client.rpcs import STREAM_PLACE_PATH, AsyncMethod, Req, Res, Rpc, Rpcs
from placewise_client.sync import DEFAULT_TIMEOUT_S
from placewise_client.target import Target


class AsyncClient(Rpcs):
    """`AsyncClient("127.0.0.1:50051")`; build it inside the event loop that will use it."""

    def __init__(
        self,
        target: Target | str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Raises TargetError. Connects with the first call."""
        self._target = Target.of(target)
        self._target.check()
        self._timeout_s = timeout_s
        self._rng = rng or random.Random()
        self._sleep = sleep
        uri, options = self._target.uri(), self._target.options()
        tls = self._target.tls
        self._channel = (
            grpc.aio.secure_channel(uri, tls.credentials(), options) if tls else grpc.aio.insecure_channel(uri, options)
        )

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def bind(self, rpc: Rpc[Req, Res]) -> AsyncMethod[Req, Res]:
        """The coroutine function behind `client.<rpc>`: retries inside one deadline, typed errors."""
        invoke = self._channel.unary_unary(
            rpc.path, request_serializer=rpc.request.SerializeToString, response_deserializer=rpc.response.FromString
        )

        async def call(
            request: Req, *, timeout_s: float | None = None, retry: RetryPolicy | None = DEFAULT_RETRY
        ) -> Res:
            deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
            failed = 0
            while True:
                left_s = max(0.0, deadline_s - time.monotonic())
                try:
                    return cast(Res, await invoke(request, timeout=left_s, metadata=self._target.metadata()))
                except grpc.aio.AioRpcError as cause:
                    error = error_from_call(cast(FailedCall, cause))
                    failed += 1
                    left_s = deadline_s - time.monotonic()
                    delay_s = retry.delay_s(failed, error, left_s, self._rng) if retry else None
                    if delay_s is None:
                        raise error from cause
                await self._sleep(delay_s)

        return call

    async def stream_place(
        self, requests: AsyncIterable[PlaceRequest] | Iterable[PlaceRequest], *, timeout_s: float | None = None
    ) -> AsyncIterator[PlaceResponse]:
        """As `Client.stream_place`."""
        invoke = self._channel.stream_stream(
            STREAM_PLACE_PATH,
            request_serializer=PlaceRequest.SerializeToString,
            response_deserializer=PlaceResponse.FromString,
        )
        iterator = aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests)
        try:
            async for response in invoke(iterator, timeout=timeout_s, metadata=self._target.metadata()):
                yield response
        except grpc.aio.AioRpcError as cause:
            raise error_from_call(cast(FailedCall, cause)) from cause
