"""Changes of a cluster as its event stream and the log have them: bytes to objects. Never talks to a store.

Scripts write the events, and summed records are in them (sums.py). A report of nodes comes in chunks, each with a
leading letter: z = zlib, p = as it is.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

import msgspec

from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob, RunState
from placewise_core.domain.events import (
    Change,
    ClockMoved,
    ClusterDeleted,
    Event,
    JobsChanged,
    JobsEnded,
    NodesReported,
    OverheadLearned,
    QueueAdvanced,
    SettingsChanged,
    SubtaskForgotten,
    SubtaskProfiled,
)
from placewise_core.domain.job import JobId, NodeId
from placewise_log.sums import check_event, check_record

COMPRESSED: Final = b"z"
AS_IS: Final = b"p"
# An empty map in three bytes, as nobody writes one: a replica that knows of no forgetting merges nothing.
FORGOTTEN: Final = b"\xde\x00\x00"

_nodes = msgspec.msgpack.Decoder(tuple[Node, ...])
_job = msgspec.msgpack.Decoder(RunningJob)
_records = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_chunks = msgspec.msgpack.Decoder(tuple[bytes, ...])
_queue = msgspec.msgpack.Decoder(QueueState)
_settings = msgspec.msgpack.Decoder(ClusterSettings)
_overhead = msgspec.msgpack.Decoder(tuple[str, int, float])
_metrics = msgspec.msgpack.Decoder(dict[str, float])
_time = msgspec.msgpack.Decoder(float)
_names = msgspec.msgpack.Decoder(tuple[str, ...])
_running_states = msgspec.msgpack.Decoder(tuple[tuple[float, float, float, float], ...])


def iterate_nodes(body: bytes) -> Iterator[tuple[Node, ...]]:
    """The inverse of pack_nodes, chunk by chunk. Raises msgspec.DecodeError."""
    for chunk in _chunks.decode(body):
        try:
            data = zlib.decompress(memoryview(chunk)[1:]) if chunk[:1] == COMPRESSED else chunk[1:]
        except zlib.error as error:
            raise msgspec.DecodeError("a compressed event body is damaged") from error
        yield _nodes.decode(data)


def removed_nodes(args: bytes) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in _names.decode(args)) if args else ()


def decode_overhead(data: bytes) -> OverheadLearned:
    """Overheads are arrays, as Lua computes their means."""
    return OverheadLearned(*_overhead.decode(data))


def with_running_state(job: RunningJob, expire_s: float, start_s: float, speed: float, epochs: float) -> RunningJob:
    """The job as it lives in the store: what changes while it runs is kept beside its record."""
    return replace(
        job,
        state=RunState.RESERVED if expire_s > 0 else RunState.RUNNING,
        expire_time_s=expire_s,
        start_time_s=start_s,
        speed=speed,
        epochs_done=epochs,
    )


def _decode_jobs(body: bytes, args: bytes) -> Change:
    """Scripts put stored records into new events, whose sums say nothing of what happened to the records before."""
    jobs = []
    for record, state in zip(_records.decode(body), _running_states.decode(args), strict=True):
        job = _job.decode(record)
        check_record(bytes(record), "jobs", job.id.encode())
        jobs.append(with_running_state(job, *state))
    return JobsChanged(tuple(jobs))


def _decode_ended(body: bytes, is_expiry: bool) -> Change:
    return JobsEnded(tuple(JobId(name) for name in _names.decode(body)), is_expiry)


def change_of(kind: bytes, body: bytes, args: bytes) -> Change:
    """Raises msgspec.DecodeError for bytes that no script wrote."""
    match kind:
        case b"nodes":
            return NodesReported(tuple(chain.from_iterable(iterate_nodes(body))), removed_nodes(args))
        case b"jobs":
            return _decode_jobs(body, args)
        case b"ended":
            return _decode_ended(body, is_expiry=False)
        case b"expired":
            return _decode_ended(body, is_expiry=True)
        case b"queue":
            return QueueAdvanced(_queue.decode(body))
        case b"settings":
            return SettingsChanged(_settings.decode(body))
        case b"overhead":
            return decode_overhead(body)
        case b"profile" if body == FORGOTTEN:
            return SubtaskForgotten(args.decode())
        case b"profile":
            return SubtaskProfiled(args.decode(), _metrics.decode(body))
        case b"clock":
            return ClockMoved(_time.decode(body))
        case b"deleted":
            return ClusterDeleted()
        case _:
            raise msgspec.DecodeError(f"unknown kind of event {kind!r}")


def event_of(fields: Mapping[bytes, bytes], entry_id: bytes) -> Event:
    """An entry of the event stream. Raises msgspec.DecodeError; DamagedError, which is one, where its sum is another;
    KeyError, ValueError for one that is malformed."""
    check_event(entry_id, fields)
    change = change_of(fields[b"kind"], fields[b"body"], fields[b"args"])
    return Event(version_of(entry_id), fields[b"life"].decode(), change)


def version_of(entry_id: bytes) -> int:
    """The version that an event leads to: ids are version-microseconds."""
    return int(entry_id.partition(b"-")[0])
