"""Sums over stored records, so that no view is built from a damaged byte. Never does I/O.

Python sums the records that it writes (nodes, jobs, queues, settings): a CRC-32 in their last field. Lua sums events
(shared/event.lua) and, beside them, the rows that it computes (shared/rows.lua): half a SHA-1, the only digest that
scripts have. A record without a sum was written by an earlier replica, and is accepted.
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping

import msgspec

# The field `crc` of a msgpack map, as far as its four bytes of value.
_FIELD = b"\xa3crc\xce"
_SIZE = len(_FIELD) + 4
_packed = struct.Struct(">5sI").pack
_ONE_MORE = {
    head: bytes((head + 1,)) for head in range(0x80, 0x8F)
}  # the first byte of a map, of one with a field more
_UNSUMMED = frozenset((b"life", b"kind", b"body", b"args"))
_DIGITS = 16
# The first byte of a row that has a sum: an array, or a map, that spells its number of values in four bytes.
_SUMMED_ROWS = (b"\xdd", b"\xdf")


class DamagedError(msgspec.DecodeError):
    """The bytes of a record or an event are not those that were written.

    `key` is the last part of the key's name; `name` the record's field there, or the event's id.
    """

    def __init__(self, key: str, name: bytes) -> None:
        self.key = key
        self.name = name.decode(errors="backslashreplace")
        super().__init__(f"{self.name!r} in {key} is damaged")


def summed(record: bytes) -> bytes:
    """The msgpack map with one more field, the last: `crc`, over every byte before it. Older readers pass over it.

    Raises KeyError for a map of more than 14 fields: the number of less stands in the first byte.
    """
    counted = _ONE_MORE[record[0]] + record[1:]
    return counted + _packed(_FIELD, zlib.crc32(counted))


def check_record(record: bytes, key: str, name: bytes) -> None:
    """Raises DamagedError. A sum that fits behind a damaged name of its field is damage as well."""
    fits = zlib.crc32(record[:-_SIZE]) == int.from_bytes(record[-4:], "big")
    if fits != (record[-_SIZE:-4] == _FIELD):
        raise DamagedError(key, name)


def check_event(entry_id: bytes, fields: Mapping[bytes, bytes]) -> None:
    """Raises DamagedError, and KeyError for an entry that is no event.

    The sum is over all that the entry holds and its id, so that no event passes for another.
    """
    found = fields.get(b"sum")
    if found is None and fields.keys() == _UNSUMMED:
        return
    epoch, kind, body, args = fields[b"life"], fields[b"kind"], fields[b"body"], fields[b"args"]
    digest = hashlib.sha1(b"%b %b %b %d " % (entry_id, epoch, kind, len(body)), usedforsecurity=False)
    digest.update(body)
    digest.update(args)
    if found != digest.hexdigest()[:_DIGITS].encode():
        raise DamagedError("events", entry_id)


def check_row(row: bytes, key: str, name: bytes, found: bytes | None) -> None:
    """Raises DamagedError if the row has a sum and it is not `found`, the one that is kept beside it."""
    if row[:1] not in _SUMMED_ROWS:
        return
    digest = hashlib.sha1(b"%b %d %b%b" % (key.encode(), len(name), name, row), usedforsecurity=False)
    if found != digest.hexdigest()[:_DIGITS].encode():
        raise DamagedError(key, name)
