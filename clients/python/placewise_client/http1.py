"""HTTP/1.1 over TCP, TLS or a unix socket, by aiohttp. Knows no proxy, follows no redirect, keeps no cookie.

It uses aiohttp's connector and its parser, not its session: an adapter asks a few times a second, its code has left the
processor's caches by then, and the session's code costs such a call a quarter of a millisecond.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import aiohttp
from aiohttp.http import HttpProcessingError
from yarl import URL

_SWITCHING_PROTOCOLS = 101


@lru_cache(256)  # the same few calls come again and again
def _target(path: str) -> str:
    """The path and its query, as the first line of a request may carry them."""
    return URL(f"http://localhost{path}").raw_path_qs


class HttpError(OSError):
    """The exchange broke, or the answer is no HTTP; the server may have carried out the request."""


class NotConnectedError(HttpError):
    """No connection could be made: nothing of the request has been sent."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers (names in lower case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _CleanConnector(aiohttp.BaseConnector):
    """Drops a kept connection that received bytes while idle: they would pass for the next answer."""

    async def connect(self, *args: Any, **kwargs: Any) -> aiohttp.connector.Connection:
        while True:
            connection = await super().connect(*args, **kwargs)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class _TcpConnector(_CleanConnector, aiohttp.TCPConnector):
    pass


class _UnixConnector(_CleanConnector, aiohttp.UnixConnector):
    pass


@dataclass(slots=True)
class HttpPool:
    """Connections to one server. `address` is "unix:/path" or "host:port". Each concurrent request has its own.

    An idle connection is kept for `idle_s`, which should be less than the server keeps it. A connection that is not
    made within `connect_s` counts as refused: a machine that is off never answers.
    """

    address: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    idle_s: float = 30.0
    connect_s: float = 2.0
    _connector: aiohttp.BaseConnector | None = field(default=None, init=False)
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
        if self._connector is not None:
            await self._connector.close()

    async def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> HttpAnswer:
        connection = await self._connected()
        try:
            protocol = connection.protocol
            assert protocol is not None  # until it is closed or released
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            if protocol.transport is None:
                raise aiohttp.ServerDisconnectedError
            protocol.transport.write(self._head(method, path, headers, body) + (body or b""))
            message, content = await protocol.read()
            while 100 <= message.code < 200 and message.code != _SWITCHING_PROTOCOLS:
                message, content = await protocol.read()
            answer = await content.read()
        except BaseException:
            connection.close()
            raise
        connection.release()
        return HttpAnswer(message.code, {name.lower(): value for name, value in message.headers.items()}, answer)

    async def _connected(self) -> aiohttp.connector.Connection:
        """A kept connection that is quiet, or a new one."""
        connector = self._connector or self._opened()
        try:
            return await connector.connect(self._route, [], self._timeout)
        except TimeoutError as error:
            raise NotConnectedError(f"{self.address}: no connection within {self.connect_s:g} s") from error

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
            self._connector = _UnixConnector(path, limit=0, keepalive_timeout=self.idle_s)
        else:
            self._connector = _TcpConnector(
                limit=0, keepalive_timeout=self.idle_s, ssl=self.tls or True, use_dns_cache=False
            )
        self._timeout = aiohttp.ClientTimeout(total=None, connect=self.connect_s)
        self._route = aiohttp.ClientRequest(
            "GET",
            URL(f"{'https' if self.tls else 'http'}://{host}"),
            loop=asyncio.get_running_loop(),
            ssl=self.tls or True,
            server_hostname=self.server_name or None,
        )
        return self._connector
