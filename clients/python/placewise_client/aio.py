"""The asyncio client. One per event loop. `rpcs.Rpcs` lists its calls."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Self

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_client.errors import PlacewiseError
from placewise_client.retry import DEFAULT_RETRY, RetryPolicy, Tries
from placewise_client.rpcs import AsyncMethod, Req, Res, Rpc, Rpcs
from placewise_client.sync import DEFAULT_TIMEOUT_S
from placewise_client.target import Target, TargetError
from placewise_client.transport import AsyncTransport, GrpcTransport, Requests


class AsyncClient(Rpcs):
    """`AsyncClient("127.0.0.1:50051")` or, over HTTP/1.1, `AsyncClient("http://127.0.0.1:8080")`.

    Build it inside the event loop that will use it.
    """

    def __init__(
        self,
        target: Target | str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Raises TargetError. Connects with the first call. `timeout_s` and `retry`: of calls that give none."""
        target = Target.of(target)
        target.check()
        self._timeout_s = timeout_s
        self._retry = retry
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._transport: AsyncTransport = _transport(target)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def bind(self, rpc: Rpc[Req, Res]) -> AsyncMethod[Req, Res]:
        """The coroutine function behind `client.<rpc>`: retries inside one deadline, typed errors."""
        invoke = self._transport.unary(rpc)

        async def call(
            request: Req, *, timeout_s: float | None = None, retry: RetryPolicy | None = DEFAULT_RETRY
        ) -> Res:
            deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
            policy = self._retry if retry is DEFAULT_RETRY else retry
            tries = Tries(policy, rpc.is_repeatable(request), self._rng)
            while True:
                try:
                    return await invoke(request, max(0.0, deadline_s - time.monotonic()))
                except PlacewiseError as error:
                    delay_s = tries.delay_s(error, deadline_s - time.monotonic())
                    if delay_s is None:
                        raise
                await self._sleep(delay_s)

        return call

    async def stream_place(self, requests: Requests, *, timeout_s: float | None = None) -> AsyncIterator[PlaceResponse]:
        """As `Client.stream_place`; over gRPC only."""
        async for response in self._transport.stream_place(requests, timeout_s):
            yield response


def _transport(target: Target) -> AsyncTransport:
    """Raises TargetError."""
    if not target.is_http:
        return GrpcTransport(target)
    try:
        from placewise_client.connect import ConnectTransport  # noqa: PLC0415 - aiohttp comes with an extra
    except ModuleNotFoundError as error:
        raise TargetError("http:// and https:// need aiohttp: pip install 'placewise-client[http]'") from error
    return ConnectTransport(target)
