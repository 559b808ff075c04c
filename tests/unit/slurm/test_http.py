"""The HTTP client for slurmrestd: kept-alive connections, chunked bodies, and every way an answer can be none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
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
