"""The blocking client. Safe to share between threads. `rpcs.Rpcs` lists its calls."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self, cast

import grpc

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise_client.errors import FailedCall, error_from_call
from placewise_client.retry import DEFAULT_RETRY, RetryPolicy, Tries
from placewise_client.rpcs import STREAM_PLACE_PATH, Method, Req, Res, Rpc, Rpcs
from placewise_client.target import Target, TargetError

DEFAULT_TIMEOUT_S = 10.0


class Client(Rpcs):
    """`Client("127.0.0.1:50051")`, or with TLS, a token and several replicas: `Client(Target([...], ...))`."""

    def __init__(
        self,
        target: Target | str | Sequence[str],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        rng: random.Random | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Raises TargetError. Connects with the first call. `timeout_s` and `retry`: of calls that give none."""
        self._target = Target.of(target)
        self._target.check()
        if self._target.is_http:
            raise TargetError("only AsyncClient speaks HTTP: give host:port of the service's gRPC face")
        self._timeout_s = timeout_s
        self._retry = retry
        self._rng = rng or random.Random()
        self._sleep = sleep
        uri, options = self._target.uri(), self._target.options()
        tls = self._target.tls
        self._channel = (
            grpc.secure_channel(uri, tls.credentials(), options) if tls else grpc.insecure_channel(uri, options)
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bind(self, rpc: Rpc[Req, Res]) -> Method[Req, Res]:
        """The callable behind `client.<rpc>`: retries inside one deadline, typed errors."""
        invoke = self._channel.unary_unary(
            rpc.path, request_serializer=rpc.request.SerializeToString, response_deserializer=rpc.response.FromString
        )

        def call(request: Req, *, timeout_s: float | None = None, retry: RetryPolicy | None = DEFAULT_RETRY) -> Res:
            deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
            policy = self._retry if retry is DEFAULT_RETRY else retry
            tries = Tries(policy, rpc.is_repeatable(request), self._rng)
            while True:
                left_s = max(0.0, deadline_s - time.monotonic())
                try:
                    return cast(Res, invoke(request, timeout=left_s, metadata=self._target.metadata()))
                except grpc.RpcError as cause:
                    error = error_from_call(cast(FailedCall, cause))
                    delay_s = tries.delay_s(error, deadline_s - time.monotonic())
                    if delay_s is None:
                        raise error from cause
                self._sleep(delay_s)

        return call

    def stream_place(
        self, requests: Iterable[PlaceRequest], *, timeout_s: float | None = None
    ) -> Iterator[PlaceResponse]:
        """Asks many questions over one call; answers come in the order of the questions.

        An answer that failed has `error` set (`errors.error_from_stream` types it) and the stream goes on.
        Raises PlacewiseError if the stream itself breaks; the client never opens it again.
        """
        invoke = self._channel.stream_stream(
            STREAM_PLACE_PATH,
            request_serializer=PlaceRequest.SerializeToString,
            response_deserializer=PlaceResponse.FromString,
        )
        try:
            yield from invoke(iter(requests), timeout=timeout_s, metadata=self._target.metadata())
        except grpc.RpcError as cause:
            raise error_from_call(cast(FailedCall, cause)) from cause
