"""How many of everything one message may hold, settled on the message before anything is built from it.

A large message in its binary form is counted before it is parsed, too: two bytes of it become an object of a hundred.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from placewise_core.basics.frozen import frozen
from placewise_core.domain.checks import MAX_ENTRIES
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.validate import MAX_CO_RUNS, MAX_EXPLORERS, MAX_LAYERS, MAX_QUEUES, Limits
from placewise_service.api.calls.wire import BYTES, after, varint

# Message, field, and the limit: a number, or the name of one in Limits. Every list and map of every request is here.
TABLE: tuple[tuple[str, str, int | str], ...] = (
    ("PlaceRequest", "jobs", "jobs"),
    ("AdmitOrWaitRequest", "jobs", "jobs"),
    ("PartitionRequest", "units", "units"),
    ("PartitionRequest", "progress", "units"),
    ("ReportNodesRequest", "nodes", "nodes"),
    ("ReportJobEventsRequest", "events", "events"),
    ("FieldMask", "paths", MAX_ENTRIES),
    ("ClusterSettings", "queues", MAX_QUEUES),
    ("ClusterSettings", "explorers", MAX_EXPLORERS),
    ("Job", "groups", "tasks_per_gang"),
    ("Job", "subtasks", "subtasks"),
    ("Job", "layers", MAX_LAYERS),
    ("Subtask", "after", "subtasks"),
    ("Subtask", "profile", MAX_ENTRIES),
    ("GpuSharing", "co_runs", MAX_CO_RUNS),
    ("TaskGroup", "node_selector", MAX_ENTRIES),
    ("Resources", "extended", MAX_ENTRIES),
    ("Node", "gpus", "gpus_per_node"),
    ("Node", "labels", MAX_ENTRIES),
    ("JobEvent", "placement", "tasks_per_gang"),
    ("Assignment", "gpu_indices", "gpus_per_node"),
)
_LIMITS = {(message, field): limit for message, field, limit in TABLE}


@frozen
class _Field:
    """A field that is repeated or holds messages: its place, its limit (0: not repeated), the kind of its messages."""

    name: str
    number: int
    limit: int | str
    holds: "_Kind | None"


@frozen
class _Kind:
    """The fields of a message that are looked at, those it holds included."""

    fields: tuple[_Field, ...]
    by_number: Mapping[int, _Field]


@cache
def _kind(descriptor: Descriptor) -> _Kind:
    fields = tuple(_fields(descriptor))
    return _Kind(fields, {field.number: field for field in fields})


def _fields(descriptor: Descriptor) -> Iterator[_Field]:
    for field in descriptor.fields:
        is_repeated = field.is_repeated
        held = field.message_type
        holds = _kind(held) if held is not None and not held.GetOptions().map_entry else None
        if holds is not None and not holds.fields:
            holds = None
        if is_repeated or holds is not None:
            limit = _LIMITS[descriptor.name, field.name] if is_repeated else 0
            yield _Field(field.name, field.number, limit, holds)


def least_counted_bytes(limits: Limits) -> int:
    """The size in bytes from which on a message can exceed one of the limits, at two bytes for each entry. The table's
    constants do not count: of a message below this size, validate.py refuses the few entries that exceed them."""
    names = {limit for limit in _LIMITS.values() if isinstance(limit, str)}
    least: int = min(getattr(limits, name) for name in names)
    return 2 * least


def check_counts(message: Message, limits: Limits) -> None:
    """Raises InvalidRequestError if a list or map of the message, or of a message in it, is too long."""
    _Count(limits).of_message(message, _kind(message.DESCRIPTOR), "")


def check_raw_counts(raw: bytes, kind: type[Message], limits: Limits) -> None:
    """As check_counts for a message that is not parsed yet. The parser refuses bytes that are no message."""
    _Count(limits).of_bytes(raw, 0, len(raw), _kind(kind.DESCRIPTOR), "")


class _Count:
    """One message's count: `items` of all its lists together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._items = 0

    def of_message(self, message: Any, kind: _Kind, at: str) -> None:
        for field in kind.fields:
            if field.limit == 0:
                if message.HasField(field.name):
                    self._count_held(getattr(message, field.name), field, f"{at}{field.name}")
                continue
            items = getattr(message, field.name)
            if count := len(items):
                self._add(count, count, field, f"{at}{field.name}", f", found {count}")
                if field.holds is not None:
                    for i, item in enumerate(items):
                        self._count_held(item, field, f"{at}{field.name}[{i}]")

    def _count_held(self, message: Any, field: _Field, at: str) -> None:
        if field.holds is not None:
            self.of_message(message, field.holds, f"{at}.")

    def of_bytes(self, raw: bytes, at: int, end: int, kind: _Kind, path: str) -> None:
        counts: dict[int, int] = {}
        while at < end:
            tag, at = varint(raw, at, end)
            field, begin = kind.by_number.get(tag >> 3), at
            at = after(raw, at, end, tag & 7)
            if field is None:
                continue
            name = f"{path}{field.name}"
            if field.limit != 0:
                count = counts[field.number] = counts.get(field.number, 0) + 1
                self._add(1, count, field, name)
                name = f"{name}[{count - 1}]"
            if field.holds is not None and tag & 7 == BYTES:
                size, begin = varint(raw, begin, end)
                self.of_bytes(raw, begin, min(begin + size, end), field.holds, f"{name}.")

    def _add(self, more: int, count: int, field: _Field, at: str, found: str = "") -> None:
        most = field.limit if isinstance(field.limit, int) else getattr(self._limits, field.limit)
        if count > most:
            raise InvalidRequestError(f"at most {most} are allowed{found}", at)
        self._items += more
        if self._items > self._limits.items:
            raise InvalidRequestError(
                f"the lists of one request may hold {self._limits.items} entries together: send several requests", at
            )
