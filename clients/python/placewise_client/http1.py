"""HTTP/1.1 over TCP, TLS or a unix socket, by aiohttp. Knows no proxy, follows no redirect, keeps no cookie."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import aiohttp
from yarl import URL

_url = lru_cache(256)(URL)  # the same few calls come again and again
_NOTHING_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


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
    _session: aiohttp.ClientSession | None = field(default=None, init=False)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        is_repeatable: bool = False,
    ) -> HttpAnswer:
        """One exchange; without a time limit of its own.

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
                if not is_repeatable or isinstance(error, aiohttp.ClientConnectorError):
                    raise
                return await self._exchange(method, path, headers, body)
        except aiohttp.ClientConnectorError as error:
            raise NotConnectedError(f"{self.address}: {error.__cause__ or error}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise NotConnectedError(f"{self.address}: no connection within {self.connect_s:g} s") from error
        except aiohttp.ClientError as error:
            raise HttpError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Closes every connection, and ends the requests under way."""
        if self._session is not None:
            await self._session.close()

    async def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> HttpAnswer:
        url = _url(f"{'https' if self.tls else 'http'}://{self._host}{path}")
        name = self.server_name or None
        response = await self._opened().request(
            method, url, headers=headers, data=body, server_hostname=name, allow_redirects=False
        )
        content = await response.read()  # gives the connection back, or closes it if reading is broken off
        return HttpAnswer(response.status, {name.lower(): value for name, value in response.headers.items()}, content)

    @property
    def _host(self) -> str:
        return "localhost" if self.address.startswith("unix:") else self.address

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made with the first request: it belongs to the event loop that runs then."""
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self.address.startswith("unix:"):
                connector = _UnixConnector(self.address.removeprefix("unix:"), limit=0, keepalive_timeout=self.idle_s)
            else:
                connector = _TcpConnector(
                    limit=0, keepalive_timeout=self.idle_s, ssl=self.tls or True, use_dns_cache=False
                )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=self.connect_s),
                skip_auto_headers=_NOTHING_ADDED,
                auto_decompress=False,
            )
        return self._session
