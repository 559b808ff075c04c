"""The way in: a call is refused by its headers alone, before any of its message is read, by every face."""

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from tests.fakes.callers.identity import by_tokens
from tests.fakes.servers.listening import listening

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import Rpc
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings

PLACE = "/placewise.v1.DecisionService/Place"
STREAM = "/placewise.v1.DecisionService/StreamPlace"
REST, CONNECT = "/v1/clusters/prod/jobs:place", PLACE


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Tokens by name; the file is at "path"."""
    path = tmp_path / "tokens.yaml"
    made = {
        "reader": create_token(path, "reader", [AccessScope.READ]),
        "elsewhere": create_token(path, "elsewhere", [AccessScope.DECIDE], ["other"]),
        "decider": create_token(path, "decider", [AccessScope.DECIDE]),
        "other": create_token(path, "other", [AccessScope.DECIDE]),
        "third": create_token(path, "third", [AccessScope.DECIDE]),
    }
    return {**made, "path": str(path)}


async def status_of_headers(port: int, path: str, token: str | None, length: int = 1000) -> int:
    """The HTTP status that a request gets of which only the headers are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = "application/json" if path == REST else "application/proto"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {length}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


async def code_of_headers(port: int, token: str | None, path: str = PLACE) -> grpc.StatusCode:
    """The gRPC status that a call gets whose message is never sent."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_unary(path)(metadata=metadata)
        async with asyncio.timeout(10):
            return await call.code()


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        (None, 401, grpc.StatusCode.UNAUTHENTICATED),
        ("wrong", 401, grpc.StatusCode.UNAUTHENTICATED),
        ("reader", 403, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_who_may_not_ask_is_refused_before_the_message(
    tokens: dict[str, str], name: str | None, status: int, code: grpc.StatusCode
) -> None:
    token = None if name is None else tokens.get(name, name)
    async with listening(by_tokens(Path(tokens["path"]))) as at:
        assert await status_of_headers(at.rest_port, REST, token) == status
        assert await status_of_headers(at.rest_port, CONNECT, token) == status
        assert await code_of_headers(at.grpc_port, token) is code
        assert await code_of_headers(at.grpc_port, token, STREAM) is code
        assert at.gateway.in_flight == 0


async def test_a_cluster_in_the_path_is_authorised_before_the_body(tokens: dict[str, str]) -> None:
    async with listening(by_tokens(Path(tokens["path"]))) as at:
        assert await status_of_headers(at.rest_port, REST, tokens["elsewhere"]) == 403


async def test_a_full_service_sheds_before_the_message() -> None:
    async with listening(limits=LimitSettings(in_flight=1)) as at:
        _, writer = await asyncio.open_connection("127.0.0.1", at.rest_port)
        writer.write(f"POST {REST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n".encode())
        writer.write(b"Content-Type: application/json\r\n\r\n")
        await until_in_flight(at.gateway, 1)
        assert await status_of_headers(at.rest_port, REST, None) == 429
        assert await status_of_headers(at.rest_port, CONNECT, None) == 429
        assert await code_of_headers(at.grpc_port, None) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 'placewise_refused_total{face="all",limit="in_flight"} 3.0' in at.metrics()
        writer.close()
        await writer.wait_closed()
        await until_in_flight(at.gateway, 0)


async def until_in_flight(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(10):
        while gateway.in_flight != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_call_that_ends_without_a_message_is_the_callers_fault() -> None:
    async with listening() as at, grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
        call = channel.stream_unary(PLACE)()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "the call ended without a message"


async def test_a_caller_who_leaves_before_his_message_gives_his_place_back() -> None:
    async with listening() as at, grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel:
        call = channel.stream_unary(PLACE)()
        await until_in_flight(at.gateway, 1)
        call.cancel()
        await until_in_flight(at.gateway, 0)


async def test_a_caller_holds_no_more_than_its_share_of_the_places(tokens: dict[str, str]) -> None:
    limits = LimitSettings(in_flight=4, caller_share=0.5)
    async with (
        listening(by_tokens(Path(tokens["path"])), limits) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        stub = DecisionServiceStub(channel)
        ours = [("authorization", f"Bearer {tokens['decider']}")]
        held = [stub.Place(question("GATE"), metadata=ours) for _ in range(2)]
        await until_in_flight(at.gateway, 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Place(question(), metadata=ours)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.details() == "this caller has 2 requests in flight; its share is 2"
        assert await status_of_headers(at.rest_port, REST, tokens["decider"]) == 429
        other = [("authorization", f"Bearer {tokens['other']}")]
        assert (await stub.Place(question(), metadata=other)).decisions, "the other half is free"
        at.engine.gate.set()
        await asyncio.gather(*held)
        assert (await stub.Place(question(), metadata=ours)).decisions, "the place in flight is free again"
        metrics = at.metrics()
    assert 'placewise_refused_total{face="all",limit="caller_share"} 2.0' in metrics
    assert 'placewise_shed_total{rpc="Place"} 2.0' in metrics


async def announced(port: int, token: str | None, *length: str) -> asyncio.StreamWriter:
    """A connection with a Place of which only the headers are sent."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    who = [] if token is None else [f"Authorization: Bearer {token}"]
    lines = [f"POST {REST} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *length, *who]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    return writer


@pytest.mark.parametrize("path", [REST, CONNECT])
async def test_the_bytes_of_large_messages_are_bounded_by_caller_and_together(
    tokens: dict[str, str], path: str
) -> None:
    limits = LimitSettings(bodies_bytes=4 << 20, caller_share=0.5)
    async with listening(by_tokens(Path(tokens["path"])), limits) as at:
        ours, other = tokens["decider"], tokens["other"]
        large = f"Content-Length: {3 << 19}"
        first = await announced(at.rest_port, ours, large)
        await until_in_flight(at.gateway, 1)
        assert await status_of_headers(at.rest_port, path, ours, 3 << 19) == 429
        small = await announced(at.rest_port, ours, "Content-Length: 60000")
        await until_in_flight(at.gateway, 2)
        second = await announced(at.rest_port, other, large)
        await until_in_flight(at.gateway, 3)
        third = tokens["third"]
        assert await status_of_headers(at.rest_port, path, third, 3 << 19) == 429, "all of it is taken"
        for writer in (first, small, second):
            writer.close()
        await until_in_flight(at.gateway, 0)
        again = await announced(at.rest_port, ours, large)
        await until_in_flight(at.gateway, 1)
        again.close()
        assert 'placewise_refused_total{face="all",limit="bodies_bytes"} 2.0' in at.metrics()


async def test_a_message_that_does_not_say_its_length_counts_as_the_largest() -> None:
    async with listening(limits=LimitSettings(bodies_bytes=4 << 20)) as at:
        writer = await announced(at.rest_port, None, "Transfer-Encoding: chunked")
        writer.write(b"11000\r\n" + b" " * 0x11000 + b"\r\n")
        async with asyncio.timeout(10):
            while await status_of_headers(at.rest_port, CONNECT, None, 70_000) != 429:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        writer.close()


async def test_a_large_message_by_grpc_is_counted_once_it_is_there(tokens: dict[str, str]) -> None:
    limits = LimitSettings(bodies_bytes=1 << 20, caller_share=0.5)
    async with (
        listening(by_tokens(Path(tokens["path"])), limits) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        ours = [("authorization", f"Bearer {tokens['decider']}")]
        held = await announced(at.rest_port, tokens["decider"], "Content-Length: 500000")
        await until_in_flight(at.gateway, 1)
        request = question("a" * 70_000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await DecisionServiceStub(channel).Place(request, metadata=ours)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await DecisionServiceStub(channel).Place(question(), metadata=ours)).decisions
        held.close()


# -- Streams -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the messages that were parsed for a stream, or are large."""
    sizes: list[int] = []
    parse = Gateway.parsed

    async def noting(gateway: Gateway, rpc: Rpc, raw: bytes) -> Message:
        sizes.append(len(raw))
        return await parse(gateway, rpc, raw)

    monkeypatch.setattr(Gateway, "parsed", noting)
    return sizes


async def asked_by_stream(channel: grpc.aio.Channel, request: PlaceRequest, token: str) -> PlaceResponse:
    stream = DecisionServiceStub(channel).StreamPlace(iter([request]), metadata=bearer(token))
    [answer] = [each async for each in stream]
    return answer


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


async def test_a_message_of_a_stream_has_its_place_before_it_is_parsed(
    tokens: dict[str, str], parsed: list[int]
) -> None:
    limits, ours = LimitSettings(in_flight=4, caller_share=0.5), tokens["decider"]
    async with (
        listening(by_tokens(Path(tokens["path"])), limits) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        held = [DecisionServiceStub(channel).Place(question("GATE"), metadata=bearer(ours)) for _ in range(2)]
        await until_in_flight(at.gateway, 2)
        refused = await asked_by_stream(channel, question(), ours)
        assert refused.error.message == "this caller has 2 requests in flight; its share is 2"
        assert parsed == []
        assert (await asked_by_stream(channel, question(), tokens["other"])).decisions, "the other half is free"
        at.engine.gate.set()
        await asyncio.gather(*held)
        assert (await asked_by_stream(channel, question(), ours)).decisions
        assert 'placewise_refused_total{face="all",limit="caller_share"} 1.0' in at.metrics()


async def test_a_large_message_of_a_stream_has_its_room_before_it_is_parsed(
    tokens: dict[str, str], parsed: list[int]
) -> None:
    limits, ours = LimitSettings(bodies_bytes=1 << 20, caller_share=0.5), tokens["decider"]
    async with (
        listening(by_tokens(Path(tokens["path"])), limits) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        held = await announced(at.rest_port, ours, "Content-Length: 500000")
        await until_in_flight(at.gateway, 1)
        refused = await asked_by_stream(channel, question("a" * 70_000), ours)
        assert refused.error.reason == "OVERLOADED"
        assert parsed == []
        assert (await asked_by_stream(channel, question(), ours)).decisions
        held.close()
        await until_in_flight(at.gateway, 0)
        assert (await asked_by_stream(channel, question("a" * 70_000), ours)).error.reason == "INVALID_REQUEST"
        assert len(parsed) == 2, "there is room again"
        assert 'placewise_refused_total{face="all",limit="bodies_bytes"} 1.0' in at.metrics()


async def test_open_streams_are_bounded_by_caller_and_together(tokens: dict[str, str]) -> None:
    limits = LimitSettings(in_flight=3, caller_share=0.7)
    async with (
        listening(by_tokens(Path(tokens["path"])), limits) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):

        async def opened(name: str) -> "grpc.aio.StreamStreamCall[PlaceRequest, PlaceResponse]":
            stream = DecisionServiceStub(channel).StreamPlace(metadata=bearer(tokens[name]))
            await stream.write(question())
            answer = await stream.read()
            assert isinstance(answer, PlaceResponse)
            assert answer.decisions
            return stream

        first, _ = await opened("decider"), await opened("decider")
        third = DecisionServiceStub(channel).StreamPlace(metadata=bearer(tokens["decider"]), timeout=10)
        assert await third.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await third.details() == "this caller has 2 streams open; its share is 2"
        await opened("other")
        fourth = DecisionServiceStub(channel).StreamPlace(metadata=bearer(tokens["third"]), timeout=10)
        assert await fourth.details() == "3 streams are open; the limit is 3"
        assert 'placewise_refused_total{face="all",limit="streams"} 2.0' in at.metrics()
        assert at.gateway.in_flight == 0, "a stream that asks nothing takes the place of no call"
        await first.done_writing()
        assert await first.code() is grpc.StatusCode.OK
        await opened("third")


async def test_where_nobody_is_told_from_anybody_all_places_are_everybodys() -> None:
    async with (
        listening(limits=LimitSettings(in_flight=4, caller_share=0.5)) as at,
        grpc.aio.insecure_channel(f"127.0.0.1:{at.grpc_port}") as channel,
    ):
        held = [DecisionServiceStub(channel).Place(question("GATE")) for _ in range(4)]
        await until_in_flight(at.gateway, 4)
        at.engine.gate.set()
        await asyncio.gather(*held)


def question(model: str = "") -> PlaceRequest:
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(gpus=1))
    return PlaceRequest(cluster="prod", jobs=[Job(id="j", model=model, groups=[group])])
