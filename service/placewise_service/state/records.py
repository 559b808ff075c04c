"""Reads what load.lua gives into a ClusterRecords, and finds where in the decision log an id must be. No I/O."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from placewise_core.cluster import ClusterSettings
from placewise_core.events import ClusterRecords
from placewise_service.state import codec

# How far around a decision's own time its log entry is looked for: near first, as clocks mostly agree.
_NEAR_S = (2.0, 10.0)
_FAR_S = (120.0, 600.0)


def position_of(life: bytes, entry_id: bytes) -> str:
    """A place in the event stream: which life of the cluster, and the last entry read."""
    return f"{life.decode()}:{entry_id.decode()}"


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """In order of the names: replicas that load the same state build the same view."""
    return sorted(zip(flat[::2], flat[1::2], strict=True))


def records_from(cluster: str, reply: Sequence[Any]) -> tuple[ClusterRecords, str]:
    """The records and the position to tail from. Raises msgspec.DecodeError for bytes that no script wrote."""
    life, version, last, settings, nodes, jobs, expiring, progress, queues, overheads, profiles = reply
    expiries = {name: float(score) for name, score in _pairs(expiring)}
    progresses = dict(_pairs(progress))
    records = ClusterRecords(
        cluster=cluster,
        version=int(version),
        epoch=life.decode(),
        nodes=tuple(codec.decode_node(record) for _, record in _pairs(nodes)),
        jobs=tuple(
            codec.decode_job(record, expiries.get(name, 0.0), progresses.get(name)) for name, record in _pairs(jobs)
        ),
        queues={name.decode(): codec.decode_queue(record) for name, record in _pairs(queues)},
        settings=codec.decode_settings(settings) if settings else ClusterSettings(),
        overheads={name.decode(): codec.decode_overhead(record) for name, record in _pairs(overheads)},
        subtask_profiles={name.decode(): codec.decode_metrics(record) for name, record in _pairs(profiles)},
    )
    return records, position_of(life, last)


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
