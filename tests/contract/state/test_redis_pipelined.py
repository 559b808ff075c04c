"""The link that carries scripts, against a real Redis: order, callers that leave, losses, time limits."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis import exceptions as redis_errors
from redis.asyncio import Redis
from tests.fakes.servers.redis_server import RedisServer

from placewise_service.state.redis.connection import RedisOptions, bounded_client
from placewise_service.state.redis.pipelined import PipelinedConnection


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    made = RedisServer().start()
    yield made
    made.stop()


@pytest.fixture
async def pipelined(server: RedisServer) -> AsyncIterator[PipelinedConnection]:
    made = connection_to(server)
    yield made
    await made.close()


def connection_to(server: RedisServer, timeout_s: float = 1.0, width: int = 64) -> PipelinedConnection:
    return PipelinedConnection(Redis.from_url(server.url, protocol=2).connection_pool, timeout_s, width)


async def test_everybody_gets_their_own_answer(pipelined: PipelinedConnection) -> None:
    words = [f"word-{i}" for i in range(200)]
    answers = await asyncio.gather(*(pipelined.execute_command("ECHO", word) for word in words))
    assert answers == [word.encode() for word in words]


async def test_an_error_reply_is_its_callers_alone(pipelined: PipelinedConnection) -> None:
    calls = (
        pipelined.execute_command("ECHO", "a"),
        pipelined.execute_command("NO-SUCH"),
        pipelined.execute_command("ECHO", "b"),
    )
    answers: list[object] = await asyncio.gather(*calls, return_exceptions=True)
    assert (answers[0], answers[2]) == (b"a", b"b")
    assert isinstance(answers[1], redis_errors.ResponseError)


async def test_a_command_is_sent_before_its_answer_is_awaited(pipelined: PipelinedConnection) -> None:
    await pipelined.execute_command("PING")
    sent = pipelined.send("ECHO", "a")
    assert sent is not None
    assert await pipelined.execute_command("ECHO", "b") == b"b"
    assert sent.result() == b"a"


async def test_no_command_is_sent_without_a_connection_or_beyond_the_width(server: RedisServer) -> None:
    narrow = connection_to(server, width=1)
    try:
        assert narrow.send("ECHO", "a") is None
        await narrow.execute_command("PING")
        sent = narrow.send("ECHO", "b")
        assert sent is not None
        assert narrow.send("ECHO", "c") is None
        assert await sent == b"b"
        assert narrow.send("ECHO", *["d"] * 2000) is None
    finally:
        await narrow.close()


async def test_an_unknown_script_is_known_as_such(pipelined: PipelinedConnection) -> None:
    with pytest.raises(redis_errors.NoScriptError):
        await pipelined.execute_command("EVALSHA", "0" * 40, 0)


async def test_a_caller_that_left_takes_nobody_elses_answer(pipelined: PipelinedConnection) -> None:
    await pipelined.execute_command("PING")
    leaving = asyncio.create_task(pipelined.execute_command("ECHO", "left"))
    staying = asyncio.create_task(pipelined.execute_command("ECHO", "stayed"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == b"stayed"
    assert await pipelined.execute_command("ECHO", "next") == b"next"


async def test_no_more_than_its_width_are_under_way(server: RedisServer) -> None:
    narrow = connection_to(server, width=2)
    try:
        answers = await asyncio.gather(*(narrow.execute_command("ECHO", str(i)) for i in range(20)))
    finally:
        await narrow.close()
    assert answers == [str(i).encode() for i in range(20)]


async def test_a_hung_server_costs_its_time_limit_and_the_link_goes_on_later(server: RedisServer) -> None:
    pipelined = connection_to(server, timeout_s=0.2)
    try:
        await pipelined.execute_command("PING")
        server.pause()
        try:
            waiting = [asyncio.create_task(pipelined.execute_command("ECHO", "lost")) for _ in range(3)]
            failed = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 2.0)
        finally:
            server.resume()
        assert [type(error) for error in failed] == [redis_errors.TimeoutError] * 3
        assert await pipelined.execute_command("ECHO", "back") == b"back"
    finally:
        await pipelined.close()


async def test_answers_that_keep_coming_never_time_out(server: RedisServer) -> None:
    pipelined = connection_to(server, timeout_s=0.15)
    try:
        for _ in range(20):
            await pipelined.execute_command("PING")
            await asyncio.sleep(0.02)
    finally:
        await pipelined.close()


async def test_a_connection_that_is_gone_is_noticed_before_the_next_command(
    server: RedisServer, pipelined: PipelinedConnection
) -> None:
    """As after a restart of Redis: an idle connection that is gone must not cost the next decision an error."""
    own = await pipelined.execute_command("CLIENT", "ID")
    killer = connection_to(server)
    try:
        await killer.execute_command("CLIENT", "KILL", "ID", own)
    finally:
        await killer.close()
    await asyncio.sleep(0.05)
    assert await pipelined.execute_command("ECHO", "anew") == b"anew"
    assert await pipelined.execute_command("CLIENT", "ID") != own


async def test_a_closed_link_connects_anew(pipelined: PipelinedConnection) -> None:
    await pipelined.execute_command("PING")
    await pipelined.close()
    await pipelined.close()
    assert await pipelined.execute_command("ECHO", "open") == b"open"


class Counted:
    """A pool whose connections are counted as they are made."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.made = 0

    def make_connection(self) -> Any:
        self.made += 1
        return self._pool.make_connection()


async def test_one_attempt_is_shared_by_all_who_wait_and_so_is_its_failure(server: RedisServer) -> None:
    pool = Counted(Redis.from_url(server.url, protocol=2, socket_timeout=5.0).connection_pool)
    pipelined = PipelinedConnection(pool, timeout_s=0.2, width=4)  # type: ignore[arg-type]
    try:
        await pipelined.execute_command("PING")
        server.pause()
        try:
            for _ in range(3):  # all through the outage, more callers than places
                before = pool.made
                waiting = [asyncio.create_task(pipelined.execute_command("ECHO", "lost")) for _ in range(12)]
                failed = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 2.0)
                assert all(isinstance(error, redis_errors.TimeoutError | TimeoutError) for error in failed)
                assert pool.made - before <= 2, "not one attempt for each of twelve"
        finally:
            server.resume()
        assert await pipelined.execute_command("ECHO", "back") == b"back"
    finally:
        await pipelined.close()


async def test_a_client_bounds_all_that_a_command_waits_for(server: RedisServer) -> None:
    bounded = bounded_client(RedisOptions(server.url, timeout_s=0.2, connections=1))
    try:
        await bounded.execute_command("PING")
        server.pause()
        try:
            waiting = [asyncio.create_task(bounded.execute_command("ECHO", "lost")) for _ in range(12)]
            failed = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1.0)
            assert all(isinstance(error, redis_errors.TimeoutError | TimeoutError) for error in failed)
        finally:
            server.resume()
        assert await bounded.execute_command("ECHO", "back") == b"back"
    finally:
        await bounded.close()
