"""Checks of single values: each raises InvalidRequestError with the field. Knows no request."""

import math
from collections.abc import Iterable, Mapping

from placewise_core.domain.errors import InvalidRequestError

MAX_ID = 253  # the longest DNS name: ids of host schedulers are such names
MAX_TEXT = 512
# Sums of amounts that are multiples of 2⁻²⁰ (job.quantise) are exact in binary floating point below 2⁵³ ⋅ 2⁻²⁰.
MAX_AMOUNT = 2.0**32
MAX_NUMBER = 1e15
MAX_TIME_S = 253_402_300_799.0  # the end of the year 9999, the last that a Timestamp can hold
MAX_ENTRIES = 256  # of one map


def check_map(values: Mapping[str, float], field: str, most: float) -> None:
    check_count(len(values), MAX_ENTRIES, field)
    for name, value in values.items():
        check_id(name, field)
        if not 0.0 <= value <= most:
            raise InvalidRequestError(f"must be 0 … {most:g}", f"{field}[{name!r}]")


def check_labels(labels: Mapping[str, str], field: str) -> None:
    check_count(len(labels), MAX_ENTRIES, field)
    for name, value in labels.items():
        check_id(name, field, MAX_TEXT)
        check_text(value, f"{field}[{name!r}]", MAX_TEXT)


def check_id(value: str, field: str, most: int = MAX_ID) -> None:
    if not value:
        raise InvalidRequestError("must not be empty", field)
    check_text(value, field, most)


def check_text(value: str, field: str, most: int) -> None:
    if len(value) > most:
        raise InvalidRequestError(f"must be at most {most} characters", field)
    if not value.isprintable():
        raise InvalidRequestError("must be printable", field)


def check_number(value: float, field: str) -> None:
    if not 0.0 <= value <= MAX_NUMBER:
        raise InvalidRequestError(f"must be 0 … {MAX_NUMBER:g}", field)


def check_amount(value: float, field: str) -> None:
    if not 0.0 <= value <= MAX_AMOUNT:
        raise InvalidRequestError(f"must be 0 … {MAX_AMOUNT:g}", field)


def check_time(value: float, field: str) -> None:
    if not 0.0 <= value <= MAX_TIME_S:
        raise InvalidRequestError("must lie between 1970 and 9999", field)


def check_reading(value: float, least: float, most: float, field: str) -> None:
    """A measured value; NaN stands for one that was not measured."""
    if not least <= value <= most and not math.isnan(value):
        raise InvalidRequestError(f"must be {least:g} … {most:g}", field)


def check_count(count: int, most: int, field: str) -> None:
    if count > most:
        raise InvalidRequestError(f"at most {most} are allowed, found {count}", field)


def check_unique(values: Iterable[object], field: str) -> None:
    """Raises InvalidRequestError if a value stands twice."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise InvalidRequestError("must not repeat an entry", field)
        seen.add(value)
