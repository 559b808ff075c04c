"""Answers as bytes, to be given again for a repeated request_id. Knows the three decisions and nothing else."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from placewise_core.decision import AdmitDecision, PartitionDecision, PlaceDecision

Decision = TypeVar("Decision", PlaceDecision, PartitionDecision, AdmitDecision)

_ENCODER = msgspec.msgpack.Encoder()


def encode_answer(
    decision: PlaceDecision | PartitionDecision | AdmitDecision, reservations: Sequence[str] = ()
) -> bytes:
    """msgpack of the decision, tagged by the caller's use: one request_id belongs to one RPC.

    `reservations` are those it makes; their expiry is known only when the store has made them, see `decode_answer`.
    """
    return _ENCODER.encode([type(decision).__name__, decision, reservations])


def decode_answer(answer: bytes, kind: type[Decision], expire_time_s: float = 0.0) -> Decision | None:
    """The remembered decision marked as repeated, its own reservations with their expiry; None if the id was used for
    another RPC."""
    name, body, reservations = msgspec.msgpack.decode(answer, type=tuple[str, msgspec.Raw, list[str]])
    if name != kind.__name__:
        return None
    decision = msgspec.msgpack.decode(body, type=kind)
    decision = replace(decision, meta=replace(decision.meta, is_repeated=True))
    return held_until(decision, reservations, expire_time_s) if isinstance(decision, PlaceDecision) else decision


def held_until(decision: PlaceDecision, reservations: Collection[str], expire_time_s: float) -> PlaceDecision:
    """The decision, its reservations of these ids with their expiry."""
    decisions = [d.held_until(expire_time_s) if d.reservation_id in reservations else d for d in decision.decisions]
    return PlaceDecision(tuple(decisions), decision.meta)
