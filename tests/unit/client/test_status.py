"""google.rpc.Status without googleapis-common-protos: written details can be read, broken ones are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.servers.status_trailer import build_status

from placewise_client.status import StatusDetails, parse_status

TEXT = st.text(max_size=30)


@given(
    message=TEXT,
    reason=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=4),
    delay_ms=st.none() | st.integers(0, 99_999),
)
def test_round_trip(message: str, reason: str, metadata: dict[str, str], delay_ms: int | None) -> None:
    delay_s = None if delay_ms is None else delay_ms / 1000
    details = StatusDetails(message, reason, metadata, delay_s)
    assert parse_status(build_status(8, "placewise", details), "placewise") == details


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 5.669, 0.9999999999, 71_234.567])
def test_a_delay_comes_back_to_the_nanosecond(delay_s: float) -> None:
    payload = build_status(8, "placewise", StatusDetails(retry_delay_s=delay_s))
    read_s = parse_status(payload, "placewise").retry_delay_s
    assert read_s == round(delay_s, 9)


def test_details_of_another_domain_are_not_ours() -> None:
    payload = build_status(5, "example.org", StatusDetails("gone", "GONE", {"a": "b"}))
    assert parse_status(payload, "placewise") == StatusDetails("gone")


@given(st.binary(max_size=80))
def test_garbage_never_raises(payload: bytes) -> None:
    assert isinstance(parse_status(payload, "placewise"), StatusDetails)


def test_known_bytes() -> None:
    """Laid out by hand from the field numbers of google/rpc/status.proto and error_details.proto."""
    info = b"\x0a\x04BUSY" + b"\x12\x09placewise" + b"\x1a\x06" + b"\x0a\x01k" + b"\x12\x01v"
    url = b"type.googleapis.com/google.rpc.ErrorInfo"
    detail = b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(info)]) + info
    payload = b"\x08\x08" + b"\x12\x04full" + b"\x1a" + bytes([len(detail)]) + detail
    assert parse_status(payload, "placewise") == StatusDetails("full", "BUSY", {"k": "v"})
