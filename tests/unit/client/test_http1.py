"""How the SDK's HTTP carrier behaves: which connection carries a request, which errors it raises, how answers look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from placewise_client.http1 import HttpError, HttpPool, NotConnectedError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Server:
    """Answers requests with `answer` (number of the connection, body) and keeps count; None ends the connection."""

    def __init__(self, answer: Callable[[int, bytes], Awaitable[bytes | None]]) -> None:
        self._answer = answer
        self.heads: list[str] = []
        self.connections: list[Writer] = []
        self.ended = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connections.append(writer)
        number = len(self.connections)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = [line[16:] for line in head.split("\r\n") if line.startswith("Content-Length: ")]
                answer = await self._answer(number, await reader.readexactly(int(length[0]) if length else 0))
                if answer is None:
                    break
                writer.write(answer)
        self.ended += 1
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def echo(number: int, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def saying(*answers: bytes | None) -> Callable[[int, bytes], Awaitable[bytes | None]]:
    """These, in turn."""
    left = list(answers)

    async def answer(number: int, body: bytes) -> bytes | None:
        return left.pop(0)

    return answer


@asynccontextmanager
async def pool_at(server: Server, **options: object) -> AsyncIterator[HttpPool]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        pool = HttpPool(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", **options)  # type: ignore[arg-type]
        try:
            yield pool
        finally:
            await pool.close()
            await until(lambda: server.ended == len(server.connections))


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def ask(pool: HttpPool, body: bytes = b"", is_repeatable: bool = False) -> bytes:
    return (await pool.request("POST", "/x", {}, body, is_repeatable=is_repeatable)).body


# -- Connections -----------------------------------------------------------------------------------------------------


async def test_a_connection_is_used_again() -> None:
    async with pool_at(server := Server(echo)) as pool:
        assert [await ask(pool, b"%d" % i) for i in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(server.connections) == 1


async def test_a_request_says_what_it_is_and_whom_it_asks() -> None:
    async with pool_at(server := Server(echo)) as pool:
        await pool.request("POST", "/a?b", {"X-One": "1"}, b"body")
        await pool.request("GET", "/", {})
        assert server.heads[0] == f"POST /a?b HTTP/1.1\r\nHost: {pool.address}\r\nX-One: 1\r\nContent-Length: 4\r\n\r\n"
        assert server.heads[1] == f"GET / HTTP/1.1\r\nHost: {pool.address}\r\n\r\n"


async def test_one_that_the_server_closed_while_idle_is_replaced() -> None:
    async with pool_at(server := Server(echo)) as pool:
        await ask(pool)
        server.connections[0].close()
        await asyncio.sleep(0.01)
        assert await ask(pool, b"again") == b"again"
        assert len(server.connections) == 2


async def test_one_that_was_reset_while_idle_is_replaced() -> None:
    async with pool_at(server := Server(echo)) as pool:
        await ask(pool)
        server.connections[0].transport.abort()
        await asyncio.sleep(0.01)
        assert await ask(pool, b"again") == b"again"
        assert len(server.connections) == 2


async def test_one_on_which_something_was_said_while_idle_is_not_used() -> None:
    """A proxy's words before it closes would pass for the answer to the next request."""
    late = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"
    async with pool_at(server := Server(echo)) as pool:
        await ask(pool)
        server.connections[0].write(late)
        await asyncio.sleep(0.01)
        assert await ask(pool, b"mine") == b"mine"
        assert len(server.connections) == 2


async def test_bytes_after_an_answer_are_not_the_next_one() -> None:
    async with pool_at(server := Server(saying(OK + OK[:-2] + b"no", OK))) as pool:
        assert await ask(pool) == b"ok"
        assert await ask(pool) == b"ok"
        assert len(server.connections) == 2


async def test_those_of_a_busy_time_are_closed_when_they_were_idle_for_long() -> None:
    async with pool_at(server := Server(echo), idle_s=0.01) as pool:
        await asyncio.gather(*(ask(pool) for _ in range(3)))
        assert len(server.connections) == 3
        await until(lambda: server.ended == 3)
        assert await ask(pool, b"again") == b"again"
        assert len(server.connections) == 4


async def test_requests_at_once_have_connections_of_their_own() -> None:
    at_work = 0

    async def all_together(number: int, body: bytes) -> bytes:
        nonlocal at_work
        at_work += 1
        await until(lambda: at_work >= 5)
        return await echo(number, body)

    async with pool_at(server := Server(all_together)) as pool:
        bodies = [b"%d" % i for i in range(5)]
        assert await asyncio.gather(*(ask(pool, body) for body in bodies)) == bodies
        assert len(server.connections) == 5
        await ask(pool)
        assert len(server.connections) == 5


async def test_a_request_under_way_when_the_pool_closes_is_ended() -> None:
    gate = asyncio.Event()

    async def wait(number: int, body: bytes) -> bytes:
        await gate.wait()
        return await echo(number, body)

    async with pool_at(server := Server(wait)) as pool:
        under_way = asyncio.create_task(ask(pool, b"late"))
        await until(lambda: bool(server.heads))
        await pool.close()
        with pytest.raises(HttpError):
            await under_way
        gate.set()
        await until(lambda: server.ended == 1)


async def test_nobody_there_is_told_from_a_connection_that_broke(tmp_path: Path) -> None:
    for address in ("127.0.0.1:1", f"unix:{tmp_path}/none"):
        pool = HttpPool(address)
        with pytest.raises(NotConnectedError, match=address):
            await ask(pool)
        await pool.close()
    async with pool_at(Server(saying(None))) as pool:
        with pytest.raises(HttpError) as caught:
            await ask(pool)
        assert not isinstance(caught.value, NotConnectedError)


async def test_a_machine_that_says_nothing_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", silence)
    pool = HttpPool("10.0.0.7:1", connect_s=0.01)
    with pytest.raises(NotConnectedError, match="no connection within"):
        await ask(pool)
    await pool.close()


async def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with pool_at(Server(echo)) as pool:
        assert await ask(pool, b"mine") == b"mine"


async def test_a_redirect_is_an_answer() -> None:
    away = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with pool_at(Server(saying(away))) as pool:
        assert (await pool.request("POST", "/x", {}, b"")).status == 307


async def test_a_unix_socket(tmp_path: Path) -> None:
    server, path = Server(echo), tmp_path / "s"
    async with await asyncio.start_unix_server(server.serve, path):
        pool = HttpPool(f"unix:{path}")
        assert [await ask(pool, b"1"), await ask(pool, b"2")] == [b"1", b"2"]
        await pool.close()
        await until(lambda: server.ended == 1)
    assert len(server.connections) == 1
    assert "Host: localhost\r\n" in server.heads[0]


# -- Broken ones -----------------------------------------------------------------------------------------------------

CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"


async def cut_on_the_first(number: int, body: bytes) -> bytes | None:
    """The first connection breaks at its second request."""
    return None if number == 1 and body == b"2" else await echo(number, body)


async def test_one_that_breaks_under_a_request_is_an_error() -> None:
    async with pool_at(server := Server(cut_on_the_first)) as pool:
        await ask(pool, b"1")
        with pytest.raises(HttpError):
            await ask(pool, b"2")
        assert await ask(pool, b"3") == b"3"
        assert len(server.connections) == 2
        assert len(server.heads) == 3


async def test_what_may_be_repeated_is_sent_once_more() -> None:
    async with pool_at(server := Server(cut_on_the_first)) as pool:
        await ask(pool, b"1")
        assert await ask(pool, b"2", is_repeatable=True) == b"2"
        assert (len(server.connections), len(server.heads)) == (2, 3)


async def test_and_no_more_than_once() -> None:
    async with pool_at(server := Server(saying(OK, None, None, OK))) as pool:
        await ask(pool)
        with pytest.raises(HttpError):
            await ask(pool, is_repeatable=True)
        assert len(server.heads) == 3


@pytest.mark.parametrize(
    "answer",
    [
        CUT,
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Trailer: 1\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 fine\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (1 << 18),
    ],
)
async def test_an_answer_that_is_none_closes_the_connection(answer: bytes) -> None:
    async def answer_and_go(number: int, body: bytes) -> bytes | None:
        if body == b"1":
            server.connections[-1].write(answer)
            return None
        return OK

    async with pool_at(server := Server(answer_and_go)) as pool:
        with pytest.raises(HttpError) as caught:
            await ask(pool, b"1")
        assert not isinstance(caught.value, NotConnectedError)
        await until(lambda: server.ended == 1)
        assert await ask(pool, b"2") == b"ok"


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_answer_of_a_request_given_up_is_never_the_answer_of_a_later_one(how: str) -> None:
    gate = asyncio.Event()

    async def first_late(number: int, body: bytes) -> bytes:
        if body == b"late":
            await gate.wait()
        return await echo(number, body)

    async with pool_at(server := Server(first_late)) as pool:
        await ask(pool, b"warm")
        given_up = asyncio.create_task(asyncio.wait_for(ask(pool, b"late"), 0.02 if how == "timeout" else None))
        await until(lambda: len(server.heads) == 2)
        if how == "cancel":
            given_up.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await given_up
        gate.set()
        assert [await ask(pool, b"a"), await ask(pool, b"b")] == [b"a", b"b"]
        assert len(server.connections) == 2
        await until(lambda: server.ended == 1)


@pytest.mark.parametrize("headers", [{"A": "b\r\nC: d"}, {"A\n": "b"}, {"A": "b\n"}])
async def test_a_line_break_in_a_header_is_refused_before_anything_is_sent(headers: dict[str, str]) -> None:
    async with pool_at(server := Server(echo)) as pool:
        with pytest.raises(ValueError, match="header"):
            await pool.request("POST", "/x", headers, b"")
        assert server.heads == []


async def test_a_line_break_in_a_path_adds_no_header() -> None:
    async with pool_at(server := Server(echo)) as pool:
        await pool.request("GET", "/x\r\nA: b", {})
        assert server.heads[0].splitlines()[1:] == [f"Host: {pool.address}", ""]


# -- Answers ---------------------------------------------------------------------------------------------------------

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 404 Not Found\r\nCONTENT-LENGTH:  4 \r\n\r\nnone", 404, b"none"),
        (CHUNKED + b"5\r\nhello\r\nA;x=y\r\n, chunks..\r\n0\r\n\r\n", 200, b"hello, chunks.."),
        (CHUNKED + b"2\r\nok\r\n0\r\nX-Trailer: 1\r\nX-Other: 2\r\n\r\n", 200, b"ok"),
        (CHUNKED + b"0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, b""),
    ],
)
async def test_a_whole_answer_leaves_the_connection_for_the_next(answer: bytes, status: int, body: bytes) -> None:
    async with pool_at(server := Server(saying(answer, OK))) as pool:
        found = await pool.request("POST", "/x", {}, b"")
        assert (found.status, found.body) == (status, body)
        assert await ask(pool) == b"ok"
        assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("head", "is_ended_by_the_server"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
    ],
)
async def test_the_last_answer_of_a_connection(head: bytes, is_ended_by_the_server: bool) -> None:
    async def answer(number: int, body: bytes) -> bytes | None:
        server.connections[-1].write(head + b"%d." % number)
        return None if is_ended_by_the_server else b""

    async with pool_at(server := Server(answer)) as pool:
        assert [await ask(pool), await ask(pool)] == [b"1.", b"2."]
        await until(lambda: server.ended == 2)


async def test_headers_are_found_by_names_in_any_case() -> None:
    async with pool_at(Server(saying(OK.replace(b"\r\n\r\n", b"\r\nX-Kind:  a: b\r\n\r\n")))) as pool:
        headers = (await pool.request("GET", "/", {})).headers
    assert (len(headers), headers["content-length"], headers["x-kind"], headers["X-KIND"]) == (2, "2", "a: b", "a: b")
