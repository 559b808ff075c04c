"""JSON over HTTP/1.1 for slurmrestd, by the SDK's client.

slurmrestd serves one request per connection at a time. A request whose connection breaks is sent once more; if
that fails, the caller has to look up the result.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placewise_client.http1 import HttpPool

log = logging.getLogger(__name__)

MOST_AT_ONCE = 8
# After so many answers in a row one more request may be under way again.
_ANSWERS_PER_TURN = 50
_NOT_MODIFIED = 304


class TransportError(Exception):
    """slurmrestd could not be reached, did not answer in time or did not speak HTTP with JSON."""


class NoJsonError(TransportError):
    """The answer is no JSON: a proxy's own, most likely. `status` is its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Turns:
    """Lets requests through: `most` side by side, half as many after one without an answer, slowly `most` again."""

    most: int
    at_once: int = field(init=False)
    _free: asyncio.Semaphore = field(init=False)
    _excess: int = 0
    """Turns that are not given back as they end."""
    _lowered: int = 0
    _answered: int = 0

    def __post_init__(self) -> None:
        self.at_once = self.most
        self._free = asyncio.Semaphore(self.most)

    async def take(self) -> int:
        """Waits for a turn; returns a mark for `lower`."""
        await self._free.acquire()
        return self._lowered

    def give_back(self) -> None:
        if self._excess:
            self._excess -= 1
        else:
            self._free.release()

    async def lower(self, mark: int) -> bool:
        """A request got no answer. True if fewer are let through from now on: those lost together count once."""
        self._answered = 0
        if mark != self._lowered or self.at_once == 1:
            return False
        self._lowered += 1
        self._excess += self.at_once - self.at_once // 2
        self.at_once //= 2
        while self._excess and not self._free.locked():
            await self._free.acquire()  # a free turn: this does not wait
            self._excess -= 1
        return True

    def note_answer(self) -> None:
        self._answered += 1
        if self._answered >= _ANSWERS_PER_TURN and self.at_once < self.most:
            self._answered = 0
            self.at_once += 1
            self.give_back()


@dataclass(slots=True)
class JsonHttp:
    """`address` is "unix:/path" or "host:port". `headers` is asked at each request, so that a token may be rotated.

    No more than `at_once` requests are under way, and fewer after some got no answer; the others wait for their turn,
    which does not count as waiting for an answer.
    """

    address: str
    headers: Callable[[], Mapping[str, str]] = dict
    tls: ssl.SSLContext | None = None
    timeout_s: float = 5.0
    at_once: int = MOST_AT_ONCE
    _turns: _Turns = field(init=False)
    _pool: HttpPool = field(init=False)

    def __post_init__(self) -> None:
        self._turns = _Turns(self.at_once)
        # slurmrestd 26.05 sends each error twice, and closes the connection.
        self._pool = HttpPool(self.address, self.tls, drops_surplus=True)

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed JSON answer of any HTTP status: slurmrestd puts its errors there. None for 304, not modified.

        Raises TransportError.
        """
        mark = await self._turns.take()
        try:
            async with asyncio.timeout(self.timeout_s):
                answer = await self._request(method, path, body)
            self._turns.note_answer()
            return answer
        except TimeoutError as error:
            if await self._turns.lower(mark):
                log.warning("slurmrestd left a request unanswered: at most %d at once from now on", self._turns.at_once)
            raise TransportError(f"{method} {path} at {self.address}: no answer in {self.timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            raise TransportError(f"{method} {path} at {self.address}: {str(error) or type(error).__name__}") from error
        finally:
            self._turns.give_back()

    async def close(self) -> None:
        await self._pool.close()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Accept": "application/json", **self.headers()}
        payload = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            payload = json.dumps(body).encode()
        answer = await self._pool.request(method, path, headers, payload, is_repeatable=True)
        if answer.status == _NOT_MODIFIED:
            return None
        try:
            return json.loads(answer.body)
        except ValueError as error:
            problem = f"HTTP {answer.status}, no JSON: {answer.body[:80]!r}"
            raise NoJsonError(answer.status, f"{method} {path} at {self.address}: {problem}") from error
