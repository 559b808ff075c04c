"""Reads the body of a request, no further than the limit."""

from starlette.requests import ClientDisconnect, Request

from placewise_core.errors import InvalidRequestError
from placewise_service.api.desk import Desk


async def read_body(desk: Desk, request: Request) -> bytes:
    """The whole body. Raises InvalidRequestError where it is larger than the service takes, or ends too early."""
    length = request.headers.get("content-length", "0")
    desk.check_size(int(length) if length.isdecimal() else 0)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            desk.check_size(size)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequestError("the connection ended within the body") from None
    return b"".join(chunks)
