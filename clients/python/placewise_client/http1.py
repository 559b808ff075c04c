"""A small HTTP/1.1 client: TCP, TLS or a unix socket, connections that are kept. Standard library only.

A connection carries one request at a time, so every request that runs beside another has one of its own. What
a failed request has done is for the caller to look up.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

_LIMIT_BYTES = 1 << 20
_CONTINUE = 100
_WITHOUT_BODY = (204, 304)


class NotConnectedError(OSError):
    """No connection could be had: nothing of the request has been sent."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers (names in lower case) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since_s: float = 0.0

    def close(self) -> None:
        self.writer.close()


@dataclass(slots=True)
class HttpPool:
    """Connections to one server. `address` is "unix:/path" or "host:port".

    An idle connection is kept for `idle_s`, which should be less than the server keeps it. One that is not made within
    `connect_s` is none: a machine that is off says nothing.
    """

    address: str
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    idle_s: float = 30.0
    most_idle: int = 8
    connect_s: float = 2.0
    clock: Callable[[], float] = time.monotonic
    _idle: list[_Connection] = field(default_factory=list)
    _is_closed: bool = False

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        is_repeatable: bool = False,
    ) -> HttpAnswer:
        """One exchange; without a time limit of its own.

        `is_repeatable`: it is sent again over a new connection where a kept one breaks, although the server may have
        carried it out.

        Raises:
            NotConnectedError: nothing was sent.
            OSError, asyncio.IncompleteReadError: the connection broke; the request may have been carried out.
            ValueError, asyncio.LimitOverrunError: the answer is no HTTP.
        """
        message = _head(method, path, self.host, headers, body) + (body or b"")
        kept = self._kept()
        if kept is not None and is_repeatable:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                return await self._exchange(kept, message)
            kept = None
        return await self._exchange(kept or await self._connect(), message)

    async def _exchange(self, connection: _Connection, message: bytes) -> HttpAnswer:
        try:
            connection.writer.write(message)
            answer, is_reusable = await _read(connection.reader)
        except BaseException:
            connection.close()
            raise
        if is_reusable and not self._is_closed and len(self._idle) < self.most_idle:
            connection.idle_since_s = self.clock()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def close(self) -> None:
        """Closes what is idle now, and what is busy as soon as it has its answer."""
        self._is_closed = True
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            with suppress(OSError):  # also of TLS, and where the other side says nothing to the end of it
                await connection.writer.wait_closed()

    @property
    def host(self) -> str:
        """What the Host header says."""
        return "localhost" if self.address.startswith("unix:") else self.address

    def _kept(self) -> _Connection | None:
        """An idle connection on which nothing has happened since, the one used last."""
        now_s = self.clock()
        while self._idle and now_s - self._idle[0].idle_since_s > self.idle_s:
            self._idle.pop(0).close()  # those that were needed at a busy time, too
        while self._idle:
            connection = self._idle.pop()
            if not connection.writer.is_closing() and _is_quiet(connection.reader):
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self.connect_s):
                return _Connection(*await self._open())
        except OSError as error:
            raise NotConnectedError(f"{self.address}: {str(error) or type(error).__name__}") from error

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.startswith("unix:"):
            return await asyncio.open_unix_connection(self.address[5:], limit=_LIMIT_BYTES)
        host, _, port = self.address.rpartition(":")
        name = (self.server_name or None) if self.tls else None
        return await asyncio.open_connection(
            host.strip("[]"), int(port), limit=_LIMIT_BYTES, ssl=self.tls, server_hostname=name
        )


def _head(method: str, path: str, host: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _is_quiet(reader: asyncio.StreamReader) -> bool:
    """Whether nothing is there to read: no end, no error, and no bytes that would pass for the next answer."""
    reading = reader.read(1)
    try:
        reading.send(None)
    except (StopIteration, OSError):
        return False
    reading.close()
    return True


async def _read(reader: asyncio.StreamReader) -> tuple[HttpAnswer, bool]:
    """One response, and whether the connection can carry another."""
    code = _CONTINUE
    while code < 200:  # what comes before the answer
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
        version, _, rest = head.partition(" ")
        status, *lines = rest.split("\r\n")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"not an HTTP answer: {head[:80]!r}")
        code = int(status[:3])
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    is_reusable = headers.get("connection", "").lower() != "close" and version != "HTTP/1.0"
    if code in _WITHOUT_BODY:
        body = b""
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body, is_reusable = await reader.read(), False
    return HttpAnswer(code, headers, body), is_reusable


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass
    return b"".join(parts)
