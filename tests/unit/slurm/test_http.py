"""The HTTP client for slurmrestd: kept-alive connections, chunked bodies, and every way an answer can be none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from placewise_slurm.http import JsonHttp, TransportError

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"ok": 1}'


@asynccontextmanager
async def server(answers: list[bytes], close_after: Callable[[int], bool] = lambda _: False) -> AsyncIterator[str]:
    """Answers requests in turn; closes the connection after those that `close_after` names (counted from 1)."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        try:
            while answers:
                await reader.readuntil(b"\r\n\r\n")
                served += 1
                writer.write(answers.pop(0))
                await writer.drain()
                if close_after(served):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def serving(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """`serve` answers one connection; all have ended when the context does."""
    over: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over.append(asyncio.create_task(handle(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        await asyncio.gather(*over)


async def ask(address: str, timeout_s: float = 5.0) -> object:
    http = JsonHttp(address, timeout_s=timeout_s)
    try:
        return await http.request("GET", "/x")
    finally:
        await http.close()


async def test_connections_are_used_again_and_replaced_when_the_server_closed_them() -> None:
    async with server([OK, OK, OK, OK], close_after=lambda served: served == 2) as address:
        http = JsonHttp(address)
        for _ in range(4):
            assert await http.request("GET", "/x") == {"ok": 1}
        await http.close()


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_requests_are_under_way_than_the_server_bears(at_once: int) -> None:
    under_way, most = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0.02)
                under_way -= 1
                writer.write(OK)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        http = JsonHttp(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", at_once=at_once)
        await asyncio.gather(*(http.request("GET", "/x") for _ in range(9)))
        await http.close()
    assert most == at_once


async def test_a_chunked_body_is_put_together() -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"ok"\r\n4;x=y\r\n: 1}\r\n0\r\n\r\n'
    async with server([chunked]) as address:
        assert await ask(address) == {"ok": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    ],
)
async def test_an_answer_that_is_none_is_a_transport_error(answer: bytes) -> None:
    async with server([answer], close_after=lambda _: True) as address:
        with pytest.raises(TransportError):
            await ask(address)


async def test_silence_and_nobody_are_transport_errors() -> None:
    with pytest.raises(TransportError):
        await ask("127.0.0.1:1")
    with pytest.raises(TransportError):
        await ask("unix:/nonexistent/socket")

    is_over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        is_over.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        with pytest.raises(TransportError):
            await ask(f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", timeout_s=0.05)
        await is_over.wait()


async def test_a_token_is_sent_with_each_request() -> None:
    seen = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(OK)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        http = JsonHttp(address, lambda: {"X-SLURM-USER-TOKEN": "secret"})
        await http.request("POST", "/slurm/v0.0.38/job/7", {"hold": True})
        await http.close()
    assert "X-SLURM-USER-TOKEN: secret\r\n" in seen[0]
    assert seen[0].startswith("POST /slurm/v0.0.38/job/7 HTTP/1.1\r\n")


async def test_an_answer_without_a_body_says_that_nothing_has_changed() -> None:
    async with server([b"HTTP/1.1 304 Not Modified\r\n\r\n", OK]) as address:
        http = JsonHttp(address)
        assert await http.request("GET", "/slurm/v0.0.45/nodes?update_time=1") is None
        assert await http.request("GET", "/x") == {"ok": 1}
        await http.close()


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
@pytest.mark.parametrize("cut", [1000, 30, 100])
async def test_a_second_error_answer_is_none(pause_s: float, cut: int) -> None:
    """slurmrestd 26.05 sends each error twice: as JSON, then as text."""
    head = b"HTTP/1.1 404 NOT FOUND\r\nConnection: Close\r\nContent-Length: "
    first = head + b'13\r\nContent-Type: application/json\r\n\r\n{"errors": 1}'
    second = head + b"24\r\nContent-Type: text/plain\r\n\r\nInvalid job id specified"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (first[:cut], first[cut:] + second) if cut < 1000 else (first + second[:1], second[1:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    async with serving(serve) as address:
        http = JsonHttp(address)
        for _ in range(3):
            assert await http.request("GET", "/slurm/v0.0.45/job/99999") == {"errors": 1}
        await http.close()


async def test_an_answer_that_is_no_json_is_named_with_its_status() -> None:
    async with server([b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html"]) as address:
        with pytest.raises(TransportError, match=r"HTTP 502, no JSON: b'<html'"):
            await ask(address)


class Deaf:
    """A server that leaves the first `unanswered` requests without an answer. `most` were under way at once."""

    def __init__(self, unanswered: int) -> None:
        self.unanswered = unanswered
        self.under_way = self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.unanswered -= 1
            if self.unanswered >= 0:
                await reader.read()
                return
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            await asyncio.sleep(0.002)
            self.under_way -= 1
            writer.write(OK)

    async def most_of(self, http: JsonHttp, requests: int) -> int:
        self.most = 0
        await asyncio.gather(*(http.request("GET", "/x") for _ in range(requests)), return_exceptions=True)
        return self.most


@pytest.mark.parametrize(("unanswered", "lowered"), [(0, 8), (1, 4), (8, 4), (9, 2), (1000, 1)])
async def test_fewer_requests_are_under_way_after_some_got_no_answer(unanswered: int, lowered: int) -> None:
    """Those that were lost together count once."""
    deaf = Deaf(unanswered)
    async with serving(deaf.serve) as address:
        http = JsonHttp(address, timeout_s=0.5)
        for requests in (8, 4, 2):  # as many as may be under way while each of them is lost
            await deaf.most_of(http, requests)
        deaf.unanswered, http.timeout_s = 0, 10.0  # on a busy machine an answer may take long
        assert await deaf.most_of(http, 30) == lowered
        for _ in range(8):
            await deaf.most_of(http, 60)
        assert await deaf.most_of(http, 30) == 8  # answers bring them back
        await http.close()
