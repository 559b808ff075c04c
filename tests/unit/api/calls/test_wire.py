"""Large messages are parsed in pieces, with the same result as in one piece."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.servers.faces import faces

from placewise.v1.cluster_pb2 import Gpu, Node, ReportNodesRequest
from placewise_core.domain.errors import InvalidRequestError
from placewise_service.api.calls import wire
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.state.redis import pipelined

REPORT = ReportNodesRequest(
    cluster="c", full=True, nodes=[Node(id=f"n{i}", gpus=[Gpu(index=i, model="V100")]) for i in range(40)]
)
RAW = REPORT.SerializeToString()
END_OF_GROUP, GROUP = b"\x7c", b"\x7b\x08\x01\x7c"


@pytest.mark.parametrize("most", [1, 7, 100, len(RAW), 1 << 20])
def test_pieces_end_where_a_field_ends(most: int) -> None:
    parts = list(wire.pieces(RAW, most))
    assert b"".join(parts) == RAW
    assert [part for part in parts if len(part) > max(most, 40)] == []
    message = ReportNodesRequest()
    for part in parts:
        message.MergeFromString(part)
    assert message == REPORT


def parsed(parts: Sequence[bytes]) -> Any:
    message = ReportNodesRequest()
    try:
        for part in parts:
            message.MergeFromString(part)
    except DecodeError:
        return None
    return message


@given(
    st.binary(max_size=60)
    | st.builds(lambda at, junk: RAW[:at] + junk + RAW[at:], st.integers(0, len(RAW)), st.binary(max_size=12)),
    st.integers(1, 200),
)
def test_pieces_are_taken_and_refused_as_the_whole(raw: bytes, most: int) -> None:
    whole, pieces = parsed([raw]), parsed(list(wire.pieces(raw, most)))
    assert (whole is None) == (pieces is None)
    assert whole is None or whole.SerializeToString(deterministic=True) == pieces.SerializeToString(deterministic=True)


@pytest.mark.parametrize("tail", [b"\x0a", b"\x0a\x7f", b"\xff" * 11, b"\x00\x00", END_OF_GROUP, b"\x7b\x08\x01"])
def test_what_no_parser_takes_is_refused_at_whatever_size(tail: bytes) -> None:
    assert parsed(list(wire.pieces(RAW + tail, 50))) is None


def test_a_group_that_nobody_knows_is_passed_over() -> None:
    assert parsed(list(wire.pieces(RAW + GROUP + RAW, 50))) is not None


async def test_a_large_message_is_parsed_in_many_calls_and_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    threads: set[int] = set()
    pieces = wire.pieces

    def noted(raw: bytes) -> Iterator[bytes]:
        for piece in pieces(raw, 1 << 13):
            sizes.append(len(piece))
            threads.add(threading.get_ident())
            yield piece

    monkeypatch.setattr(wire, "pieces", noted)
    raw = ReportNodesRequest(cluster="c", nodes=[Node(id="n" * 64 + str(i)) for i in range(2000)]).SerializeToString()
    async with faces() as served:
        message = await served.gateway.parsed(RPCS["ReportNodes"], raw)
        with pytest.raises(InvalidRequestError, match="not a ReportNodesRequest"):
            await served.gateway.parsed(RPCS["ReportNodes"], raw + b"\x0a\x7f")
    assert message.SerializeToString() == raw
    assert len(sizes) > 10
    assert max(sizes) <= 1 << 13
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("count", [1025, 2048, 5000])
def test_a_command_packed_in_pieces_is_the_same_command(count: int) -> None:
    args = ("EVALSHA", *("x" * (i % 90) if i % 2 else i for i in range(count - 1)))
    assert pipelined._packed_in_pieces(args) == hiredis.pack_command(args)  # type: ignore[arg-type]
