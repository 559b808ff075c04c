"""Follows a cluster's event stream. Never skips, repeats or mixes histories: it stops with an error instead."""

from collections.abc import AsyncIterator, Sequence

from placewise_core.errors import StaleSnapshotError, StateUnavailableError
from placewise_core.events import ClusterDeleted, Event
from placewise_service.state import codec
from placewise_service.state.connection import Client
from placewise_service.state.errors import redis_meant
from placewise_service.state.keys import ClusterKeys, keys_of
from placewise_service.state.records import position_of
from placewise_service.state.store import Known

_BATCH = 256
# Idle rounds in which the server counts further than the stream shows, before it is taken for one left behind.
_BEHIND_ROUNDS = 3


async def tail(
    client: Client, cluster: str, position: str, block_ms: int, known: Known
) -> AsyncIterator[tuple[str, Sequence[Event]]]:
    """As StateStore.tail. Yields an empty batch every `block_ms` in which nothing happened."""
    keys = keys_of(cluster)
    life, _, entry = position.partition(":")
    last = entry.encode()
    with redis_meant(cluster):
        await _check_place(client, keys, life, entry)
    behind = 0
    while True:
        with redis_meant(cluster):
            reply = await client.execute_command(
                "XREAD", "COUNT", _BATCH, "BLOCK", block_ms, "STREAMS", keys.events, last
            )
            if reply:
                events, last = await _decoded(reply[0][1], life, last, await known())
                behind = 0
            else:
                events = []
                behind = behind + 1 if await _is_behind(client, keys, life, last) else 0
        if behind >= _BEHIND_ROUNDS:
            raise StateUnavailableError("the state store answers from a server that was left behind")
        yield position_of(life.encode(), last), events
        if events and isinstance(events[-1].change, ClusterDeleted):
            return


async def _check_place(client: Client, keys: ClusterKeys, life: str, entry: str) -> None:
    """The entry last read must still be there, of the same life: else what follows may not follow from it."""
    found = await client.execute_command("XRANGE", keys.events, entry, entry)
    if not found or found[0][1].get(b"life") != life.encode():
        raise StaleSnapshotError("the events after this position are gone; load the cluster again")


async def _is_behind(client: Client, keys: ClusterKeys, life: str, last: bytes) -> bool:
    """In a quiet moment: is this still the state that was read? Raises StaleSnapshotError if it is not."""
    now_life, now_last = await client.execute_command("HMGET", keys.meta, "life", "last")
    if now_life is None or now_life.decode() != life or _version(now_last) < _version(last):
        raise StaleSnapshotError("the cluster was deleted or lost its last changes; load it again")
    return _version(now_last) > _version(last)


def _version(entry: bytes) -> int:
    return int(entry.partition(b"-")[0])


async def _decoded(
    entries: Sequence[tuple[bytes, dict[bytes, bytes]]], life: str, last: bytes, known: int
) -> tuple[list[Event], bytes]:
    """The events of stream entries beyond version `known` (decoding the others again is most of what following one's
    own mutations costs), and the id of the last. Raises StaleSnapshotError if one does not follow."""
    events = []
    for entry_id, fields in entries:
        if fields.get(b"life") != life.encode() or _version(entry_id) != _version(last) + 1:
            raise StaleSnapshotError("the event stream has a gap or began anew; load the cluster again")
        if _version(entry_id) > known:
            events.append(await codec.decode_event(fields, entry_id))
        last = entry_id
    return events, last
