"""The fingerprint that a request_id is bound to: caller and meaning of the request, not its encoding.

A fingerprint is the digest of the caller's name, the kind of request, and its fields in protobuf's deterministic form.
So it is the same over gRPC, REST and Connect, in snake and camel case, in any order of map entries, with default values
spelt out or left out. It leaves out `request_id` itself, `now`, which is the time of asking, and fields that this
release does not know. Protobuf's form
omits unset fields, so replicas of neighbouring releases agree on every request that uses no new field.
"""

import hashlib
import re
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PartitionRequest, PlaceRequest

_DIGEST_BYTES = 16
# An empty message means the same as none, except in this field: its presence makes AdmitOrWait place.
_TELLING = frozenset({"placewise.v1.AdmitOrWaitRequest.place"})
# An empty message is its tag (of a field below 128) and a zero. Doubles may look so, too, so each match is looked at.
_MAY_BE_EMPTY = re.compile(rb"[\x01-\x07\x0a\x12\x1a\x22\x2a\x32\x3a\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x00")


Question = PlaceRequest | PartitionRequest | AdmitOrWaitRequest


def fingerprint(request: Question, caller: str) -> bytes:
    """The fingerprint of a request that has passed its limits; b"" if the request has no id to remember."""
    inner = request.place if isinstance(request, AdmitOrWaitRequest) and request.HasField("place") else None
    if not request.request_id and not (inner and inner.request_id):
        return b""
    question: Any = type(request)()
    question.CopyFrom(request)
    question.ClearField("request_id")
    question.ClearField("now")
    if inner:
        question.place.ClearField("request_id")
    question.DiscardUnknownFields()
    form = question.SerializeToString(deterministic=True)
    if _MAY_BE_EMPTY.search(form):
        _leave_out_empty(question)
        form = question.SerializeToString(deterministic=True)
    asked = f"{len(caller)}:{caller}:{question.DESCRIPTOR.full_name}:".encode(errors="surrogatepass")
    return hashlib.blake2b(asked + form, digest_size=_DIGEST_BYTES).digest()


def _leave_out_empty(message: Message) -> None:
    kind: Any = type(message)
    one, many = _parts(kind)
    for name, is_telling in one:
        if message.HasField(name):
            part = getattr(message, name)
            _leave_out_empty(part)
            if not is_telling and not part.ByteSize():
                message.ClearField(name)
    for name in many:
        for part in getattr(message, name):
            _leave_out_empty(part)


@lru_cache
def _parts(kind: Any) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...]]:
    """Names of the fields that hold one message (and whether an empty one has a meaning), and of those that hold
    many. Maps hold numbers and texts."""
    empty = kind()
    fields = [field for field in empty.DESCRIPTOR.fields if field.message_type is not None]
    one = [field for field in fields if isinstance(getattr(empty, field.name), Message)]
    many = [f.name for f in fields if f.is_repeated and not f.message_type.GetOptions().map_entry]
    return tuple((field.name, field.full_name in _TELLING) for field in one), tuple(many)
