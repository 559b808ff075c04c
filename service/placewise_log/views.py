"""Entries of the log of views, and their bytes: snapshots of each replica's view, events, gangs that nobody held.

All replicas of a cluster see the same events, but not the same order of jobs: a view has its own gangs before their
events come, and a view that was just loaded has its jobs in the order of their names. So each view, which gets a new
name at each load, has snapshots of its own; the events between them are everybody's.

Bytes: msgpack of [schema version, kind, id, entry]. Events are as the store's stream has them, with their sums.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final, final

import msgspec

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import ClusterRecords, Event
from placewise_core.view.view import ClusterView
from placewise_log.changes import event_of, version_of
from placewise_log.record import CorruptEntryError

SCHEMA: Final = 1
SNAPSHOT, EVENTS, GANGS = "snapshot", "events", "gangs"


@final
@frozen
class Snapshot:
    """A view as it was: nodes and jobs in its own order. `heads` are the queues whose heads hold; `assumed` as in
    ViewRead, of gangs among the jobs."""

    view: str
    time_s: float
    records: ClusterRecords
    stale_after_s: float
    heads: tuple[str, ...] = ()
    assumed: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, name: str, view: ClusterView, time_s: float, assumed: tuple[tuple[str, int], ...]) -> "Snapshot":
        """The view now: its parts are not copied, as nobody changes them."""
        rows: dict[str, Mapping[str, float]] = {**view.subtask_profiles}
        for kept in (view.estimates, view.co_runs):
            rows.update((kind, kept.row(kind)) for kind in kept.kinds)
        records = ClusterRecords(
            view.cluster,
            view.version,
            view.epoch,
            tuple(view.nodes.records),
            tuple(view.jobs.values()),
            dict(view.queues),
            view.settings,
            dict(view.overheads),
            {kind: dict(row) for kind, row in rows.items()},
            view.host_time_s,
        )
        return cls(name, time_s, records, view.stale_after_s, tuple(view.heads), assumed)

    def shown(self) -> ClusterView:
        """A view equal to the one that was."""
        view = ClusterView(self.records, self.stale_after_s)
        heads = {name: queue.head for name, queue in view.queues.items() if queue.head is not None}
        view.heads = {name: heads[name] for name in self.heads}
        return view


@final
@frozen
class Gangs:
    """Gangs that a view assumed and the store then refused."""

    view: str
    gangs: tuple[RunningJob, ...]


@final
@frozen
class Events:
    """Successive events of one epoch."""

    epoch: str
    events: tuple[Event, ...]


ViewEntry = Snapshot | Gangs | Events


@frozen
class Heading:
    """Where an entry belongs: `name` is that of the view or of the epoch; the versions are the first and the last."""

    kind: str
    name: str
    first_version: int
    last_version: int


_Raw = tuple[bytes, bytes, bytes, bytes, bytes]  # id, kind, body, arguments and sum of an event

_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[int, str, str, msgspec.Raw])
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_gangs = msgspec.msgpack.Decoder(Gangs)
_raw = msgspec.msgpack.Decoder(_Raw)
_events = msgspec.msgpack.Decoder(tuple[_Raw, ...])


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The snapshot's bytes. Takes long for a large view: call it off the event loop."""
    packed = zlib.compress(_encoder.encode(snapshot), 1)
    return _encoder.encode((SCHEMA, SNAPSHOT, f"{snapshot.view}:{snapshot.records.version}", packed))


def encode_gangs(view: str, gangs: Sequence[RunningJob]) -> bytes:
    return _encoder.encode((SCHEMA, GANGS, f"{view}:{gangs[0].reservation_id}", Gangs(view, tuple(gangs))))


def is_view_entry(data: bytes) -> bool:
    """True for an entry of this log, False for one of the decision log."""
    return data[:1] == b"\x94" and data[2:].startswith((b"\xa8snapshot", b"\xa6events", b"\xa5gangs"))


def heading_of(data: bytes) -> tuple[str, Heading]:
    """Id and place of an entry. Raises CorruptEntryError."""
    kind, entry_id, body = _opened(data)
    name, _, rest = entry_id.partition(":")
    try:
        if kind == EVENTS:
            last = msgspec.msgpack.decode(body, type=tuple[msgspec.Raw, ...])[-1]
            return entry_id, Heading(kind, name, version_of(rest.encode()), version_of(_id_of(last)))
        version = int(rest) if kind == SNAPSHOT else 0
    except (ValueError, IndexError) as error:
        raise CorruptEntryError(f"an entry of the log of views is malformed: {error}") from error
    return entry_id, Heading(kind, name, version, version)


def decode_view_entry(data: bytes) -> ViewEntry:
    """The inverse. Raises CorruptEntryError, also if the sum of an event differs."""
    kind, entry_id, body = _opened(data)
    try:
        if kind == SNAPSHOT:
            return _snapshot.decode(zlib.decompress(msgspec.msgpack.decode(body, type=bytes)))
        if kind == GANGS:
            return _gangs.decode(body)
        epoch = entry_id.partition(":")[0]
        return Events(epoch, tuple([_event(raw, epoch.encode()) for raw in _events.decode(body)]))
    except (ValueError, KeyError, zlib.error) as error:
        raise CorruptEntryError(f"an entry of the log of views is malformed: {error}") from error


def _opened(data: bytes) -> tuple[str, str, msgspec.Raw]:
    try:
        schema, kind, entry_id, body = _envelope.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptEntryError(f"not an entry of the log of views: {error}") from error
    if schema != SCHEMA or kind not in (SNAPSHOT, EVENTS, GANGS):
        raise CorruptEntryError(f"entry of the log of views of schema {schema}, kind {kind!r}; known: {SCHEMA}")
    return kind, entry_id, body


def _id_of(raw: msgspec.Raw) -> bytes:
    entry_id: bytes = _raw.decode(raw)[0]
    return entry_id


def _event(raw: _Raw, epoch: bytes) -> Event:
    entry_id, kind, body, args, total = raw
    fields = {b"life": epoch, b"kind": kind, b"body": body, b"args": args}
    return event_of(fields | {b"sum": total} if total else fields, entry_id)
