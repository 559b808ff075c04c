"""The HTTP face on a socket: headers, URLs, bodies, time and connections are bounded, and each refusal is counted."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.fakes.callers.identity import by_tokens
from tests.fakes.callers.tls import Authority
from tests.fakes.servers.faces import FakeEngine, faces
from tests.fakes.servers.listening import Listening, listening

from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.listener import connection_limit
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.faces.tls import Certificates
from placewise_service.api.identity.auth import AccessScope, Open
from placewise_service.api.identity.token_changes import create_token
from placewise_service.settings import LimitSettings, ServerSettings, TlsSettings
from placewise_service.telemetry import Telemetry

PLACE = "/v1/clusters/prod/jobs:place"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
JSON = "Content-Type: application/json"


@asynccontextmanager
async def connected(at: Listening | RestFace) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of our own to the HTTP face."""
    port = at.port if isinstance(at, RestFace) else at.rest_port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def status(reader: asyncio.StreamReader) -> int:
    """Of the next answer, which is read whole; 0 if the connection ends instead."""
    try:
        async with asyncio.timeout(20):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            [length] = [line[15:] for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
    return int(head.split(b" ")[1])


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(20):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


def refused(at: Listening, limit: str) -> bool:
    return f'placewise_refused_total{{face="http",limit="{limit}"}} 1.0' in at.metrics()


def request(path: str = PLACE, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("head", "answer", "limit"),
    [
        (request("/healthz", f"X-A: {'a' * 65_536}", method="GET"), 431, "header_bytes"),
        (request("/healthz", *(f"X-{i}: a" for i in range(2000)), method="GET"), 431, "header_bytes"),
        (request(f"/healthz?{'a' * 8192}", method="GET"), 414, "url_bytes"),
        (b"GARBAGE\r\n\r\n", 400, "malformed"),
        (request("/healthz", "Upgrade: h2c", "Connection: upgrade", method="GET"), 200, ""),
        (request(f"/healthz?{'a' * 8000}", f"X-A: {'a' * 60_000}", method="GET"), 200, ""),
    ],
    ids=["one long header", "many headers", "long URL", "garbage", "upgrade", "within"],
)
async def test_a_head_over_its_limits_is_refused_in_a_status(head: bytes, answer: int, limit: str) -> None:
    async with listening() as at, connected(at) as (reader, writer):
        writer.write(head)
        assert await status(reader) == answer
        assert not limit or (refused(at, limit) and await has_ended(reader))


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nX-A: "])
async def test_a_head_without_an_end_is_cut_off(begin: bytes) -> None:
    """An unfinished request shows only in the count of bytes."""
    async with listening() as at, connected(at) as (reader, writer):
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"a" * (64 << 10))
                await writer.drain()
        assert await status(reader) in (431, 414, 0)
        assert refused(at, "header_bytes") or refused(at, "url_bytes")


@pytest.mark.parametrize(
    ("sent", "answer", "limit"),
    [
        (b"", 0, "header_time"),
        (b"GET /healthz HT", 408, "header_time"),
        (request(PLACE, JSON, "Content-Length: 100"), 408, "body_time"),
        (HEALTH, 0, "idle_time"),
    ],
    ids=["nothing", "half a head", "no body", "no second request"],
)
async def test_what_takes_too_long_is_ended(sent: bytes, answer: int, limit: str) -> None:
    async with listening(limits=LimitSettings(header_s=0.1, body_s=0.1, idle_s=0.1)) as at:
        async with connected(at) as (reader, writer):
            writer.write(sent)
            if sent == HEALTH:
                assert await status(reader) == 200
            assert await status(reader) == answer
            assert await has_ended(reader)
        assert refused(at, limit)
        assert at.gateway.in_flight == 0, "the place of a message that never came is free again"


async def test_a_handshake_that_does_not_begin_is_ended_and_counted(tmp_path: Path) -> None:
    """Before the handshake there is no connection of HTTP yet: only the handshake's own limit can end it."""
    telemetry = Telemetry()
    gateway = Gateway(FakeEngine(), SystemClock(), LimitSettings(handshake_s=0.1), Open(), telemetry)
    cert, key = Authority("servers").write(tmp_path, "server")
    face = RestFace(gateway, ServerSettings(rest_port=0), Certificates(TlsSettings(cert_file=cert, key_file=key)))
    await face.start()
    try:
        async with connected(face) as (reader, _):
            assert await has_ended(reader)
        async with asyncio.timeout(20):
            while b'placewise_refused_total{face="http",limit="handshake"} 1.0' not in telemetry.render():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        await face.stop()


@pytest.mark.parametrize("path", [PLACE, "/placewise.v1.DecisionService/Place"], ids=["REST", "Connect"])
async def test_a_body_of_more_objects_than_the_default_limit_is_refused_and_counted(path: str, tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "owner", [AccessScope.DECIDE])
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    most = LimitSettings().json_objects
    counted = b'placewise_refused_total{face="http",limit="json_objects"} 1.0'
    async with faces(authenticator=by_tokens(tmp_path / "t")) as running:
        for objects, words in ((most, "at most 256 are allowed"), (most + 1, f"more than {most} objects and lists")):
            assert counted not in running.gateway.telemetry.render()
            jobs = ",".join(["{}"] * (objects - 2))  # the request and its list are objects, too
            answer = await running.http.post(path, content=f'{{"jobs":[{jobs}]}}', headers=headers)
            assert answer.status_code == 400
            assert words in answer.text
        assert counted in running.gateway.telemetry.render()


async def test_an_answer_before_the_message_ends_the_connection_and_is_read_all_the_same() -> None:
    async with listening(limits=LimitSettings(message_bytes=1024)) as at, connected(at) as (reader, writer):
        writer.write(request(PLACE, JSON, "Content-Length: 8000000") + b" " * 1_000_000)
        assert await status(reader) == 400
        assert await has_ended(reader)


async def test_a_message_without_a_length_is_bounded_too() -> None:
    async with listening(limits=LimitSettings(message_bytes=1024)) as at, connected(at) as (reader, writer):
        writer.write(request(PLACE, JSON, "Transfer-Encoding: chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(b"1;" + b"x" * 1000 + b"\r\n \r\n")  # mostly frame
                await writer.drain()
        assert await status(reader) in (400, 413, 0)
        assert await has_ended(reader)


async def test_requests_sent_ahead_are_answered_in_order_and_bounded() -> None:
    async with listening() as at:
        async with connected(at) as (reader, writer):
            writer.write(HEALTH * 10)
            assert [await status(reader) for _ in range(10)] == [200] * 10
        async with connected(at) as (reader, writer):
            writer.write(HEALTH * 1000)
            answers = [await status(reader) for _ in range(30)]
        assert set(answers) == {200, 0} or set(answers) == {0}
        assert refused(at, "pipelined")


async def test_who_waits_longest_without_a_question_makes_room_for_who_has_one() -> None:
    async with listening(limits=LimitSettings(connections=3)) as at, contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(connected(at)) for _ in range(3)]
        async with connected(at) as (reader, writer):
            writer.write(HEALTH)
            assert await status(reader) == 200
        assert await has_ended(silent[0][0])
        assert refused(at, "connections")
        silent[2][1].write(HEALTH)
        assert await status(silent[2][0]) == 200, "the others are as they were"


async def test_where_all_connections_are_busy_another_is_closed() -> None:
    async with listening(limits=LimitSettings(connections=2)) as at, contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            _, writer = await stack.enter_async_context(connected(at))
            writer.write(request(PLACE, JSON, "Content-Length: 100"))
        async with asyncio.timeout(20):
            while at.gateway.in_flight < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        async with connected(at) as (reader, _):
            assert await has_ended(reader)
        assert refused(at, "connections")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_connections_that_come_all_at_once_are_bounded_too(
    run: Callable[[Coroutine[Any, Any, None]], None], is_encrypted: bool, tmp_path: Path
) -> None:
    run(all_at_once(is_encrypted, tmp_path))


async def all_at_once(is_encrypted: bool, folder: Path) -> None:
    cert, key = Authority("test").write(folder, "server")
    certificates = Certificates(TlsSettings(cert_file=cert, key_file=key)) if is_encrypted else None
    limits = LimitSettings(connections=4, header_s=60, handshake_s=60)
    gateway = Gateway(FakeEngine(), SystemClock(), limits, Open(), Telemetry())
    face = RestFace(gateway, ServerSettings(rest_port=0), certificates)
    await face.start()
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", face.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(100)]  # it has no turn yet
        async with asyncio.timeout(20):
            while sum(map(is_open, silent)) > 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        while face._listener._state.connections or face._listener._handshakes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await face.stop()


def is_open(silent: socket.socket) -> bool:
    """Whether the other side still holds a connection on which nothing was sent."""
    silent.setblocking(False)
    try:
        return silent.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_each_face_may_use_half_of_the_files_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, wanted, allowed in ((256, 0, 64), (1024, 0, 448), (20_000, 0, 1000), (20_000, 5000, 5000), (64, 0, 8)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert connection_limit(wanted) == allowed
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    assert connection_limit(5000) == 64
