"""Any single byte that changes in a record or an event is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.state import job, node

from placewise_core.domain.cluster import ClusterSettings, QueueState
from placewise_log.sums import DamagedError, check_event, check_record
from placewise_service.state import codec

RECORDS = (node("n0"), job("a"), QueueState("q"), ClusterSettings())
bytes_to_change = st.tuples(st.integers(0, 10_000), st.integers(1, 255))


def changed(data: bytes, at: int, by: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes((data[at] ^ by,)) + data[at + 1 :]


@given(st.sampled_from(RECORDS), bytes_to_change)
def test_a_changed_byte_of_a_record_is_noticed(record: codec.Recorded, change: tuple[int, int]) -> None:
    stored = codec.encode_record(record)
    check_record(stored, "key", b"name")
    with pytest.raises(DamagedError):
        check_record(changed(stored, *change), "key", b"name")


@given(st.sampled_from(RECORDS))
def test_a_record_without_a_sum_is_accepted(record: codec.Recorded) -> None:
    check_record(codec.encode(record), "key", b"name")


FIELDS = {b"life": b"1f", b"kind": b"jobs", b"body": b"\x91\x80", b"args": b"\x90", b"sum": b"c5fc9dac255f8258"}


@given(st.sampled_from(sorted(FIELDS)), st.booleans(), bytes_to_change)
def test_a_changed_byte_of_an_event_is_noticed(field: bytes, is_name: bool, change: tuple[int, int]) -> None:
    fields = dict(FIELDS)
    check_event(b"7-1", fields)
    value = fields.pop(field)
    if is_name:
        fields[changed(field, *change)] = value
    else:
        fields[field] = changed(value, *change)
    with pytest.raises((DamagedError, KeyError)):
        check_event(b"7-1", fields)
