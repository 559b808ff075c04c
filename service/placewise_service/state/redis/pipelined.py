"""One connection to one Redis server, for scripts: a command is one write and one future, answers come in order.

Every decision runs a script. For each command redis-py's client takes a connection out of its pool, wraps it in timers
and a retry, and reads through a stream: a tenth of the time a decision takes. Here the commands of all callers share
one connection (Redis works on one at a time anyway), and everything else is left out.

redis-py still makes the connection (addresses, TLS, credentials, the master that the Sentinels name); this then
takes over its transport. It connects at the first command and again after a loss, and never repeats a command by
itself. Redis Cluster, whose commands may have to go to another node, stays with redis-py.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis import exceptions as redis_errors
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection

from placewise_service.aside import aside
from placewise_service.background import cancel_and_wait
from placewise_service.state.redis.connection import WHOLE
from placewise_service.state.redis.scripts import Argument

# Errors by the first word of a reply; the text itself is for errors.py.
_ERRORS: dict[str, type[redis_errors.RedisError]] = {
    "LOADING": redis_errors.BusyLoadingError,
    "NOAUTH": redis_errors.AuthenticationError,
    "NOPERM": redis_errors.NoPermissionError,
    "NOSCRIPT": redis_errors.NoScriptError,
    "OOM": redis_errors.OutOfMemoryError,
    "READONLY": redis_errors.ReadOnlyError,
}
_INCOMPLETE = object()
_PIECE = 1024  # arguments that are packed in one go, of a millisecond

_pack: Callable[[tuple[Argument, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # its stub knows one argument


class PipelinedConnection:
    """Commands to the server of a pool. At most `width` are under way: the others wait their turn. No command takes
    longer than WHOLE time limits, with all its waits."""

    def __init__(self, pool: ConnectionPool, timeout_s: float, width: int) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._free = width
        self._queue: deque[asyncio.Future[None]] = deque()  # who waits to be handed a place
        self._attempt: asyncio.Task[_OpenConnection] | None = None  # to connect: one for all who wait
        self._open_connection: _OpenConnection | None = None

    def send(self, *args: Argument) -> asyncio.Future[Any] | None:
        """Writes the command at once and returns the future of its answer, as execute_command gives it; None, and
        nothing is written, if the command is large or has to wait for its turn or for a connection."""
        open_connection = self._open_connection
        if self._free <= 0 or open_connection is None or open_connection.is_lost or len(args) > _PIECE:
            return None
        self._free -= 1
        return open_connection.send(_pack(args))

    async def execute_command(self, *args: Argument) -> Any:
        """The server's answer. Raises RedisError or OSError; the command may have been carried out all the same."""
        sent = self.send(*args)
        if sent is not None:
            return await sent
        return await self._waited(_pack(args) if len(args) <= _PIECE else await aside(_packed_in_pieces, args))

    async def _waited(self, packed: bytes) -> Any:
        """As execute_command, for who has to wait for a place or a connection: all of it within one limit."""
        try:
            async with asyncio.timeout(WHOLE * self._timeout_s):
                if self._free > 0:
                    self._free -= 1
                else:
                    await self._turn()
                try:
                    open_connection = await self._connected()
                except BaseException:
                    self._leave()
                    raise
                return await open_connection.send(packed)
        except TimeoutError:
            raise redis_errors.TimeoutError("no answer") from None

    async def _turn(self) -> None:
        """Waits for the place of a command that is done; first come, first served."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # handed over to a caller that has gone
                self._leave()
            raise

    def _leave(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1

    async def close(self) -> None:
        """Ends the connection. Idempotent; a later command connects again."""
        await cancel_and_wait((self._attempt,))
        await self._close_connection()

    async def _close_connection(self) -> None:
        open_connection, self._open_connection = self._open_connection, None
        if open_connection is not None:
            await open_connection.close()

    async def _connected(self) -> "_OpenConnection":
        """The connection. Callers that need one while an attempt is under way share it, and its failure."""
        if self._open_connection is not None and not self._open_connection.is_lost:
            return self._open_connection
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect(), name="connect to redis")
            self._attempt.add_done_callback(self._end_attempt)
        return await asyncio.shield(self._attempt)

    def _end_attempt(self, attempt: "asyncio.Task[_OpenConnection]") -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # looked at, should everybody who waited for it have left

    async def _connect(self) -> "_OpenConnection":
        await self._close_connection()
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            # One limit for the whole connect: addresses, Sentinels, TLS, credentials.
            async with asyncio.timeout(self._timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]
        except (asyncio.CancelledError, TimeoutError):  # redis-py cleans up after any other error
            await connection.disconnect(nowait=True)
            raise
        self._open_connection = _OpenConnection(connection, self._timeout_s, self._leave)
        return self._open_connection


def _packed_in_pieces(args: tuple[Argument, ...]) -> bytes:
    """As _pack, for a thread: one call of hiredis lets no other thread go on before all is packed."""
    parts = [b"*%d\r\n" % len(args)]
    for at in range(0, len(args), _PIECE):
        parts.append(_pack(args[at : at + _PIECE]).partition(b"\r\n")[2])
    return b"".join(parts)


class _OpenConnection(asyncio.Protocol):
    """One connection, from when it is let in until it is lost."""

    def __init__(self, connection: AbstractConnection, timeout_s: float, on_answer: Callable[[], None]) -> None:
        """`on_answer` is called for each command that is no longer under way."""
        writer = connection._writer  # private: redis-py has no other way to its transport
        assert writer is not None
        self.is_lost = False
        self._connection = connection
        self._timeout_s = timeout_s
        self._on_answer = on_answer
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_error, notEnoughData=_INCOMPLETE)
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()  # in order; and since when, by the loop
        self._watch: asyncio.TimerHandle | None = None
        self._transport = writer.transport
        self._transport.set_protocol(self)

    def send(self, packed: bytes) -> asyncio.Future[Any]:
        """Writes a command at once; the future has its answer."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((answer, self._loop.time()))
        self._transport.write(packed)
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._check_time)
        return answer

    async def close(self) -> None:
        """Ends the connection. Idempotent."""
        self._lose(redis_errors.ConnectionError("closed"))
        await self._connection.disconnect(nowait=True)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._take(reply)
        except (hiredis.HiredisError, IndexError):  # no Redis, or an answer that nobody asked for
            self._lose(redis_errors.InvalidResponse("not an answer"))

    def _take(self, reply: Any) -> None:
        answer, _ = self._waiting.popleft()
        self._on_answer()
        if answer.done():  # its caller has gone
            return
        if isinstance(reply, Exception):
            answer.set_exception(reply)
        else:
            answer.set_result(reply)
        if isinstance(reply, redis_errors.ReadOnlyError):  # no master any more: who is, is asked when connecting
            self._lose(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(redis_errors.ConnectionError("lost"))

    def _check_time(self) -> None:
        """One timer for all: it looks at the longest wait, and again when that one's time is up."""
        self._watch = None
        if not self._waiting:
            return
        left_s = self._waiting[0][1] + self._timeout_s - self._loop.time()
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._check_time)
        else:
            self._lose(redis_errors.TimeoutError("no answer"))

    def _lose(self, reason: Exception) -> None:
        """Ends the connection; every caller that waits for an answer gets the reason."""
        self.is_lost = True
        self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        while self._waiting:
            answer, _ = self._waiting.popleft()
            self._on_answer()
            if not answer.done():
                answer.set_exception(reason)


def _error(text: str) -> redis_errors.RedisError:
    return _ERRORS.get(text.partition(" ")[0], redis_errors.ResponseError)(text)
