"""Records that take long to encode: their bytes, others having their turn in between."""

from typing import TypeGuard

from placewise_log.record import SCHEMA_VERSION, DecisionRecord, Entry
from placewise_service import pieces


def is_large(entry: Entry) -> TypeGuard[DecisionRecord]:
    """True for the record of a decision that takes long to encode."""
    return isinstance(entry, DecisionRecord) and pieces.is_large(entry.answer)


async def encode_in_turns(entry: DecisionRecord) -> bytes:
    """As `encode` of an entry that is_large; others have their turn in between."""
    fields = {name: getattr(entry, name) for name in DecisionRecord.__dataclass_fields__}
    for name in ("place", "partition"):
        if (decision := fields[name]) is not None:
            fields[name] = await pieces.pack_in_turns(decision)
    return bytes(await pieces.packed((SCHEMA_VERSION, "decision", entry.decision_id, fields)))
