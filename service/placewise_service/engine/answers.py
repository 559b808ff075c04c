"""Answers as bytes, to be given again for a repeated request_id. Knows the three decisions and nothing else."""

from dataclasses import replace
from typing import TypeVar

import msgspec

from placewise_core.decision import AdmitDecision, PartitionDecision, PlaceDecision

Decision = TypeVar("Decision", PlaceDecision, PartitionDecision, AdmitDecision)

_ENCODER = msgspec.msgpack.Encoder()


def encode_answer(decision: PlaceDecision | PartitionDecision | AdmitDecision) -> bytes:
    """msgpack of the decision, tagged by the caller's use: one request_id belongs to one RPC."""
    return _ENCODER.encode([type(decision).__name__, decision])


def decode_answer(answer: bytes, kind: type[Decision]) -> Decision | None:
    """The remembered decision marked as repeated; None if the id was used for another RPC."""
    name, body = msgspec.msgpack.decode(answer, type=tuple[str, msgspec.Raw])
    if name != kind.__name__:
        return None
    decision = msgspec.msgpack.decode(body, type=kind)
    return replace(decision, meta=replace(decision.meta, is_repeated=True))
