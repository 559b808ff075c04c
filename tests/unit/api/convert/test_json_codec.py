"""JSON of callers: too large ones are refused before anything is built, and large bodies wait for a free thread."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from tests.fakes.callers.identity import by_tokens
from tests.fakes.servers.listening import listening

from placewise.v1.cluster_pb2 import ReportNodesRequest
from placewise.v1.decision_pb2 import PlaceRequest
from placewise_core.domain.errors import InvalidRequestError
from placewise_service.api.convert import json_codec
from placewise_service.api.convert.json_codec import JsonCodec, has_too_many
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings

MOST = 8


@pytest.mark.parametrize(
    ("body", "is_too_many"),
    [
        (b'{"jobs":[' + b"{}," * 5 + b"{}]}", False),
        (b'{"jobs":[' + b"{}," * 6 + b"{}]}", True),
        (b"[" * 9, True),
        (b"[" + b"0," * 63 + b"0]", False),
        (b"[" + b"0," * 64 + b"0,0]", True),
        (json.dumps({"a": '{[,"\\' * 100}).encode(), False),
        (json.dumps({"a": '{[,"\\' * 100, "b": [[]] * 8}).encode(), True),
        (b'{"a":"' + b'\\"{[' * 100, False),  # a text without an end is a text
        (b'{"a":"' + b'\\"{[' * 100 + b"\\", False),
    ],
)
def test_objects_lists_and_values_are_counted_outside_of_texts(body: bytes, is_too_many: bool) -> None:
    assert has_too_many(body, MOST) is is_too_many


def test_counting_looks_at_nothing_twice() -> None:
    """Quotes without an end, each of which might begin a text: would be hours if they did."""
    assert not has_too_many(b'{"a":"' + b'\\"{[,' * 200_000 + b"\\", MOST)


async def test_too_many_are_refused_by_name_and_counted() -> None:
    reported: list[str] = []
    with pytest.raises(InvalidRequestError, match="more than 8 objects and lists, or 64 values"):
        await JsonCodec(MOST, reported.append).parsed(b'{"jobs":[' + b"{}," * 20 + b"{}]}", PlaceRequest())
    assert reported == ["json_objects"]


async def test_the_largest_lawful_report_is_within_the_limit() -> None:
    """10,000 nodes of eight GPUs, in as few bytes as they take."""
    gpus = [{"index": i} for i in range(8)]
    nodes = [{"id": f"{i}", "capacity": {"gpus": 8}, "gpus": gpus} for i in range(10_000)]
    body = json.dumps({"nodes": nodes}, separators=(",", ":")).encode()
    assert len(body) < LimitSettings().message_bytes
    assert not has_too_many(body, LimitSettings().json_objects)


async def test_large_bodies_wait_for_a_thread_and_those_who_leave_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), []
    plain = json_codec._parse

    def parse(body: bytes, message: ReportNodesRequest) -> list[str]:
        begun.append(threading.current_thread().name)
        assert gate.wait(20)
        return plain(body, message)

    monkeypatch.setattr(json_codec, "_parse", parse)
    codec = JsonCodec(MOST, lambda _: None)
    body = b"{}" + b" " * 50_000
    busy = [asyncio.create_task(codec.parsed(body, ReportNodesRequest())) for _ in range(2)]
    has_left = asyncio.Event()
    waiting = [asyncio.create_task(codec.parsed(body, ReportNodesRequest(), has_left.wait)) for _ in range(5)]
    while len(begun) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    has_left.set()
    left = await asyncio.gather(*waiting, return_exceptions=True)
    assert {str(error) for error in left} == {"the caller left before its message was read"}
    gate.set()
    assert await asyncio.gather(*busy) == [[], []]
    await codec.parsed(body, ReportNodesRequest())
    assert len(begun) == 3, "those who left cost nothing"
    assert len(set(begun)) <= 2


async def test_a_caller_who_leaves_while_its_body_waits_gives_its_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(json_codec, "_parse", lambda body, message: gate.wait(20) and [])
    token = create_token(tmp_path / "t", "decider", [AccessScope.DECIDE])
    async with listening(by_tokens(tmp_path / "t")) as at:
        body = b"{}" + b" " * 50_000
        head = (
            "POST /v1/clusters/prod/jobs:place HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", at.rest_port)
            writer.write(head + body)
            writers.append(writer)
        async with asyncio.timeout(20):
            while at.gateway.in_flight < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for writer in writers:
                writer.close()
            while at.gateway.in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        gate.set()
