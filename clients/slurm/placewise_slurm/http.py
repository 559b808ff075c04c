"""JSON over HTTP/1.1 for slurmrestd, by the SDK's client.

slurmrestd serves one request per connection at a time. A request whose connection breaks is sent once more; if
that fails, the caller has to look up the result.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placewise_client.http1 import HttpPool

_MOST_AT_ONCE = 8


class TransportError(Exception):
    """slurmrestd could not be reached, did not answer in time or did not speak HTTP with JSON."""


@dataclass(slots=True)
class JsonHttp:
    """`address` is "unix:/path" or "host:port". `headers` is asked at each request, so that a token may be rotated.

    No more than `at_once` requests are under way; the others wait for their turn, which does not count as waiting for
    an answer.
    """

    address: str
    headers: Callable[[], Mapping[str, str]] = dict
    tls: ssl.SSLContext | None = None
    timeout_s: float = 5.0
    at_once: int = _MOST_AT_ONCE
    _gate: asyncio.Semaphore = field(init=False)
    _pool: HttpPool = field(init=False)

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.at_once)
        self._pool = HttpPool(self.address, self.tls)

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed JSON answer of any HTTP status: slurmrestd puts its errors there. Raises TransportError."""
        try:
            async with self._gate, asyncio.timeout(self.timeout_s):
                return await self._request(method, path, body)
        except (OSError, ValueError) as error:
            raise TransportError(f"{method} {path} at {self.address}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        await self._pool.close()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": "application/json", **self.headers()}
        payload = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            payload = json.dumps(body).encode()
        answer = await self._pool.request(method, path, headers, payload, is_repeatable=True)
        return json.loads(answer.body)
