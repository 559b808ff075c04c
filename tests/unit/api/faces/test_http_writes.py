"""How the answers of one HTTP connection are written out."""

import asyncio
from typing import Any

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from placewise_service.api.faces.http_connection import Crowd, HttpConnection
from placewise_service.settings import LimitSettings

LARGE = b"x" * 100_000


class RecordedWrites(asyncio.Transport):
    """Keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    match scope["path"]:
        case "/small":
            await Response(b"small")(scope, receive, send)
        case "/large":
            await Response(LARGE)(scope, receive, send)
        case "/echo":
            await Response((await receive())["body"])(scope, receive, send)
        case "/parts":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"one", b"two"):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        case "/broken":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            raise RuntimeError("the body cannot be made")


def connected() -> tuple[HttpConnection, RecordedWrites]:
    config = uvicorn.Config(app, lifespan="off", http="httptools", ws="none", log_config=None, access_log=False)
    config.load()
    loop = asyncio.get_running_loop()
    connection = HttpConnection(config, ServerState(), Crowd(LimitSettings(), lambda limit, peer: None, loop.time))
    transport = RecordedWrites()
    connection.connection_made(transport)
    return connection, transport


async def written(*requests: str) -> RecordedWrites:
    connection, transport = connected()
    for request in requests:
        connection.data_received(request.encode())
        for _ in range(5):
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport


async def test_an_answer_is_written_at_once() -> None:
    transport = await written("GET /small HTTP/1.1\r\nHost: h\r\n\r\n")
    [answer] = transport.writes
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nsmall")


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    transport = await written("GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
    head, body = transport.writes
    assert head.endswith(b"content-length: 100000\r\n\r\n")
    assert body == LARGE


async def test_a_head_without_a_body_is_written() -> None:
    transport = await written("HEAD /small HTTP/1.1\r\nHost: h\r\n\r\n", "GET /small HTTP/1.1\r\nHost: h\r\n\r\n")
    head, answer = transport.writes
    assert head.endswith(b"content-length: 5\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nsmall")


async def test_parts_are_written_as_they_come() -> None:
    transport = await written("GET /parts HTTP/1.1\r\nHost: h\r\n\r\n")
    first, *rest = transport.writes
    assert first.endswith(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n")
    assert rest == [b"3\r\ntwo\r\n", b"0\r\n\r\n"]


async def test_who_waits_for_leave_to_send_a_body_gets_it_at_once() -> None:
    head = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    transport = await written(head, "four")
    leave, answer = transport.writes
    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.endswith(b"\r\n\r\nfour")


async def test_the_head_of_an_answer_that_breaks_off_is_written() -> None:
    transport = await written("GET /broken HTTP/1.1\r\nHost: h\r\n\r\n")
    [head] = transport.writes
    assert head.endswith(b"content-length: 5\r\n\r\n")
    assert transport.is_closed


async def test_answers_to_requests_that_came_together_keep_their_order() -> None:
    transport = await written("GET /small HTTP/1.1\r\nHost: h\r\n\r\nHEAD /small HTTP/1.1\r\nHost: h\r\n\r\n" * 2)
    reported = b"".join(transport.writes).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in reported] == [b"small", b"", b"small", b""]
