"""Accepts HTTP connections within limits of number and time, and serves an ASGI application on them with uvicorn.

Replaces uvicorn's own server, which accepts without end. At the limit on connections, the one that has waited longest
for a request makes room: a caller with a request gets in, even if others hold many silent sockets.
"""

import asyncio
import contextlib
import resource
import socket
import ssl
from email.utils import formatdate
from functools import partial

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from placewise_service.api.faces.http_connection import Crowd, HttpConnection, Refused, address
from placewise_service.settings import LimitSettings

log = structlog.get_logger(__name__)

_BACKLOG = 2048
_MOST, _FEWEST = 1000, 8
_RESERVED_FILES = 128  # for Redis, logs, bundles, and connections accepted only to be closed
_MOST_AT_ONCE = 64  # connections accepted before others get their turn of the loop
_SWEEP_S = 0.5
_PAUSE_S = 0.1  # if the system has no more descriptors
_STOP_S = 2.0


def connection_limit(wanted: int) -> int:
    """Connections that one face may have: those wanted (0: a thousand), as far as the limit on open files goes.

    Each face gets half of the unreserved descriptors, so that neither takes the other's, nor those of Redis.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(_FEWEST, (files - _RESERVED_FILES) // 2)
    if wanted > room:
        log.warning("fewer connections than wanted: the limit on open files is too low", wanted=wanted, allowed=room)
    return min(wanted or _MOST, room)


def bound_socket(host: str, port: int, shares_port: bool) -> socket.socket:
    """A TCP socket bound to an address. Raises OSError naming the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=shares_port)
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {host}:{port}: {error.strerror}") from None


class Listener:
    """Serves `app` on a bound socket. Each refusal calls `refused` with the limit and the peer's address."""

    def __init__(
        self,
        bound: socket.socket,
        app: ASGIApp,
        limits: LimitSettings,
        connections: int,
        refused: Refused,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._socket = bound
        self._limits = limits
        self._most = connections
        self._refused = refused
        self._context = context
        # uvicorn's own timer of idle connections comes after ours.
        self._config = uvicorn.Config(
            app, lifespan="off", http="httptools", ws="none", timeout_keep_alive=int(2 * limits.idle_s) + 1,
            log_config=None, access_log=False, proxy_headers=False,
        )  # fmt: skip
        self._config.load()
        self._state = ServerState()
        self._handshakes: dict[asyncio.Task[None], str] = {}  # and whose they are
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        loop = asyncio.get_running_loop()
        self._crowd = Crowd(self._limits, self._refused, loop.time)
        self._socket.setblocking(False)
        self._sweep()
        loop.add_reader(self._socket.fileno(), self._accept)

    async def stop(self) -> None:
        """Accepts no more, closes idle connections, and waits a little for the others."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for task in list(self._handshakes):
            task.cancel()
        for connection in self._connections():
            if connection.is_over:
                connection.evict()
            else:
                connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                while self._state.connections or self._state.tasks or self._handshakes:  # noqa: ASYNC110 - uvicorn tells nobody
                    await asyncio.sleep(0.01)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self._connections():
            connection.evict()
        await asyncio.sleep(0)  # for the last of them to be closed

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if self._has_room_soon():
                return  # waiting connections stay in the kernel's queue until the next turn
            try:
                accepted, whence = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no more descriptors: asking again at once would keep the loop busy
                self._refused("descriptors", "")
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
                asyncio.get_running_loop().call_later(_PAUSE_S, self._accept_again)
                return
            peer = address(whence)
            if self._is_full() and not self._make_room():
                self._refused("connections", peer)
                accepted.close()
                continue
            task = asyncio.get_running_loop().create_task(self._welcome(accepted))
            self._handshakes[task] = peer
            task.add_done_callback(partial(self._end_welcome, accepted))

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _is_full(self) -> bool:
        return len(self._state.connections) + len(self._handshakes) >= self._most

    def _has_room_soon(self) -> bool:
        """Whether nobody is idle who could make room, but somebody will be in a turn or two: without TLS, all who were
        accepted a moment ago."""
        return self._context is None and bool(self._handshakes) and not self._crowd.idle and self._is_full()

    def _make_room(self) -> bool:
        """Closes the connection that has been idle longest; False if all are being answered."""
        for connection in self._crowd.idle:
            self._refused("connections", connection.peer)
            connection.evict()
            return True
        for task, peer in self._handshakes.items():
            if not task.cancelling() and task.cancel():  # one that was ended before makes no room for another
                self._refused("connections", peer)
                return True
        return False

    async def _welcome(self, accepted: socket.socket) -> None:
        limit_s = self._limits.handshake_s if self._context is not None else None
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            self._connection, accepted, ssl=self._context, ssl_handshake_timeout=limit_s
        )

    def _end_welcome(self, accepted: socket.socket, task: "asyncio.Task[None]") -> None:
        peer = self._handshakes.pop(task)
        if task.cancelled():
            accepted.close()
        elif task.exception() is not None:  # mostly of ssl, or of a peer that has left
            self._refused("handshake", peer)
            accepted.close()

    def _connection(self) -> HttpConnection:
        return HttpConnection(self._config, self._state, self._crowd)

    def _connections(self) -> list[HttpConnection]:
        return [connection for connection in self._state.connections if isinstance(connection, HttpConnection)]

    def _sweep(self) -> None:
        """Ends the phases whose time is up, and renews the date that uvicorn sends."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in self._connections():
            if connection.due_s <= now_s:
                connection.on_due()
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
