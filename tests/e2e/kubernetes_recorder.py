"""A gRPC proxy that passes every call to the decision service byte for byte and keeps the placements it answered.

It is the tests' own witness of what was decided, apart from both the adapter and the service.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import grpc
import grpc.aio
from tests.fakes.oracle import PINGS

from placewise.v1.decision_pb2 import (
    PLACED,
    AdmitOrWaitRequest,
    AdmitOrWaitResponse,
    PlaceRequest,
    PlaceResponse,
)

# gRPC would wait for seconds before it tries a service that was away again.
QUICK_RECONNECT = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
]
PLACE = "/placewise.v1.DecisionService/Place"
ADMIT_OR_WAIT = "/placewise.v1.DecisionService/AdmitOrWait"


class Recorder(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """`decided` holds, by job id, how many tasks each node was given by the last answer."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, QUICK_RECONNECT)
        self._server = grpc.aio.server(options=PINGS)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.decided: dict[str, Counter[str]] = {}
        self.answers: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Recorder:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=0)
        await self._channel.close(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method
        forward = self._channel.unary_unary(method, _same, _same)

        async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self.calls[method.rsplit("/", 1)[1]] += 1
            try:
                payload: bytes = await forward(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                trailer: Any = tuple(error.trailing_metadata())
                await context.abort(error.code(), error.details() or "", trailer)
            if method == PLACE and not PlaceRequest.FromString(request).dry_run:
                self._note(PlaceResponse.FromString(payload))
            if method == ADMIT_OR_WAIT and not AdmitOrWaitRequest.FromString(request).dry_run:
                self._note(AdmitOrWaitResponse.FromString(payload).placed)
            return payload

        return grpc.unary_unary_rpc_method_handler(answer)

    def _note(self, response: PlaceResponse) -> None:
        for decision in response.decisions:
            self.answers[decision.job_id] += decision.outcome == PLACED
            if decision.outcome == PLACED:
                self.decided[decision.job_id] = Counter(task.node for task in decision.assignments)


def _same(payload: bytes) -> bytes:
    return payload
