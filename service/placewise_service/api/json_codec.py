"""proto3 JSON to messages of the contract and back. The rules are protobuf's own; only the errors are ours."""

import asyncio
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from placewise_core.errors import InvalidRequestError

# Above this a conversion takes milliseconds: it is done in a thread, so that decisions go on meanwhile.
_IN_THREAD_BYTES = 32 * 1024


async def parsed(body: bytes, message: Message) -> list[str]:
    """Fills `message` from JSON; returns the names of the fields that the body gave. Raises InvalidRequestError."""
    if len(body) > _IN_THREAD_BYTES:
        return await asyncio.to_thread(_parse, body, message)
    return _parse(body, message)


async def rendered(message: Message) -> bytes:
    """The message as JSON."""
    if message.ByteSize() > _IN_THREAD_BYTES:
        return await asyncio.to_thread(_render, message)
    return _render(message)


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
    document = json_format.MessageToDict(message)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


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
    """One line, bounded. Protobuf and json say what is wrong in terms of the document; Python, in terms of Python."""
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
