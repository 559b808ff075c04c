"""Health and reflection over gRPC: anybody may ask, so each call is bounded in size and time, and all in number.

gRPC's own servicers would wait for a message for ever, and let every connection hold as many calls as it has streams.
A health `Watch` lasts as long as its caller wants: that is its use.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from placewise_core.domain.errors import InvalidRequestError, NotFoundError, OverloadedError, PlacewiseError
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.grpc_messages import Context, MessageReader, end_refused, write

_HEALTH = "grpc.health.v1.Health"
_MOST_OF_A_CONNECTION = 8
_MOST_LONG = 512  # watches and reflections, which last, of all connections
_MESSAGE_BYTES = 4096  # the name of a service or of a file
_States = health_pb2.HealthCheckResponse


class OpenCalls(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handlers of these calls. Belongs to the event loop."""

    def __init__(self, gateway: Gateway, reader: MessageReader, shown: Sequence[str] | None) -> None:
        """`shown` are the services that reflection names; None for no reflection."""
        self._gateway = gateway
        self._reader = reader
        self._limit_s = gateway.limits.body_s
        self._states: dict[str, int] = {}
        self._changed = asyncio.Event()  # a new one after each change
        self._of_connection: Counter[str] = Counter()
        self._long = 0
        self._handlers: dict[str, Any] = {
            f"/{_HEALTH}/Check": grpc.stream_unary_rpc_method_handler(self._check),
            f"/{_HEALTH}/Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        if shown is not None:
            names = (*shown, _HEALTH, reflection.SERVICE_NAME)
            self._reflection = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
            path = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
            self._handlers[path] = grpc.stream_stream_rpc_method_handler(self._reflect)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        return self._handlers.get(handler_call_details.method)

    def set_serving(self, names: Sequence[str], is_serving: bool) -> None:
        """Sets the answer to health checks, for the server ("") and services."""
        self._states.update(dict.fromkeys(names, _States.SERVING if is_serving else _States.NOT_SERVING))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _check(self, requests: Any, context: Context) -> bytes:
        try:
            with self._counted(context):
                name = await self._service_name(context)
                state = self._states.get(name)
                if state is None:
                    raise NotFoundError("no such service")
                return _States(status=state).SerializeToString()  # type: ignore[no-any-return]
        except PlacewiseError as error:
            return end_refused(context, error)

    async def _watch(self, requests: Any, context: Context) -> None:
        try:
            with self._counted(context, is_long=True):
                name, sent = await self._service_name(context), None
                while True:
                    changed, state = self._changed, self._states.get(name, _States.SERVICE_UNKNOWN)
                    if state != sent:
                        await write(context, _States(status=state).SerializeToString())
                        sent = state
                    await changed.wait()
        except PlacewiseError as error:
            end_refused(context, error)

    async def _reflect(self, requests: Any, context: Context) -> None:
        try:
            with self._counted(context, is_long=True):
                async with asyncio.timeout(self._limit_s):
                    answers = self._reflection.ServerReflectionInfo(self._questions(requests, context), context)
                    async for answer in answers:
                        await write(context, answer.SerializeToString())
        except TimeoutError:
            self._gateway.note_turned_away("grpc", "body_time", _address(context))
            end_refused(context, InvalidRequestError(f"the call took more than {self._limit_s:g} s"))
        except PlacewiseError as error:
            end_refused(context, error)

    async def _questions(self, requests: Any, context: Context) -> AsyncIterator[Any]:
        async for raw in requests:
            yield self._parsed(raw, reflection_pb2.ServerReflectionRequest, context)

    async def _service_name(self, context: Context) -> str:
        try:
            raw = await self._reader.read(context)
        except InvalidRequestError as error:
            if error.limit:  # counted by the reader
                self._gateway.record_turned_away("grpc", error.limit, _address(context))
            raise
        name: str = self._parsed(raw, health_pb2.HealthCheckRequest, context).service
        return name

    def _parsed(self, raw: bytes, kind: Any, context: Context) -> Any:
        if len(raw) > _MESSAGE_BYTES:
            self._gateway.note_turned_away("grpc", "message_bytes", _address(context))
            raise InvalidRequestError(f"the message has {len(raw)} bytes; the limit is {_MESSAGE_BYTES}")
        try:
            return kind.FromString(raw)
        except DecodeError:
            raise InvalidRequestError(f"not a {kind.DESCRIPTOR.name}") from None

    @contextmanager
    def _counted(self, context: Context, *, is_long: bool = False) -> Iterator[None]:
        """Raises OverloadedError for a call too many. Checks, which are over soon, leave no room for others to take."""
        peer = context.peer()
        if self._of_connection[peer] >= _MOST_OF_A_CONNECTION or (is_long and self._long >= _MOST_LONG):
            self._gateway.note_turned_away("grpc", "open_calls", _address(context))
            raise OverloadedError("too many calls without credentials are open")
        self._of_connection[peer] += 1
        self._long += is_long
        try:
            yield
        finally:
            self._long -= is_long
            self._of_connection[peer] -= 1
            if not self._of_connection[peer]:
                del self._of_connection[peer]


def _address(context: Context) -> str:
    return context.peer().partition(":")[2]
