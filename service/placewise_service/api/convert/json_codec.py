"""proto3 JSON to messages of the contract and back. The rules are protobuf's own; only the errors are ours."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from placewise_core.domain.errors import InvalidRequestError

# Above this a conversion takes milliseconds: it is done in a thread, so that decisions go on meanwhile.
_IN_THREAD_BYTES = 32 * 1024
_THREADS = 2  # they share one interpreter with the decisions: more would convert no faster
_VALUES_PER_OBJECT = 8
# Possessive, and ends at the end of the body at the latest: no byte of a body is looked at twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)

_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_Result = TypeVar("_Result")


class JsonCodec:
    """Converts small messages at once and large ones in a few threads, one after the other."""

    def __init__(self, most_objects: int, refused: Callable[[str], None]) -> None:
        self._most_objects = most_objects
        self._refused = refused  # called with the limit that a body goes over
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="json")

    async def parsed(
        self, body: bytes, message: Message, left: Callable[[], Awaitable[object]] | None = None
    ) -> list[str]:
        """Fills `message` from JSON; returns the names of the fields that the body gave. Raises InvalidRequestError.

        `left` returns when the caller has left: work that has not begun by then is skipped.
        """
        if len(body) <= _IN_THREAD_BYTES:
            return self._parse(body, message)
        return await self._in_thread(lambda: self._parse(body, message), left)

    async def rendered(self, message: Message) -> bytes:
        """The message as JSON."""
        if message.ByteSize() <= _IN_THREAD_BYTES:
            return _render(message)
        return await self._in_thread(lambda: _render_in_pieces(message), None)

    def _parse(self, body: bytes, message: Message) -> list[str]:
        if has_too_many(body, self._most_objects):
            self._refused("json_objects")
            raise InvalidRequestError(
                f"the body has more than {self._most_objects} objects and lists, or "
                f"{_VALUES_PER_OBJECT * self._most_objects} values",
                limit="json_objects",
            )
        return _parse(body, message)

    async def _in_thread(self, convert: Callable[[], _Result], left: Callable[[], Awaitable[object]] | None) -> _Result:
        work = asyncio.get_running_loop().run_in_executor(self._threads, convert)
        if left is None:
            return await work
        watch = asyncio.ensure_future(left())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise InvalidRequestError("the caller left before its message was read")
            return work.result()
        finally:
            work.cancel()
            watch.cancel()


def has_too_many(body: bytes, most: int) -> bool:
    """True for JSON of more objects and lists than `most`, or of eight times as many values. Nothing is built for it.

    A first count takes text for structure; only if it is above the limit, texts are left out and the count is repeated.
    """
    return len(body) > most and _is_over(body, most) and _is_over(_TEXT.sub(b"", body), most)


def _is_over(body: bytes, most: int) -> bool:
    size = len(body)
    if size - len(body.translate(None, b"{[")) > most:
        return True
    return size - len(body.translate(None, b"{[,")) > _VALUES_PER_OBJECT * most


def _parse(body: bytes, message: Message) -> list[str]:
    if not body.strip():
        return []
    try:
        document = json.loads(body, object_pairs_hook=_without_repeats)
        if not isinstance(document, dict):
            raise InvalidRequestError("the body must be a JSON object")
        json_format.ParseDict(document, message)
    except (ValueError, TypeError, OverflowError, json_format.ParseError) as error:
        raise InvalidRequestError(f"the body is not a {message.DESCRIPTOR.name}: {_reason(error)}") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deeply") from None
    names = [_field_name(message, key) for key in document]
    if len(set(names)) < len(names):  # in both spellings
        raise InvalidRequestError("the body names a field twice")
    return names


def _render(message: Message) -> bytes:
    return _dumped(json_format.MessageToDict(message)).encode()


def _render_in_pieces(message: Message) -> bytes:
    """As _render, for a thread: the encoder lets no other thread go on before it has written its whole argument."""
    return _written(json_format.MessageToDict(message), 3).encode()


def _written(value: object, depth: int) -> str:
    if depth and isinstance(value, dict):
        return "{" + ",".join([f"{_dumped(name)}:{_written(part, depth - 1)}" for name, part in value.items()]) + "}"
    if depth and isinstance(value, list):
        return "[" + ",".join([_written(part, depth - 1) for part in value]) + "]"
    return _dumped(value)


def set_from_text(message: Message, field: str, text: str) -> None:
    """Sets one field from a query parameter. Raises InvalidRequestError."""
    try:
        value: Any = {"true": True, "false": False}.get(text, text)
        json_format.ParseDict({field: value}, message)
    except json_format.ParseError as error:
        raise InvalidRequestError(_reason(error), field) from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise InvalidRequestError("the body names a field twice")
    return document


def _reason(error: Exception) -> str:
    """One line, bounded. Protobuf and json describe the error in terms of the document; Python, in terms of Python."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if not isinstance(error, json.JSONDecodeError | json_format.ParseError):
        return "a value is not of the kind, or in the range, of its field"
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


def _field_name(message: Message, key: str) -> str:
    descriptor = message.DESCRIPTOR
    field = descriptor.fields_by_camelcase_name.get(key) or descriptor.fields_by_name.get(key)
    return field.name if field is not None else key
