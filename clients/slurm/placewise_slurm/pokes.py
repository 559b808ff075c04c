"""Hints to the bridge: datagrams of job_submit.lua ("submit", "other"), the prolog ("start ID"), jobcomp ("end ID …").

"share begin|end …" come from TaskProlog and TaskEpilog of divisible jobs.

A datagram is only a hint where to look; it may be lost, repeated or forged, and is never trusted.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Protocol

# More hints than this say no more than "look at everything".
_MOST_HINTS = 64


@dataclass(slots=True)
class Hints:
    """The content of the datagrams since the last look.

    `passed_by` has one entry for each job of ours that was submitted: how many others were submitted before it, since
    the one before. `others` counts those since the last of ours.
    """

    passed_by: list[int] = field(default_factory=list)
    others: int = 0
    job_ids: set[int] = field(default_factory=set)

    @property
    def is_flood(self) -> bool:
        return len(self.passed_by) + len(self.job_ids) > _MOST_HINTS


class TaskEar(Protocol):
    """A listener for tasks that begin and end; True if the job should be looked at."""

    def __call__(self, what: str, job_id: int, step: str, node: str, rank: int) -> bool: ...


class PokeListener(asyncio.DatagramProtocol):
    """Collects hints; `wait` returns when there is one. `on_task` hears "begin" and "end" of tasks with a share."""

    def __init__(self) -> None:
        self.on_task: TaskEar | None = None
        self._hints = Hints()
        self._is_poked = asyncio.Event()
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, host: str, port: int) -> int:
        """Listens; returns the port (0 picks a free one). Raises OSError."""
        loop = asyncio.get_running_loop()
        family, kind, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
        listening = socket.socket(family, kind)
        try:
            listening.setblocking(False)
            listening.bind(address)  # here, not in the loop: uvloop's own does not say why it could not
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=listening)
        except BaseException:
            listening.close()
            raise
        return int(listening.getsockname()[1])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str | int, ...]) -> None:
        match data[:200].decode("ascii", "replace").split():
            case ["submit", *_]:
                self._hints.passed_by.append(self._hints.others)
                self._hints.others = 0
            case ["other", *_]:
                self._hints.others += 1
                return  # counted for the sake of the next one of ours; nothing to look at
            case ["start" | "end", job_id, *_] if job_id.isdigit():
                self._hints.job_ids.add(int(job_id))
            case ["share", "begin" | "end" as what, job_id, step, node, rank] if job_id.isdigit() and rank.isdigit():
                if self.on_task is None or not self.on_task(what, int(job_id), step, node, int(rank)):
                    return
                self._hints.job_ids.add(int(job_id))
            case _:
                return
        self._is_poked.set()

    def wake(self) -> None:
        """Wakes the bridge without a datagram."""
        self._is_poked.set()

    def take(self) -> Hints:
        """The hints so far; the next ones start empty, but go on counting the others."""
        hints, self._hints = self._hints, Hints(others=self._hints.others)
        self._is_poked.clear()
        return hints

    def discount(self, others: int) -> None:
        """Takes `others` off the count: Slurm's job numbers have accounted for them."""
        self._hints.others = max(0, self._hints.others - others)

    async def wait(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_poked.wait()
        except TimeoutError:
            return False
        return True
