"""The bridge's ear: datagrams from job_submit.lua ("submit"), the prolog ("start ID") and jobcomp ("end ID …").

A datagram is only a hint where to look; it may be lost, repeated or forged, and nothing is believed because of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

# More hints than this say no more than "look at everything".
_MOST_HINTS = 64


@dataclass(slots=True)
class Hints:
    """What the datagrams since the last look said."""

    submitted: int = 0
    job_ids: set[int] = field(default_factory=set)

    @property
    def is_flood(self) -> bool:
        return self.submitted + len(self.job_ids) > _MOST_HINTS


class PokeListener(asyncio.DatagramProtocol):
    """Collects hints; `wait` returns when there is one."""

    def __init__(self) -> None:
        self._hints = Hints()
        self._is_poked = asyncio.Event()
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, host: str, port: int) -> int:
        """Listens; returns the port (0 picks a free one)."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        return int(self._transport.get_extra_info("sockname")[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        match data[:200].decode("ascii", "replace").split():
            case ["submit", *_]:
                self._hints.submitted += 1
            case ["start" | "end", job_id, *_] if job_id.isdigit():
                self._hints.job_ids.add(int(job_id))
            case _:
                return
        self._is_poked.set()

    def take(self) -> Hints:
        """The hints so far; the next ones are collected anew."""
        hints, self._hints = self._hints, Hints()
        self._is_poked.clear()
        return hints

    async def wait(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_poked.wait()
        except TimeoutError:
            return False
        return True
