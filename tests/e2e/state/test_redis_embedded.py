"""The embedded Redis: survives kill -9 of itself and of its owner, and is never started twice on one directory."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.fakes.servers.redis_server import wait_until
from tests.fakes.state import CLUSTER, job, node, records, same

from placewise_core.domain.errors import StateUnavailableError
from placewise_service.cli import invoke
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import (
    EmbeddedRedis,
    EmbeddedRedisError,
    embedded_url,
    server_binary,
    socket_path,
)
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.store import Conflict, Reserved, ReserveRequest

pytestmark = pytest.mark.e2e
T = TypeVar("T")

OWNER = """
    import sys, time
    from pathlib import Path
    from placewise_service.state.redis.embedded import EmbeddedRedis
    owned = EmbeddedRedis(Path(sys.argv[1])).start()
    print(owned.pid, flush=True)
    time.sleep(600)
"""


async def soon(attempt: Callable[[], Awaitable[T]], within_s: float = 2.0) -> T:
    end_s = time.monotonic() + within_s
    while True:
        try:
            return await attempt()
        except StateUnavailableError:
            if time.monotonic() > end_s:
                raise
            await asyncio.sleep(0.01)


def command(*words: bytes) -> bytes:
    """A command as Redis reads it, from a client or from its file."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def ask(embedded: EmbeddedRedis, *words: bytes) -> bytes:
    """A plain answer of the server."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(embedded.url.removeprefix("unix://"))
        connection.sendall(command(*words))
        answer = connection.recv(2**16)
        while answer.startswith(b"$") and len(answer) < int(answer[1 : answer.index(b"\r")]):
            answer += connection.recv(2**16)
        return answer


def start_owner(state_dir: Path) -> tuple["subprocess.Popen[str]", int]:
    """A process of its own that owns the embedded Redis; and the server's process id."""
    path = os.pathsep.join(sys.path)
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(state_dir)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def is_running(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as made:
        yield made


async def fill(store: RedisStore) -> None:
    await store.report_nodes(CLUSTER, [node()], full=True)
    assert isinstance(await store.reserve(CLUSTER, ReserveRequest((job("a"),), 60.0)), Reserved)


async def test_a_killed_server_is_back_within_two_seconds_with_its_state(embedded: EmbeddedRedis) -> None:
    store = RedisStore(RedisOptions(embedded.url))
    await fill(store)
    before = await records(store)
    for times in range(1, 4):
        os.kill(embedded.pid, signal.SIGKILL)
        with pytest.raises(StateUnavailableError):
            await records(store)
        assert same(await soon(lambda: records(store)), before)
        await asyncio.to_thread(wait_until, lambda times=times: embedded.restarts == times)
    assert await store.reserve(CLUSTER, ReserveRequest((job("b"),), 60.0)) == Conflict("n0", "GPU_TAKEN")
    await store.close()


async def test_the_state_outlives_an_orderly_stop(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as first:
        store = RedisStore(RedisOptions(first.url))
        await fill(store)
        before, pid = await records(store), first.pid
        await store.close()
    assert not is_running(pid)
    assert not socket_path(tmp_path).exists()
    with EmbeddedRedis(tmp_path) as second:
        store = RedisStore(RedisOptions(second.url))
        assert same(await records(store), before)
        await store.close()


async def test_a_killed_owner_leaves_its_state_to_the_next(tmp_path: Path) -> None:
    owner, server_pid = start_owner(tmp_path)
    store = RedisStore(RedisOptions(embedded_url(tmp_path)))
    await fill(store)
    before = await records(store)
    owner.kill()
    owner.communicate()
    assert is_running(server_pid), "the next owner must deal with the orphan"
    with EmbeddedRedis(tmp_path) as following:
        assert not is_running(server_pid)
        assert following.pid != server_pid
        assert same(await soon(lambda: records(store)), before)
    await store.close()


async def test_an_orphan_that_hangs_is_replaced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.state.redis.embedded._STOP_TIMEOUT_S", 0.5)
    owner, server_pid = start_owner(tmp_path)
    store = RedisStore(RedisOptions(embedded_url(tmp_path)))
    await fill(store)
    before = await records(store)
    owner.kill()
    owner.communicate()
    os.kill(server_pid, signal.SIGSTOP)
    with EmbeddedRedis(tmp_path):
        assert not is_running(server_pid)
        assert same(await soon(lambda: records(store)), before)
    await store.close()


async def test_owner_and_server_killed_together_lose_nothing(tmp_path: Path) -> None:
    owner, server_pid = start_owner(tmp_path)
    store = RedisStore(RedisOptions(embedded_url(tmp_path)))
    await fill(store)
    before = await records(store)
    owner.kill()
    os.kill(server_pid, signal.SIGKILL)
    owner.communicate()
    with EmbeddedRedis(tmp_path):
        assert same(await soon(lambda: records(store)), before)
    await store.close()


def test_one_directory_has_one_owner(embedded: EmbeddedRedis, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="another service owns"):
        EmbeddedRedis(tmp_path).start()
    assert is_running(embedded.pid)


async def test_several_workers_share_one_server(embedded: EmbeddedRedis, tmp_path: Path) -> None:
    first, second = (RedisStore(RedisOptions(embedded_url(tmp_path))) for _ in range(2))
    await fill(first)
    assert [held.id for held in (await records(second)).jobs] == ["a"]
    await first.close()
    await second.close()


async def test_a_torn_end_of_the_file_loses_only_what_is_torn(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as first:
        store = RedisStore(RedisOptions(first.url))
        await fill(store)
        before = await records(store)
        await store.remember(CLUSTER, "q", b"torn")
        await store.close()
    file = tmp_path / "redis" / "appendonly.aof"
    with file.open("r+b") as data:
        data.truncate(file.stat().st_size - 5)
    with EmbeddedRedis(tmp_path) as second:
        store = RedisStore(RedisOptions(second.url))
        assert same(await records(store), before)
        await store.close()


def test_a_file_that_grew_long_is_written_anew_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "redis" / "appendonly.aof"
    file.parent.mkdir(mode=0o700)
    value = b"v" * 100_000
    file.write_bytes(b"".join(command(b"SET", b"k%d" % (n % 3), value + b"%d" % n) for n in range(300)))
    assert file.stat().st_size > 28 * 2**20
    with EmbeddedRedis(tmp_path):
        wait_until(lambda: file.stat().st_size < 2**20, 20)
    with EmbeddedRedis(tmp_path) as again:
        assert ask(again, b"GET", b"k2").endswith(b"299\r\n")


def test_the_file_stays_short_however_much_is_written(embedded: EmbeddedRedis, tmp_path: Path) -> None:
    file = tmp_path / "redis" / "appendonly.aof"
    for n in range(72):
        assert ask(embedded, b"SET", b"k", b"v" * 2**20 + b"%d" % n) == b"+OK\r\n"
        if n % 24 == 23:
            wait_until(lambda: file.stat().st_size < 16 * 2**20, 20)
    embedded.stop(signal.SIGKILL)
    embedded.start()
    assert ask(embedded, b"GET", b"k").endswith(b"v71\r\n")


def test_a_server_killed_while_its_file_is_written_anew_starts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "redis" / "appendonly.aof"
    file.parent.mkdir(mode=0o700)
    rng = random.Random(0)
    file.write_bytes(b"".join(command(b"SET", b"k%d" % n, rng.randbytes(2**20)) for n in range(60)))
    embedded = EmbeddedRedis(tmp_path).start()
    wait_until(lambda: list(file.parent.glob("temp-*.aof")) != [])
    os.kill(embedded.pid, signal.SIGKILL)  # its owner starts it again, its child waits for it
    began_s = time.monotonic()
    wait_until(lambda: embedded.restarts == 1)
    assert time.monotonic() - began_s < 4  # the child alone would have waited five seconds for its server
    wait_until(lambda: file.stat().st_size < 62 * 2**20 and not list(file.parent.glob("temp-*.aof")), 20)
    wait_until(lambda: len(embedded._own_servers()) == 1, 20)  # the server may just have begun to rewrite its file
    embedded.stop()


async def test_a_file_with_a_damaged_end_is_cut_by_the_command_that_its_error_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedRedis(tmp_path) as first:
        store = RedisStore(RedisOptions(first.url))
        await fill(store)
        before = await records(store)
        await store.close()
    file = tmp_path / "redis" / "appendonly.aof"
    whole = file.read_bytes()
    damaged = whole + bytes(range(7, 251)) * 2
    file.write_bytes(damaged)
    with pytest.raises(EmbeddedRedisError, match=r"appendonly\.aof is damaged"):
        EmbeddedRedis(tmp_path).start()
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(tmp_path))
    assert invoke(["state", "check"]) == 0
    assert f"damaged at byte {len(whole)}" in capsys.readouterr().out
    assert file.read_bytes() == damaged, "nothing is cut unless it is asked for"
    assert invoke(["state", "check", "--cut"]) == 0
    (copy,) = file.parent.glob("*.damaged")
    assert (copy.read_bytes(), file.read_bytes()) == (damaged, whole)
    with EmbeddedRedis(tmp_path) as second:
        assert invoke(["state", "check"]) != 0, "never beside a server"
        store = RedisStore(RedisOptions(second.url))
        assert same(await records(store), before)
        await store.close()


def test_a_damaged_file_is_reported_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "redis" / "appendonly.aof"
    file.parent.mkdir()
    file.write_bytes(b"*1\r\n$5\r\nnonsense that is no command\r\n")
    with pytest.raises(EmbeddedRedisError, match=r"appendonly\.aof is damaged; .placewise state check.*redis\.log"):
        EmbeddedRedis(tmp_path).start()
    assert file.read_bytes().startswith(b"*1")
    file.unlink()
    EmbeddedRedis(tmp_path).start().stop()


async def test_a_long_state_directory_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    assert len(str(socket_path(deep))) < 100
    with EmbeddedRedis(deep) as made:
        store = RedisStore(RedisOptions(made.url))
        assert await store.ping() > 0
        await store.close()
    socket_path(deep).parent.rmdir()


def test_only_the_owner_may_enter_the_directory(embedded: EmbeddedRedis, tmp_path: Path) -> None:
    assert (tmp_path / "redis").stat().st_mode & 0o077 == 0
    assert socket_path(tmp_path).stat().st_mode & 0o077 == 0


def test_a_binary_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="cannot run redis-server"):
        EmbeddedRedis(tmp_path, command="/nowhere/redis-server").start()
    assert server_binary("/nowhere/redis-server") == Path("/nowhere/redis-server")
    assert server_binary().is_file()


def test_stopping_twice_is_fine(tmp_path: Path) -> None:
    made = EmbeddedRedis(tmp_path).start()
    made.stop()
    made.stop()
    assert made.pid == 0


def test_without_the_package_the_machines_server_is_taken_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_service.state.redis.embedded.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="PLACEWISE_REDIS_URL"):
        server_binary()
    (tmp_path / "redis-server").write_text("#!/bin/sh\n")
    (tmp_path / "redis-server").chmod(0o755)
    assert server_binary() == tmp_path / "redis-server"
    (tmp_path / "redis-server").unlink()
    with pytest.raises(EmbeddedRedisError, match="set PLACEWISE_REDIS_URL"):
        EmbeddedRedis(tmp_path).start()
