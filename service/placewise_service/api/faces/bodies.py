"""Reads the body of a request, up to the limit, once memory is reserved for it."""

from collections.abc import Mapping

from starlette.types import Receive

from placewise_core.domain.errors import InvalidRequestError
from placewise_service.api.calls.body_room import SMALL_BYTES
from placewise_service.api.calls.gateway import Call


async def read_body(call: Call, headers: Mapping[str, str], receive: Receive) -> bytes:
    """The whole body. Raises InvalidRequestError if it is larger than the limit or ends too early, and OverloadedError
    if no memory is free for it now. A body of unknown length counts as the largest."""
    gateway = call.gateway
    header = headers.get("content-length", "0")
    length = int(header) if header.isdecimal() else 0
    gateway.check_size(length)
    call.make_room(length)
    chunks: list[bytes] = []
    size = 0
    is_whole = False
    while not is_whole:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise InvalidRequestError("the connection ended within the body")
        chunk = part.get("body", b"")
        size += len(chunk)
        gateway.check_size(size)
        if size > SMALL_BYTES and not call.room_bytes:
            call.make_room(gateway.limits.message_bytes)
        chunks.append(chunk)
        is_whole = not part.get("more_body", False)
    return b"".join(chunks)
