"""Follows the event streams of every cluster of a process over one connection. Reads and hands out; decodes nothing.

One XREAD waits for all streams at once. A stream that is followed from now on interrupts it; its entries are then read
again, as positions move on only with delivered entries. For streams in which nothing happened for a while, one command
asks for the last events of many clusters.
"""

import asyncio
import contextlib
from collections import deque
from typing import Any

from redis.asyncio import Redis

from placewise_service.background import cancel_and_wait
from placewise_service.state.keys import ClusterKeys
from placewise_service.state.redis.scripts import script

Entries = list[tuple[bytes, dict[bytes, bytes]]]
Quiet = tuple[bytes | None, bytes | None]  # epoch and last event id, as the cluster has them now

_BATCH = 256
_MOST_AHEAD = 8  # readings that a follower is handed before it takes them
_QUIET_S = 0.5  # every follower hears at least so often
_ASKED_AT_ONCE = 200  # clusters: a third of a millisecond of the server's time
# Longest rest after a reading that brought something. A reader that has taken all of it ends the rest, so that one
# cluster is read as fast as its reader wants; a second cluster must not wait for the first one's reader.
_REST_S = 0.005
_LONE_REST_S = 0.025


class Follower:
    """One stream: its position, and the entries that its reader has yet to take."""

    def __init__(self, keys: ClusterKeys, last: bytes, heard_s: float, is_taken: asyncio.Event) -> None:
        """`is_taken` is set whenever the reader asks for more than there is."""
        self.keys = keys
        self.last = last
        self.heard_s = heard_s
        self._is_taken = is_taken
        self._news: deque[Entries | Quiet | BaseException] = deque()
        self._has_news = asyncio.Event()

    def tell(self, news: Entries | Quiet | BaseException, now_s: float) -> None:
        """Delivers entries."""
        self.heard_s = now_s
        self._news.append(news)
        self._has_news.set()

    @property
    def is_behind(self) -> bool:
        """True if the reader has not taken its entries: no more is read for it."""
        return len(self._news) >= _MOST_AHEAD

    async def next(self) -> Entries | Quiet:
        """The next entries: all that are there, because a reader that is behind has to catch up at once. Raises the
        error of a failed read."""
        while not self._news:
            self._is_taken.set()
            self._has_news.clear()
            await self._has_news.wait()
        news = self._news.popleft()
        if isinstance(news, BaseException):
            raise news
        while isinstance(news, list) and self._news and isinstance(more := self._news[0], list):
            self._news.popleft()
            news = [*news, *more]
        return news


class SharedTail:
    """The one connection. It is taken from the pool with the first follower and given back with the last."""

    def __init__(self, client: Redis, block_ms: int) -> None:
        self._client = client
        self._block_ms = block_ms
        self._followers: dict[bytes, Follower] = {}
        self._is_changed = asyncio.Event()
        self._is_taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def follow(self, keys: ClusterKeys, last: bytes) -> Follower:
        """Reads the stream from now on, after the entry `last`. A stream has one follower: the latest."""
        follower = Follower(keys, last, asyncio.get_running_loop().time(), self._is_taken)
        self._followers[keys.events.encode()] = follower
        self._is_changed.set()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="tail")
        return follower

    def leave(self, follower: Follower) -> None:
        """Reads the stream no longer."""
        key = follower.keys.events.encode()
        if self._followers.get(key) is follower:
            del self._followers[key]
            self._is_changed.set()

    async def close(self) -> None:
        """Ends the connection."""
        await cancel_and_wait((self._reading,))

    async def _read(self) -> None:
        try:
            while self._followers:
                self._is_changed.clear()
                reply = await self._interruptible([f for f in self._followers.values() if not f.is_behind])
                now_s = asyncio.get_running_loop().time()
                self._is_taken.clear()
                for key, entries in reply or ():
                    if (follower := self._followers.get(key)) is not None:
                        follower.last = entries[-1][0]
                        follower.tell(entries, now_s)
                await self._ask_the_quiet(now_s)
                if reply:
                    await self._rest()
        except Exception as error:
            for follower in self._followers.values():
                follower.tell(error, 0.0)
            self._followers.clear()
        finally:
            self._reading = None

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONE_REST_S if len(self._followers) == 1 else _REST_S):
                await self._is_taken.wait()

    async def _interruptible(self, followers: list[Follower]) -> Any:
        """Waits for the streams' entries; None if nothing came, or the set of followers changed."""
        changed = asyncio.ensure_future(self._is_changed.wait())
        reading = asyncio.create_task(self._xread(followers))
        try:
            await asyncio.wait((changed, reading), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            changed.cancel()
            await cancel_and_wait((reading,))

    async def _xread(self, followers: list[Follower]) -> Any:
        if not followers:
            await asyncio.sleep(self._block_ms / 1000.0)
            return None
        names = [follower.keys.events for follower in followers]
        places = [follower.last for follower in followers]
        return await self._client.execute_command(  # type: ignore[no-untyped-call]
            "XREAD", "COUNT", _BATCH, "BLOCK", self._block_ms, "STREAMS", *names, *places
        )

    async def _ask_the_quiet(self, now_s: float) -> None:
        quiet = [f for f in self._followers.values() if now_s - f.heard_s >= _QUIET_S and not f.is_behind]
        for start in range(0, len(quiet), _ASKED_AT_ONCE):
            asked = quiet[start : start + _ASKED_AT_ONCE]
            metas = tuple(follower.keys.meta for follower in asked)
            for follower, (epoch, last) in zip(
                asked, await script("last_events").run(self._client, metas, []), strict=True
            ):
                follower.tell((epoch, last), now_s)
