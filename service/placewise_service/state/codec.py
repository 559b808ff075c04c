"""Bytes of the stored records: msgpack of the domain types, by field name. Never does I/O.

Types are written as maps of field names, so that replicas of neighbouring versions read each other: a field that is
missing gets its default, an unknown one is passed over. Lua adds up Hold and NodeCapacity: they are written as arrays.
NaN (telemetry nobody measured) is kept. Large bodies are compressed: a report of many nodes repeats itself.
"""

import asyncio
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob, RunState
from placewise_core.domain.events import (
    Change,
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
from placewise_service.state.holdings import Hold, NodeCapacity
from placewise_service.state.store import BundleChoice, ShadowChoice
from placewise_service.state.sums import DamagedError, check_event, check_record, summed

# Nodes per chunk of a report's body: a chunk is packed, and decoded, in about a millisecond.
NODES_PER_CHUNK = 200
_COMPRESS_FROM_BYTES = 4096
_COMPRESSED: Final = b"z"
_AS_IS: Final = b"p"
# An empty map in three bytes, as nobody writes one: a replica that knows of no forgetting merges nothing.
_FORGOTTEN: Final = b"\xde\x00\x00"

Recorded = Node | RunningJob | QueueState | ClusterSettings

_encoder = msgspec.msgpack.Encoder()
_node = msgspec.msgpack.Decoder(Node)
_nodes = msgspec.msgpack.Decoder(tuple[Node, ...])
_job = msgspec.msgpack.Decoder(RunningJob)
_records = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_chunks = msgspec.msgpack.Decoder(tuple[bytes, ...])
_queue = msgspec.msgpack.Decoder(QueueState)
_settings = msgspec.msgpack.Decoder(ClusterSettings)
_overhead = msgspec.msgpack.Decoder(tuple[str, int, float])
_metrics = msgspec.msgpack.Decoder(dict[str, float])
_names = msgspec.msgpack.Decoder(tuple[str, ...])
_progress = msgspec.msgpack.Decoder(tuple[float, float, float])
_shadows = msgspec.json.Decoder(dict[str, ShadowChoice])
_running_states = msgspec.msgpack.Decoder(tuple[tuple[float, float, float, float], ...])

encode = _encoder.encode
decode_node = _node.decode
decode_bare_job = _job.decode
decode_queue = _queue.decode
decode_settings = _settings.decode
decode_metrics = _metrics.decode


def encode_record(record: Recorded) -> bytes:
    """A record under a name of its own: with a sum."""
    return summed(_encoder.encode(record))


def encode_holds(holds: Sequence[Hold]) -> bytes:
    return _encoder.encode(holds)


def encode_capacity(capacity: NodeCapacity) -> bytes:
    return _encoder.encode(capacity)


def array_of(items: Sequence[bytes]) -> bytes:
    """The msgpack array of things that are msgpack already."""
    return b"\xdd" + len(items).to_bytes(4, "big") + b"".join(items)


def pack_nodes(records: Sequence[bytes]) -> bytes:
    """The body of a report: chunks, each with a leading letter (z = zlib, p = as it is).

    CPU-heavy from some hundred nodes on: call it off the event loop.
    """
    starts = range(0, len(records), NODES_PER_CHUNK)
    return _encoder.encode([_packed(array_of(records[at : at + NODES_PER_CHUNK])) for at in starts])


def _packed(data: bytes) -> bytes:
    return _COMPRESSED + zlib.compress(data, 1) if len(data) >= _COMPRESS_FROM_BYTES else _AS_IS + data


def iterate_nodes(body: bytes) -> Iterator[tuple[Node, ...]]:
    """The inverse of pack_nodes, chunk by chunk. Raises msgspec.DecodeError."""
    for chunk in _chunks.decode(body):
        try:
            data = zlib.decompress(memoryview(chunk)[1:]) if chunk[:1] == _COMPRESSED else chunk[1:]
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


def with_progress(job: RunningJob, expire_s: float, progress: bytes | None) -> RunningJob:
    """A job from its record as it lives: with its expiry (0 = confirmed) and its progress."""
    start_s, speed, epochs = _progress.decode(progress) if progress else (0.0, 0.0, 0.0)
    return with_running_state(job, expire_s, start_s, speed, epochs)


def decode_job(record: bytes, expire_s: float, progress: bytes | None) -> RunningJob:
    """A job from its record, its expiry and its progress."""
    return with_progress(_job.decode(record), expire_s, progress)


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


def decode_change(kind: bytes, body: bytes, args: bytes) -> Change:
    """The change of an event other than a report of nodes. Raises msgspec.DecodeError for bytes that no script
    wrote."""
    match kind:
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
        case b"profile" if body == _FORGOTTEN:
            return SubtaskForgotten(args.decode())
        case b"profile":
            return SubtaskProfiled(args.decode(), _metrics.decode(body))
        case b"deleted":
            return ClusterDeleted()
        case _:
            raise msgspec.DecodeError(f"unknown kind of event {kind!r}")


async def decode_event(fields: Mapping[bytes, bytes], entry_id: bytes) -> Event:
    """An entry of the event stream; lets others run between the chunks of a large report.

    Raises msgspec.DecodeError; DamagedError, which is one, where its sum is another.
    """
    try:
        check_event(entry_id, fields)
        kind, body, args = fields[b"kind"], fields[b"body"], fields[b"args"]
        if kind == b"nodes":
            nodes: list[Node] = []
            for chunk in iterate_nodes(body):
                nodes += chunk
                await asyncio.sleep(0)
            change: Change = NodesReported(tuple(nodes), removed_nodes(args))
        else:
            change = decode_change(kind, body, args)
        return Event(int(entry_id.split(b"-")[0]), fields[b"life"].decode(), change)
    except DamagedError:
        raise  # a ValueError as well
    except (KeyError, ValueError) as error:
        raise msgspec.DecodeError("an entry of the event stream is malformed") from error


_envelope = msgspec.msgpack.Decoder(tuple[int, str, str, msgspec.Raw])


def is_decision(record: bytes, decision_id: str) -> bool:
    """True for a log entry (schema, "decision", id, body) with this id."""
    try:
        _, kind, record_id, _ = _envelope.decode(record)
    except msgspec.MsgspecError:
        return False
    return kind == "decision" and record_id == decision_id


def encode_shadows(choice: BundleChoice) -> bytes:
    """The shadows of a choice. Its fields for the bundle that shadows all clusters are older, and kept beside these."""
    return msgspec.json.encode(choice.all_shadows)


def with_shadows(choice: BundleChoice, text: bytes) -> BundleChoice:
    """The choice with the shadows in `text`; without any if that is damaged, as no answer rests on them. The policy of
    the one for all clusters holds if it belongs to the bundle that is chosen: an older process knows no policies."""
    try:
        shadows = _shadows.decode(text) if text else {}
    except msgspec.MsgspecError:
        shadows = {}
    usual = shadows.pop("", ShadowChoice())
    policy = usual.policy if usual.bundle == choice.shadow else ""
    return replace(choice, shadow_policy=policy, shadows=shadows)
