"""Follows a cluster's event stream. Never skips, repeats or mixes histories: it stops with an error instead."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from redis.asyncio import ConnectionPool, Redis, RedisCluster

from placewise_core.basics.frozen import frozen
from placewise_core.domain.errors import StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_service.state import codec
from placewise_service.state.errors import translate_redis_errors
from placewise_service.state.keys import ClusterKeys, keys_of
from placewise_service.state.redis.connection import BoundedClient, Client
from placewise_service.state.redis.records import position_of
from placewise_service.state.redis.shared_tail import Entries, Quiet, SharedTail
from placewise_service.state.store import Batch

_BATCH = 256
# Idle rounds in which the server counts further than the stream shows, before it is taken for one left behind.
_BEHIND_ROUNDS = 3


class Reader(Protocol):
    """Reads one stream: its entries, or, in a quiet moment, the cluster's last event."""

    async def next(self) -> Entries | Quiet:
        """Waits no longer than a second. Raises what Redis raises."""
        ...


class OwnReader:
    """Reads one stream over a connection of its own, as on Redis Cluster, where no command may name several slots.

    The connection goes to the server that has the slot now; if the slot moves, reading fails. It is none of the
    client's pool: that closes none, and hands out the one that has been free longest.
    """

    def __init__(self, client: RedisCluster, keys: ClusterKeys, last: bytes, block_ms: int) -> None:
        node = client.get_node_from_key(keys.events)
        assert node is not None  # of masters: else it raises
        self._client = Redis.from_pool(ConnectionPool(node.connection_class, **node.connection_kwargs))
        self._keys = keys
        self._last = last
        self._block_ms = block_ms

    async def next(self) -> Entries | Quiet:
        reply = await self._client.execute_command(  # type: ignore[no-untyped-call]
            "XREAD", "COUNT", _BATCH, "BLOCK", self._block_ms, "STREAMS", self._keys.events, self._last
        )
        if not reply:
            asked = ("HMGET", self._keys.meta, "life", "last")
            epoch, last = await self._client.execute_command(*asked)  # type: ignore[no-untyped-call]
            return epoch, last
        entries: Entries = reply[0][1]
        self._last = entries[-1][0]
        return entries

    async def close(self) -> None:
        """Ends the connection."""
        await self._client.aclose()


async def tail_alone(
    client: RedisCluster, cluster: str, position: str, block_ms: int
) -> AsyncIterator[tuple[str, Batch]]:
    """As StateStore.tail, over a connection of its own."""
    keys, entry = keys_of(cluster), position.partition(":")[2]
    with translate_redis_errors(cluster):
        await _check_place(client, keys, position)
        reader = OwnReader(client, keys, entry.encode(), block_ms)
    try:
        async for batch in _followed(reader, cluster, position):
            yield batch
    finally:
        await reader.close()


async def tail_shared(
    shared: SharedTail, bounded: BoundedClient, cluster: str, position: str
) -> AsyncIterator[tuple[str, Batch]]:
    """As StateStore.tail, over the connection that all tails share."""
    keys, entry = keys_of(cluster), position.partition(":")[2]
    with translate_redis_errors(cluster):
        await _check_place(bounded, keys, position)
    follower = shared.follow(keys, entry.encode())
    try:
        async for batch in _followed(follower, cluster, position):
            yield batch
    finally:
        shared.leave(follower)


@frozen
class _Batch:
    """Entries of a cluster's stream. See store.Batch."""

    cluster: str
    entries: Entries

    def __len__(self) -> int:
        return len(self.entries)

    async def after(self, version: int) -> Sequence[Event]:
        with translate_redis_errors(self.cluster):
            return [await codec.decode_event(fields, at) for at, fields in self.entries if _version(at) > version]


async def _followed(reader: Reader, cluster: str, position: str) -> AsyncIterator[tuple[str, Batch]]:
    """Yields an empty batch if nothing happened for a while."""
    epoch, _, entry = position.partition(":")
    last = entry.encode()
    behind = 0
    while True:
        with translate_redis_errors(cluster):
            news = await reader.next()
            if isinstance(news, list):
                entries, last, behind = news, _end_of(news, epoch, last), 0
            else:
                entries = []
                behind = behind + 1 if _is_behind(news, epoch, last) else 0
        if behind >= _BEHIND_ROUNDS:
            raise StateUnavailableError("the state store answers from an outdated replica")
        yield position_of(epoch.encode(), last), _Batch(cluster, entries)
        if entries and entries[-1][1].get(b"kind") == b"deleted":
            return


async def _check_place(client: Client | BoundedClient, keys: ClusterKeys, position: str) -> None:
    """The last entry read must still be there, of the same epoch: otherwise later ones may not follow it."""
    epoch, _, entry = position.partition(":")
    found = await client.execute_command("XRANGE", keys.events, entry, entry)
    if not found or found[0][1].get(b"life") != epoch.encode():
        raise StaleSnapshotError("the events after this position are gone; load the cluster again")


def _is_behind(now: Quiet, epoch: str, last: bytes) -> bool:
    """In a quiet moment: is this still the state that was read? Raises StaleSnapshotError if it is not."""
    now_epoch, now_last = now
    if now_epoch is None or now_last is None or now_epoch.decode() != epoch or _version(now_last) < _version(last):
        raise StaleSnapshotError("the cluster was deleted or lost its last changes; load it again")
    return _version(now_last) > _version(last)


def _version(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


def _end_of(entries: Entries, epoch: str, last: bytes) -> bytes:
    """The id of the last entry. Raises StaleSnapshotError if one does not follow."""
    for entry_id, fields in entries:
        if fields.get(b"life") != epoch.encode() or _version(entry_id) != _version(last) + 1:
            raise StaleSnapshotError("the event stream has a gap or started again; load the cluster again")
        last = entry_id
    return last
