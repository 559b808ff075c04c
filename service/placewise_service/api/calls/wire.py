"""Protobuf's binary form, as far as it is read before its parser reads it, or in pieces. Knows no message.

Encoding: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message

BYTES = 2
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_PIECE_BYTES = 1 << 17  # parsed in one go, of half a millisecond

_Message = TypeVar("_Message", bound=Message)


def parsed_in_pieces(raw: bytes, kind: type[_Message]) -> _Message:
    """As `kind.FromString(raw)`, for a thread: the parser lets no other thread go on before its call is over.

    Pieces of whole fields give the same message, one merged into the other. Raises DecodeError.
    """
    message = kind()
    for piece in pieces(raw):
        message.MergeFromString(piece)
    return message


def pieces(raw: bytes, most: int = _PIECE_BYTES) -> Iterator[bytes]:
    """The message in parts of whole fields, each of `most` bytes or one field. Unparseable bytes stay in one part."""
    begin = at = 0
    size = len(raw)
    while at < size:
        tag, value = varint(raw, at, size)
        end = after(raw, value, size, tag & 7)
        if end > size:
            break
        if end - begin > most and at > begin:
            yield raw[begin:at]
            begin = at
        at = end
    yield raw[begin:]


def varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and its end; (0, end) if the number does not end."""
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, end


def after(raw: bytes, at: int, end: int, wire_type: int) -> int:
    """The end of the value that begins there; `end` if no parser would accept it."""
    if wire_type == _VARINT:
        return varint(raw, at, end)[1]
    if wire_type == BYTES:
        size, at = varint(raw, at, end)
        return at + size
    return at + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, end)
