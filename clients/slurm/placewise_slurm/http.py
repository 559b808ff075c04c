"""A small HTTP/1.1 client for slurmrestd: unix socket or TCP, kept-alive connections, JSON. Standard library only.

slurmrestd serves one request per connection at a time, so every request that runs beside another has a connection of
its own. It never retries: what a failed request has done is for the caller to look up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_MOST_IDLE = 8
_LIMIT_BYTES = 1 << 20


class TransportError(Exception):
    """slurmrestd could not be reached, did not answer in time or did not speak HTTP with JSON."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        self.writer.close()


@dataclass(slots=True)
class JsonHttp:
    """`address` is "unix:/path" or "host:port". `headers` is asked at each request, so that a token may be rotated.

    No more than `at_once` requests are under way; the others wait for their turn, which does not count as waiting for
    an answer.
    """

    address: str
    headers: Callable[[], Mapping[str, str]] = dict
    timeout_s: float = 5.0
    at_once: int = _MOST_IDLE
    _gate: asyncio.Semaphore = field(init=False)
    _idle: list[_Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.at_once)

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed JSON answer, whatever its HTTP status: slurmrestd puts its errors there. Raises TransportError."""
        try:
            async with self._gate, asyncio.timeout(self.timeout_s):
                return await self._request(method, path, body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise TransportError(f"{method} {path} at {self.address}: {error or type(error).__name__}") from error

    async def close(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            with suppress(ConnectionError):
                await connection.writer.wait_closed()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        message = self._message(method, path, body)
        connection = self._idle.pop() if self._idle else None
        if connection is not None:
            # The server may have closed it while it was idle, before it read anything of this request.
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                return await self._exchange(connection, message)
            connection.close()
        return await self._exchange(await self._connect(), message)

    async def _connect(self) -> _Connection:
        if self.address.startswith("unix:"):
            return _Connection(*await asyncio.open_unix_connection(self.address[5:], limit=_LIMIT_BYTES))
        host, _, port = self.address.rpartition(":")
        return _Connection(*await asyncio.open_connection(host.strip("[]"), int(port), limit=_LIMIT_BYTES))

    def _message(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Accept: application/json", "Connection: keep-alive"]
        lines += [f"{name}: {value}" for name, value in self.headers().items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        return "\r\n".join([*lines, "", ""]).encode() + payload

    async def _exchange(self, connection: _Connection, message: bytes) -> Any:
        try:
            connection.writer.write(message)
            await connection.writer.drain()
            payload, is_reusable = await _read(connection.reader)
        except BaseException:
            connection.close()
            raise
        if is_reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return json.loads(payload)


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Body of one response, and whether the connection can carry another."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *lines = head.split("\r\n")
    if not status.startswith("HTTP/1."):
        raise ValueError(f"not an HTTP answer: {status[:80]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    is_reusable = headers.get("connection", "").lower() != "close" and not status.startswith("HTTP/1.0")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader), is_reusable
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"])), is_reusable
    return await reader.read(), False


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
