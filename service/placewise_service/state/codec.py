"""Bytes of the stored records: msgpack of the domain types, by field name. Never does I/O.

Types are written as maps of field names, so that replicas of neighbouring versions read each other: a field that is
missing gets its default, an unknown one is passed over. Lua adds up Hold and NodeCapacity: they are written as arrays.
NaN (telemetry nobody measured) is kept. Large bodies are compressed: a report of many nodes repeats itself.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from placewise_core.domain.cluster import ClusterSettings, Node, QueueState, RunningJob
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
from placewise_log.changes import (
    AS_IS,
    COMPRESSED,
    FORGOTTEN,
    change_of,
    iterate_nodes,
    removed_nodes,
    version_of,
    with_running_state,
)
from placewise_log.sums import DamagedError, check_event, summed
from placewise_service.state.store import ActiveChoice, BundleChange, BundleChoice, CanaryChoice, ShadowChoice

# Nodes per chunk of a report's body: a chunk is packed, and decoded, in about a millisecond.
NODES_PER_CHUNK = 200
_COMPRESS_FROM_BYTES = 4096

Recorded = Node | RunningJob | QueueState | ClusterSettings

_encoder = msgspec.msgpack.Encoder()
_node = msgspec.msgpack.Decoder(Node)
_job = msgspec.msgpack.Decoder(RunningJob)
_queue = msgspec.msgpack.Decoder(QueueState)
_settings = msgspec.msgpack.Decoder(ClusterSettings)
_metrics = msgspec.msgpack.Decoder(dict[str, float])
_progress = msgspec.msgpack.Decoder(tuple[float, float, float])
_shadows = msgspec.json.Decoder(dict[str, ShadowChoice])
_actives = msgspec.json.Decoder(dict[str, ActiveChoice])
_canaries = msgspec.json.Decoder(dict[str, CanaryChoice])
_kills = msgspec.json.Decoder(dict[str, str])
_bundle_change = msgspec.json.Decoder(BundleChange)

encode = _encoder.encode
decode_node = _node.decode
decode_bare_job = _job.decode
decode_queue = _queue.decode
decode_settings = _settings.decode
decode_metrics = _metrics.decode
decode_progress = _progress.decode
NO_PROGRESS = (0.0, 0.0, 0.0)


def encode_record(record: Recorded) -> bytes:
    """A record under a name of its own: with a sum."""
    return summed(_encoder.encode(record))


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
    return COMPRESSED + zlib.compress(data, 1) if len(data) >= _COMPRESS_FROM_BYTES else AS_IS + data


def with_progress(job: RunningJob, expire_s: float, progress: tuple[float, float, float]) -> RunningJob:
    """A job from its record as it lives: with its expiry (0 = confirmed) and its start time, speed and epochs done."""
    start_s, speed, epochs = progress
    return with_running_state(job, expire_s, start_s, speed, epochs)


def decode_job(record: bytes, expire_s: float, progress: bytes | None) -> RunningJob:
    """A job from its record, its expiry and its progress."""
    return with_progress(_job.decode(record), expire_s, decode_progress(progress) if progress else NO_PROGRESS)


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
            change = change_of(kind, body, args)
        return Event(version_of(entry_id), fields[b"life"].decode(), change)
    except DamagedError:
        raise  # a ValueError as well
    except (KeyError, ValueError) as error:
        raise msgspec.DecodeError("an entry of the event stream is malformed") from error


def raw_event(event: Event) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Id, kind, body and arguments of an event as scripts write them, without a sum."""
    return (b"%d-0" % event.version, *_raw_change(event.change), b"")


def _raw_change(change: Change) -> tuple[bytes, bytes, bytes]:
    match change:
        case NodesReported():
            return b"nodes", pack_nodes([encode_record(node) for node in change.nodes]), encode(change.removed)
        case JobsChanged():
            states = [(job.expire_time_s, job.start_time_s, job.speed, job.epochs_done) for job in change.jobs]
            return b"jobs", array_of([encode_record(job) for job in change.jobs]), encode(states)
        case JobsEnded():
            return b"expired" if change.is_expiry else b"ended", encode(change.job_ids), b""
        case QueueAdvanced():
            return b"queue", encode(change.queue), b""
        case SettingsChanged():
            return b"settings", encode(change.settings), b""
        case OverheadLearned():
            return b"overhead", encode((change.task_kind, change.count, change.mean_overhead_s)), b""
        case SubtaskProfiled():
            return b"profile", encode(change.metrics), change.kind.encode()
        case SubtaskForgotten():
            return b"profile", FORGOTTEN, change.kind.encode()
        case ClockMoved():
            return b"clock", encode(change.time_s), b""
        case ClusterDeleted():
            return b"deleted", b"", b""


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


def encode_actives(choice: BundleChoice) -> bytes:
    """The bundles of single clusters."""
    return msgspec.json.encode(choice.actives)


def with_actives(choice: BundleChoice, text: bytes) -> BundleChoice:
    """The choice with the bundles of single clusters in `text`. Raises msgspec.DecodeError if that is damaged."""
    return replace(choice, actives=_actives.decode(text) if text else {})


def encode_canaries(choice: BundleChoice) -> bytes:
    """The canaries of a choice."""
    return msgspec.json.encode(choice.canaries)


def encode_kills(choice: BundleChoice) -> bytes:
    """The kill switches of a choice."""
    return msgspec.json.encode(choice.kills)


def with_canaries(choice: BundleChoice, canaries: bytes, kills: bytes) -> BundleChoice:
    """The choice with the canaries and the kill switches in these texts. Without canaries if their text is damaged:
    the incumbents answer then. Raises msgspec.DecodeError for damaged kill switches."""
    try:
        found = _canaries.decode(canaries) if canaries else {}
    except msgspec.MsgspecError:
        found = {}
    return replace(choice, canaries=found, kills=_kills.decode(kills) if kills else {})


def encode_bundle_change(change: BundleChange | None) -> bytes:
    """An entry of the history of bundles; empty for none."""
    return b"" if change is None else msgspec.json.encode(change)


def decode_bundle_changes(texts: Sequence[bytes]) -> list[BundleChange]:
    """Entries of the history of bundles. Leaves out damaged ones, and kinds of a later version."""
    found = list[BundleChange]()
    for text in texts:
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(_bundle_change.decode(text))
    return found
