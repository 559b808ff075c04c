"""HTTP/1.1 over TCP, TLS or a unix socket, by aiohttp. Knows no proxy, follows no redirect, keeps no cookie.

It uses aiohttp's connector and its parser, but not its session, and keeps idle connections itself: an adapter asks a
few times a second, its code has left the processor's caches by then, and the session's code costs such a call a quarter
of a millisecond.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from yarl import URL

_SWITCHING_PROTOCOLS = 101
# The head of an answer that closes the connection, with the length of its body.
_LAST_HEAD = re.compile(
    rb"HTTP/1\.[01] [^\r]*\r\n(?=(?:[^\r]+\r\n)*connection: *close\r\n)(?=(?:[^\r]+\r\n)*content-length: *(\d+)\r\n)"
    rb"(?:[^\r]+\r\n)+\r\n",
    re.IGNORECASE,
)


@lru_cache(256)  # the same few calls come again and again
def _target(path: str) -> str:
    """The path and its query, as the first line of a request may carry them."""
    return URL(f"http://localhost{path}").raw_path_qs


class HttpError(OSError):
    """The exchange broke, or the answer is no HTTP; the server may have carried out the request."""


class NotConnectedError(HttpError):
    """No connection could be made: nothing of the request has been sent."""


class HttpAnswer(NamedTuple):
    """Status, headers (names in any case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class HttpPool:
    """Connections to one server. `address` is "unix:/path" or "host:port". Each concurrent request has its own.

    An idle connection is kept for `idle_s`, which should be less than the server keeps it. A connection that is not
    made within `connect_s` counts as refused: a machine that is off never answers. `drops_surplus`: what a server sends
    behind an answer that closes the connection is dropped, and otherwise makes the answer unreadable.
    """

    address: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    idle_s: float = 30.0
    connect_s: float = 2.0
    drops_surplus: bool = False
    _connector: aiohttp.BaseConnector | None = field(default=None, init=False)
    _idle: deque[tuple[Connection, float]] = field(default_factory=deque, init=False)  # and since when
    _ending: asyncio.TimerHandle | None = field(default=None, init=False)
    _route: aiohttp.ClientRequest = field(init=False)  # names the server to the connector
    _timeout: aiohttp.ClientTimeout = field(init=False)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        is_repeatable: bool = False,
    ) -> HttpAnswer:
        """One exchange; without a time limit of its own. `method` is any but HEAD.

        If the connection breaks, a GET is sent once more, and so is any request that `is_repeatable`.

        Raises:
            NotConnectedError: nothing was sent.
            HttpError: the connection broke; the request may have been carried out.
            ValueError: a header cannot be sent.
        """
        try:
            try:
                return await self._exchange(method, path, headers, body)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
                is_repeated = is_repeatable or method == "GET"
                if not is_repeated or isinstance(error, aiohttp.ClientConnectorError):
                    raise
                return await self._exchange(method, path, headers, body)
        except aiohttp.ClientConnectorError as error:
            raise NotConnectedError(f"{self.address}: {error.__cause__ or error}") from error
        except (aiohttp.ClientError, HttpProcessingError) as error:
            raise HttpError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Closes every connection, and ends the requests under way."""
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        while self._idle:
            self._idle.pop()[0].release()  # the connector waits until they are closed
        if self._connector is not None:
            await self._connector.close()

    async def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> HttpAnswer:
        connection = await self._connected()
        try:
            protocol = connection.protocol
            assert protocol is not None  # until it is closed or released
            if protocol.transport is None:
                raise aiohttp.ServerDisconnectedError
            protocol.transport.write(self._head(method, path, headers, body) + (body or b""))
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
                message, content = await protocol.read()
            answer = content.read_nowait() if content.is_eof() else await content.read()
        except BaseException:
            connection.close()
            raise
        if message.should_close or message.upgrade:
            connection.close()
        else:
            self._keep(connection)
        return HttpAnswer(message.code, message.headers, answer)

    async def _connected(self) -> Connection:
        """The kept connection that was used last, or a new one."""
        while self._idle:
            connection, since_s = self._idle.pop()
            if time.monotonic() - since_s < self.idle_s and _is_quiet(connection):
                return connection
            connection.close()
        connector = self._connector or self._opened()
        try:
            connection = await connector.connect(self._route, [], self._timeout)
        except TimeoutError as error:
            raise NotConnectedError(f"{self.address}: no connection within {self.connect_s:g} s") from error
        if connection.protocol is not None:  # its parser serves all of its answers
            connection.protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            if self.drops_surplus and connection.transport is not None:
                connection.transport.set_protocol(_LastAnswer(connection.protocol))
        return connection

    def _keep(self, connection: Connection) -> None:
        """For another request, unless that finds it unfit."""
        self._idle.append((connection, time.monotonic()))
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(self.idle_s, self._end_idle)

    def _end_idle(self) -> None:
        """Closes those that were idle for long."""
        self._ending, now_s = None, time.monotonic()
        while self._idle and now_s - self._idle[0][1] >= self.idle_s:
            self._idle.popleft()[0].close()
        if self._idle:
            left_s = self.idle_s - (now_s - self._idle[0][1])
            self._ending = asyncio.get_running_loop().call_later(left_s, self._end_idle)

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """The request's lines up to its body. Raises ValueError if a header would end its own line."""
        lines = [f"{method} {_target(path)} HTTP/1.1", f"Host: {self._route.headers['Host']}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        text = "\r\n".join(lines)
        if text.count("\n") >= len(lines) or text.count("\r") >= len(lines) or "\0" in text:
            raise ValueError("a header holds the end of a line, or a zero byte")
        return f"{text}\r\n\r\n".encode()

    def _opened(self) -> aiohttp.BaseConnector:
        """The connector, made with the first request: it belongs to the event loop that runs then."""
        host = self.address
        if host.startswith("unix:"):
            path, host = host.removeprefix("unix:"), "localhost"
            self._connector = aiohttp.UnixConnector(path, limit=0)
        else:
            self._connector = aiohttp.TCPConnector(limit=0, ssl=self.tls or True, use_dns_cache=False)
        self._timeout = aiohttp.ClientTimeout(total=None, connect=self.connect_s)
        self._route = aiohttp.ClientRequest(
            "GET",
            URL(f"{'https' if self.tls else 'http'}://{host}"),
            loop=asyncio.get_running_loop(),
            ssl=self.tls or True,
            server_hostname=self.server_name or None,
        )
        return self._connector


class _LastAnswer(asyncio.Protocol):
    """Passes on what aiohttp's protocol is to see: nothing behind the answer that closes the connection."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._begun = b""  # of an answer whose head is not complete
        self._left: int | None = None  # bytes of the last answer, once it has begun
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        data, self._begun = self._begun + data, b""
        if self._left is None and data.startswith(b"HTTP/1.") and b"\r\n\r\n" not in data:
            self._begun = data
            return
        if self._left is None and (head := _LAST_HEAD.match(data)) is not None:
            self._left = head.end() + int(head[1])
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if data:
            self._inner.data_received(data)


def _is_quiet(connection: Connection) -> bool:
    """True while it stands and nothing has come since its last answer: that would pass for the next one."""
    protocol = connection.protocol
    return protocol is not None and protocol.is_connected() and not protocol.should_close
