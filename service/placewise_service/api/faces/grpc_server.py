"""The gRPC face: one thin wrapper per call around the gateway, instead of a chain of interceptors.

Messages are parsed here rather than by gRPC, so that a malformed one is answered with INVALID_ARGUMENT and our details.
"""

import asyncio
import contextlib
import gc
import logging
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from placewise.v1 import decision_pb2
from placewise_core.domain.errors import DrainingError, InvalidRequestError, PlacewiseError
from placewise_service.api.calls.gateway import Gateway, unforeseen
from placewise_service.api.calls.rpcs import RPCS, STREAM_PLACE, Rpc
from placewise_service.api.calls.statuses import stream_error
from placewise_service.api.faces.callers import of_context, trace_of_context
from placewise_service.api.faces.grpc_connections import (
    ACKNOWLEDGED_S,
    LENIENCE_S,
    GrpcConnections,
    spare_connections,
    stranger_bytes,
)
from placewise_service.api.faces.grpc_messages import Context, MessageReader, end_refused, write
from placewise_service.api.faces.listener import connection_limit
from placewise_service.api.faces.open_calls import OpenCalls
from placewise_service.api.identity.auth import Credentials
from placewise_service.aside import ASIDE_BYTES
from placewise_service.settings import LimitSettings, ServerSettings

log = structlog.get_logger(__name__)

# gRPC itself cuts off here, without details; up to there the gateway explains.
_HARD_LIMIT_FACTOR = 2
# Refused metadata that is collected at once; and that which has lived on into the collector's oldest generation.
_FIELDS_KEPT, _FIELDS_GROWN_OLD = 5_000, 20_000
_FULL_COLLECTIONS_S = 1.0  # apart: each holds the loop for a while
_FIELD_BYTES = 32
_PING_PERIOD_MS, _PING_ANSWER_MS = 60_000, 20_000


class GrpcFace:
    """The server and its health. Constructing it binds, and `port` is then the one that was bound; raises OSError."""

    def __init__(
        self,
        gateway: Gateway,
        settings: ServerSettings,
        credentials: grpc.ServerCredentials | None = None,
        shares_port: bool = False,
    ) -> None:
        self._gateway = gateway
        self._reader = MessageReader(gateway.limits.body_s, gateway.telemetry)
        self._streams: set[asyncio.Task[None]] = set()
        most = connection_limit(gateway.limits.connections)
        note = partial(gateway.note_turned_away, "grpc")
        self._connections = GrpcConnections(gateway.limits, most, note, is_secure=credentials is not None)
        self._open_calls = OpenCalls(gateway, self._reader, _services() if settings.reflection else None)
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_gone_caller)
        self._server = grpc.aio.server()
        self._server._server = _Calls(self._connections, _options(gateway.limits, most, shares_port))  # type: ignore[attr-defined]
        self._add_services()
        address = f"{_bracketed(settings.grpc_host)}:{settings.grpc_port}"
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise OSError(f"cannot bind {address}: another process may use it") from None

    async def start(self) -> None:
        """Listens; not yet SERVING."""
        self._open_calls.set_serving([""], False)
        await self._server.start()
        self._connections.start(self.port)

    async def set_serving(self, is_serving: bool) -> None:
        """Sets the answer to health checks, for the server and each service."""
        self._open_calls.set_serving(["", *_services()], is_serving)

    async def show_readiness(self, stop: asyncio.Event, period_s: float = 0.5) -> None:
        """Lets health follow the gateway's readiness, which may go and come back, until asked to stop."""
        was_ready = None
        while not stop.is_set():
            if self._gateway.is_ready != was_ready:
                was_ready = self._gateway.is_ready
                await self.set_serving(was_ready)
                if was_ready:
                    log.info("ready", pid=os.getpid())
                else:
                    log.error("not ready", problem=self._gateway.problem(), pid=os.getpid())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), period_s)

    async def drain(self) -> None:
        """NOT_SERVING; streams finish the questions they have read and end."""
        await self.set_serving(False)
        for reader in self._streams:
            reader.cancel()

    async def stop(self, grace_s: float) -> None:
        """Closes; calls still in flight after the grace are cut off."""
        await self._server.stop(grace_s)
        self._connections.stop()

    def _add_services(self) -> None:
        handlers = {rpc.path: grpc.stream_unary_rpc_method_handler(self._unary(rpc)) for rpc in RPCS.values()}
        handlers[STREAM_PLACE.path] = grpc.stream_stream_rpc_method_handler(self._stream_place)
        methods = _Methods(handlers, self._gateway, self._connections)
        self._server.add_generic_rpc_handlers((methods, self._open_calls, _Unknown(self._gateway)))

    def _unary(self, rpc: Rpc) -> Callable[[Any, Context], Awaitable[bytes]]:
        """Served as a stream of one message: gRPC reads that of a unary call before its handler knows who asks."""
        gateway, connections = self._gateway, self._connections

        async def answer(requests: Any, context: Context) -> bytes:
            try:
                caller, trace = of_context(gateway, context), trace_of_context(gateway, context)
                with gateway.enter(rpc, caller, self._deadline_s(context), trace) as call:
                    connections.note_call(context.peer())
                    raw = await self._reader.read(context)
                    call.make_room(len(raw))
                    is_small = len(raw) <= ASIDE_BYTES
                    request = gateway.parsed_small(rpc, raw) if is_small else await gateway.parsed(rpc, raw)
                    response = await call.answer(request)
                    return response.SerializeToString()
            except PlacewiseError as error:
                failure = error
            except Exception as error:
                failure = unforeseen(error, rpc.name)
            return end_refused(context, failure)

        return answer

    def _deadline_s(self, context: Context) -> float:
        left_s = context.time_remaining()
        return math.inf if left_s is None else self._gateway.clock.monotonic_s() + left_s

    async def _stream_place(self, requests: Any, context: Context) -> None:
        """Questions are worked on side by side, `stream_pipeline` of them at most; answers go out in their order."""
        caller = of_context(self._gateway, context)
        try:
            with self._gateway.stream(STREAM_PLACE, caller):
                self._connections.note_call(context.peer())
                await self._answer_stream(requests, context, caller)
        except PlacewiseError as error:
            end_refused(context, error)

    async def _answer_stream(self, requests: Any, context: Context, caller: Credentials) -> None:
        slots = asyncio.Semaphore(self._gateway.limits.stream_pipeline)
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        async with asyncio.TaskGroup() as work:
            reader = work.create_task(self._read(requests, context, caller, slots, answers, work))
            self._streams.add(reader)
            reader.add_done_callback(self._streams.discard)
            while (task := await answers.get()) is not None:
                await write(context, await task)
                slots.release()
        if self._gateway.is_draining:
            end_refused(context, DrainingError())

    async def _read(
        self,
        requests: Any,
        context: Context,
        caller: Credentials,
        slots: asyncio.Semaphore,
        answers: "asyncio.Queue[asyncio.Task[bytes] | None]",
        work: asyncio.TaskGroup,
    ) -> None:
        try:
            await slots.acquire()
            async for raw in requests:
                answer = self._stream_answer(
                    raw, caller, self._deadline_s(context), trace_of_context(self._gateway, context)
                )
                answers.put_nowait(work.create_task(answer))
                await slots.acquire()
        finally:
            answers.put_nowait(None)

    async def _stream_answer(
        self, raw: bytes, caller: Credentials, deadline_s: float, trace: dict[str, str] | None
    ) -> bytes:
        gateway, request_id = self._gateway, ""
        try:
            with gateway.enter(STREAM_PLACE, caller, deadline_s, trace) as call:
                call.make_room(len(raw))
                request: Any = await gateway.parsed(STREAM_PLACE, raw)
                request_id = request.request_id
                response = await call.answer(request)
                return response.SerializeToString()
        except PlacewiseError as error:
            failure = error
        except Exception as error:
            failure = unforeseen(error, STREAM_PLACE.name)
        answer = decision_pb2.PlaceResponse(request_id=request_id, error=stream_error(failure))
        return answer.SerializeToString()


class _Calls(cygrpc.AioServer):  # type: ignore[misc]
    """gRPC's server inside its server, which drops the calls of strangers who sent too much, before it unpacks them.

    Not part of gRPC's interface, which asks nobody before it has made two objects of each field of metadata.
    """

    def __init__(self, connections: GrpcConnections, options: Sequence[tuple[str, int]]) -> None:
        self._on = asyncio.get_running_loop()
        super().__init__(self._on, None, (), (), options, None)
        self._connections = connections

    async def _request_call(self) -> Any:
        while True:
            call = await super()._request_call()
            if self._connections.admits(cygrpc._ServicerContext(call, None, None, self._on).peer()):
                return call


class _Methods(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Finds the handler of a call. A call with too much metadata gets a handler that refuses it."""

    def __init__(
        self,
        handlers: "Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]",
        gateway: Gateway,
        connections: GrpcConnections,
    ) -> None:
        self._handlers = handlers
        self._gateway = gateway
        self._connections = connections
        self._refusal = grpc.stream_unary_rpc_method_handler(self._refuse)
        self._fields = 0  # refused since the last collection
        self._collected_s = -math.inf

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        metadata = handler_call_details.invocation_metadata
        limit = self._gateway.limits.metadata_bytes
        # HTTP/2 counts at least 32 bytes for a field: of very many there is no need to look at each.
        if _FIELD_BYTES * len(metadata) <= limit and sum([len(key) + len(value) for key, value in metadata]) <= limit:
            return self._handlers.get(handler_call_details.method)
        self._fields += len(metadata)
        return self._refusal

    async def _refuse(self, requests: Any, context: Context) -> bytes:
        peer = context.peer()
        self._gateway.note_turned_away("grpc", "header_bytes", peer.partition(":")[2])
        self._connections.end_stranger(peer)
        self._free_refused()
        limit = self._gateway.limits.metadata_bytes
        return end_refused(context, InvalidRequestError(f"the metadata has more than {limit} bytes"))

    def _free_refused(self) -> None:
        """Frees refused metadata: gRPC leaves it in a cycle, which the collector would find late."""
        if self._fields < _FIELDS_KEPT:
            return
        now_s = asyncio.get_running_loop().time()
        if self._fields >= _FIELDS_GROWN_OLD and now_s >= self._collected_s + _FULL_COLLECTIONS_S:
            gc.collect()
            self._collected_s = now_s
        else:
            gc.collect(0)
        self._fields = 0


class _Unknown(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Asked last: answers a method that does not exist as gRPC does, and puts it on record."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        method = handler_call_details.method

        async def refuse(requests: Any, context: Context) -> None:
            self._gateway.record_refusal("grpc", "UNIMPLEMENTED", of_context(self._gateway, context), method)
            context.set_code(grpc.StatusCode.UNIMPLEMENTED)
            context.set_details("Method not found!")

        return grpc.stream_stream_rpc_method_handler(refuse)


def _services() -> Sequence[str]:
    return sorted({f"placewise.v1.{rpc.service}" for rpc in RPCS.values()})


def _is_no_gone_caller(record: logging.LogRecord) -> bool:
    """False for gRPC's log of an answer that it could not send, as its caller has gone."""
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


def _options(limits: LimitSettings, most: int, shares_port: bool) -> list[tuple[str, int]]:
    return [
        # Without this a second service on the same port would silently get half of the calls.
        ("grpc.so_reuseport", int(shares_port)),
        ("grpc.max_receive_message_length", _HARD_LIMIT_FACTOR * limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        # Our own limit is lower, and counted. Between the two gRPC refuses some calls, by chance. Neither binds a
        # client that does not acknowledge the settings: it is cut off soon.
        ("grpc.max_metadata_size", stranger_bytes(limits)),
        ("grpc.absolute_max_metadata_size", stranger_bytes(limits)),
        ("grpc.http2.settings_timeout", int(1000 * ACKNOWLEDGED_S)),
        ("grpc.max_allowed_incoming_connections", most + spare_connections(most)),
        # Keeps HTTP/2's window at 64 KiB until a call's message is read, which is after its caller is known.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", max(limits.in_flight, limits.stream_pipeline)),
        ("grpc.server_handshake_timeout_ms", int(1000 * (limits.handshake_s + LENIENCE_S))),
        ("grpc.max_connection_idle_ms", int(1000 * limits.idle_s)),
        # Schedulers keep idle connections alive; gRPC would cut off a client that pings without calls.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        # A peer that is gone without a word is found out.
        ("grpc.keepalive_time_ms", _PING_PERIOD_MS),
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_MS),
    ]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
