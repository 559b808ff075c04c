"""Large decisions to bytes and back, a piece at a time: one call of msgspec holds Python for as long as it takes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeGuard, TypeVar

import msgspec

from placewise_core.domain.decision import (
    AdmitDecision,
    DecisionMeta,
    Excluded,
    JobDecision,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Share,
)

Decision = PlaceDecision | PartitionDecision | AdmitDecision
AnyDecision = TypeVar("AnyDecision", PlaceDecision, PartitionDecision, AdmitDecision)
_Object = TypeVar("_Object", PlaceDecision, PartitionPlan)

_MOST_ITEMS = 2000  # tasks, candidates, neighbours and shares; to pack as many takes a few milliseconds
_TURN_BYTES = 1 << 17  # to unpack as many takes a millisecond or two
_encoder = msgspec.msgpack.Encoder()


def is_large(decision: Decision) -> TypeGuard[PlaceDecision | PartitionDecision]:
    """True for a decision that takes long to pack."""
    if isinstance(decision, PartitionDecision):
        return len(decision.plan.shares) + len(decision.plan.excluded) > _MOST_ITEMS
    return isinstance(decision, PlaceDecision) and sum(map(_items, decision.decisions)) > _MOST_ITEMS


async def pack_in_turns(decision: PlaceDecision | PartitionDecision) -> msgspec.Raw:
    """The msgpack of a decision that is_large; others have their turn in between."""
    if isinstance(decision, PlaceDecision):
        jobs = await _array(decision.decisions, [_items(job) for job in decision.decisions])
        return await packed({"decisions": jobs, "meta": decision.meta})
    plan = decision.plan
    parts = {field.name: getattr(plan, field.name) for field in fields(plan)}
    for name in ("shares", "excluded"):
        parts[name] = await _array(parts[name], [1] * len(parts[name]))
    return await packed({"plan": await packed(parts), "meta": decision.meta})


async def packed(parts: object) -> msgspec.Raw:
    """The msgpack of what holds large parts that are packed already; others have their turn first, as millions of bytes
    take milliseconds to copy."""
    await asyncio.sleep(0)
    return msgspec.Raw(_encoder.encode(parts))


def is_long(packed: bytes) -> bool:
    """True for the bytes of a decision that takes long to unpack."""
    return len(packed) > 2 * _TURN_BYTES


async def unpack_in_turns(data: msgspec.Raw, kind: type[AnyDecision]) -> AnyDecision:
    """The decision in these bytes; others have their turn in between. Raises MsgspecError."""
    if kind is PlaceDecision:
        return await _object(data, kind, {"decisions": JobDecision})
    if kind is PartitionDecision:
        fields = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
        plan = await _object(fields["plan"], PartitionPlan, {"shares": Share, "excluded": Excluded})
        return kind(plan, msgspec.msgpack.decode(fields["meta"], type=DecisionMeta))
    return msgspec.msgpack.decode(data, type=kind)


async def _object(data: msgspec.Raw, kind: type[_Object], lists: Mapping[str, type]) -> _Object:
    """An object whose fields of these names may be long."""
    fields = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
    long: dict[str, Any] = {name: await _elements(fields[name], item) for name, item in lists.items() if name in fields}
    short = _encoder.encode({**fields, **dict.fromkeys(long, ())})
    return replace(msgspec.msgpack.decode(short, type=kind), **long)


async def _elements(data: msgspec.Raw, kind: type) -> tuple[object, ...]:
    decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
    values: list[object] = []
    size = 0
    for item in msgspec.msgpack.decode(data, type=list[msgspec.Raw]):
        size += memoryview(item).nbytes
        if size > _TURN_BYTES:
            size = 0
            await asyncio.sleep(0)
        values.append(decoder.decode(item))
    return tuple(values)


async def _array(values: Sequence[object], items: Sequence[int]) -> msgspec.Raw:
    """The array of these values; `items` says how much work each is."""
    data = bytearray(_head(len(values)))
    begin, work = 0, 0
    for at, more in enumerate(items):
        if work + more > _MOST_ITEMS and at > begin:
            data += _body(values[begin:at])
            begin, work = at, 0
            await asyncio.sleep(0)
        work += more
    data += _body(values[begin:])
    return msgspec.Raw(data)


def _head(count: int) -> bytes:
    """How an array of so many begins: nil is one byte."""
    return _encoder.encode((None,) * count)[: -count or None]


def _body(values: Sequence[object]) -> bytes:
    return _encoder.encode(values)[len(_head(len(values))) :]


def _items(job: JobDecision) -> int:
    return len(job.assignments) + len(job.candidates) + len(job.neighbours)
