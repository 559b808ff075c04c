"""Reads what load.lua gives into a ClusterRecords, and finds where in the decision log an id must be. No I/O."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_log.changes import decode_overhead
from placewise_log.sums import DamagedError, check_record, check_row
from placewise_service.state import codec

T = TypeVar("T")
Named = TypeVar("Named", Node, RunningJob, QueueState)
# How far around a decision's own time its log entry is looked for: near first, as clocks mostly agree.
_NEAR_S = (2.0, 10.0)
_FAR_S = (120.0, 600.0)


def position_of(epoch: bytes, entry_id: bytes) -> str:
    """A place in the event stream: which epoch of the cluster, and the last entry read."""
    return f"{epoch.decode()}:{entry_id.decode()}"


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """In order of the names: replicas that load the same state build the same view."""
    return sorted(zip(flat[::2], flat[1::2], strict=True))


def _read(key: str, name: bytes, record: bytes, decode: Callable[[bytes], T]) -> T:
    """Raises DamagedError for a record whose sum is another, or whose bytes mean nothing."""
    check_record(record, key, name)
    return _decoded(key, name, record, decode)


def _decoded(key: str, name: bytes, record: bytes, decode: Callable[[bytes], T]) -> T:
    """Raises DamagedError for bytes that mean nothing."""
    try:
        return decode(record)
    except msgspec.MsgspecError:
        raise DamagedError(key, name) from None


def _named(key: str, flat: Sequence[bytes], decode: Callable[[bytes], Named]) -> Iterator[Named]:
    """The records of a hash. Raises DamagedError, for one that has another's name as well."""
    for name, record in _pairs(flat):
        read = _read(key, name, record, decode)
        if (read.queue if isinstance(read, QueueState) else read.id) != name.decode():
            raise DamagedError(key, name)
        yield read


def _rows(key: str, flat: Sequence[bytes], sums: Mapping[bytes, bytes], decode: Callable[[bytes], T]) -> dict[str, T]:
    """The rows of a hash that scripts compute. Raises DamagedError."""
    read = dict[str, T]()
    for name, row in _pairs(flat):
        check_row(row, key, name, sums.get(b"%b:%b" % (key.encode(), name)))
        read[name.decode()] = _decoded(key, name, row, decode)
    return read


def records_from(cluster: str, reply: Sequence[Any]) -> tuple[ClusterRecords, str]:
    """The records and the position to tail from.

    Raises msgspec.DecodeError for bytes that no script wrote; DamagedError, which is one, names the record.
    """
    epoch, version, last, settings, nodes, jobs, expiring, progress, queues, overheads, profiles, host_s, flat = reply
    sums = dict(_pairs(flat))
    expiries = {name: float(score) for name, score in _pairs(expiring)}
    progresses = _rows("progress", progress, sums, codec.decode_progress)
    records = ClusterRecords(
        cluster=cluster,
        version=int(version),
        epoch=epoch.decode(),
        nodes=tuple(_named("nodes", nodes, codec.decode_node)),
        jobs=tuple(
            codec.with_progress(job, expiries.get(job.id.encode(), 0.0), progresses.get(job.id, codec.NO_PROGRESS))
            for job in _named("jobs", jobs, codec.decode_bare_job)
        ),
        queues={q.queue: q for q in _named("queues", queues, codec.decode_queue)},
        settings=_read("meta", b"settings", settings, codec.decode_settings) if settings else ClusterSettings(),
        overheads=_rows("overheads", overheads, sums, decode_overhead),
        subtask_profiles=_rows("profiles", profiles, sums, codec.decode_metrics),
        host_time_s=float(host_s) if host_s else None,
    )
    return records, position_of(epoch, last)


def search_bounds(decision_id: str) -> Iterator[tuple[str, str]]:
    """Ranges of log positions in which a decision may be: ids are UUIDv7, which begin with the time."""
    try:
        value = uuid.UUID(decision_id)
    except ValueError:
        return
    if value.version != 7:
        return
    time_ms = value.int >> 80
    for before_s, after_s in (_NEAR_S, _FAR_S):
        yield str(max(0, time_ms - int(before_s * 1000))), str(time_ms + int(after_s * 1000))
