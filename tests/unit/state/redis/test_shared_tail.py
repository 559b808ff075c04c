"""The one connection that follows every cluster's events, against a real Redis."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
from tests.fakes.servers.redis_server import RedisServer
from tests.fakes.state import node, tailed

from placewise_core.domain.errors import StaleSnapshotError, StateUnavailableError
from placewise_service.state.keys import keys_of
from placewise_service.state.redis import shared_tail
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.redis.shared_tail import Entries, Follower, SharedTail

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    made = RedisServer().start()
    yield made
    made.stop()


def connections(server: RedisServer) -> int:
    return int(server.client().info("clients")["connected_clients"])


async def followed(store: RedisStore, cluster: str) -> tuple[asyncio.Task[None], list[int]]:
    """A tail that notes the versions it brings."""
    loaded = await store.load(cluster)
    assert loaded is not None
    versions: list[int] = []

    async def follow() -> None:
        async for _, events in tailed(store, cluster, loaded[1]):
            versions.extend(event.version for event in events)

    return asyncio.create_task(follow()), versions


async def until(is_done: Callable[[], bool], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_done():  # noqa: ASYNC110 - the change has no event
            await asyncio.sleep(0.01)


async def test_one_connection_follows_all_streams_and_ends_with_the_last(server: RedisServer) -> None:
    before = connections(server)
    store = RedisStore(RedisOptions(server.url))
    names = [f"c{i}" for i in range(40)]
    tails = {}
    for name in names:
        await store.report_nodes(name, [node("n0")], full=True)
        tails[name] = await followed(store, name)
    await asyncio.sleep(0.05)
    assert connections(server) - before <= 5, "not one for each of forty"
    for name in names:
        await store.report_nodes(name, [node("n1")], full=False)
    await until(lambda: all(versions == [2] for _, versions in tails.values()))
    for name in names:
        await store.delete_cluster(name)
    await asyncio.wait_for(asyncio.gather(*(task for task, _ in tails.values())), 5.0)
    assert [versions for _, versions in tails.values()] == [[2, 3]] * 40
    shared = store._streams
    assert isinstance(shared, SharedTail)
    await until(lambda: shared._reading is None)
    await store.close()
    await until(lambda: connections(server) <= before)


async def test_the_end_of_the_last_stream_closes_no_connection_that_a_command_takes(server: RedisServer) -> None:
    """The pool's connections are everybody's: the tail may leave none of them closed behind a command's back."""
    store = RedisStore(RedisOptions(server.url))
    await store.report_nodes("ending", [node("n0")], full=True)
    is_over = False

    async def ask(pause_s: float) -> None:
        while not is_over:
            assert "ending" in await store.clusters()
            await asyncio.sleep(pause_s)

    asking = [asyncio.create_task(ask(i * 2e-4)) for i in range(6)]
    for _ in range(80):
        tail, _ = await followed(store, "ending")
        await asyncio.sleep(1e-3)
        tail.cancel()
        await asyncio.sleep(1e-3)
    is_over = True
    await asyncio.gather(*asking)
    await store.close()


async def test_a_stream_begun_late_is_read_at_once_and_the_others_go_on(server: RedisServer) -> None:
    store = RedisStore(RedisOptions(server.url, timeout_s=60.0))  # a reading waits for 18 s
    for name in ("early", "late"):
        await store.report_nodes(name, [node("n0")], full=True)
    early, early_versions = await followed(store, "early")
    await asyncio.sleep(0.1)
    late, late_versions = await followed(store, "late")
    await store.report_nodes("late", [node("n1")], full=False)
    await store.report_nodes("early", [node("n1")], full=False)
    await until(lambda: (early_versions, late_versions) == ([2], [2]))
    for task in (early, late):
        task.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    await store.close()


async def test_every_follower_hears_that_the_store_is_gone(server: RedisServer) -> None:
    store = RedisStore(RedisOptions(server.url, timeout_s=0.3))
    tails = []
    for name in ("one", "two", "three"):
        await store.report_nodes(name, [node("n0")], full=True)
        tails.append((await followed(store, name))[0])
    await asyncio.sleep(0.1)
    server.pause()
    try:
        ended = await asyncio.wait_for(asyncio.gather(*tails, return_exceptions=True), 5.0)
    finally:
        server.resume()
    assert [type(error) for error in ended] == [StateUnavailableError] * 3
    task, versions = await followed(store, "one")
    await store.report_nodes("one", [node("n1")], full=False)
    await until(lambda: versions == [2])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()


async def test_a_cluster_whose_key_is_of_another_type_is_lost_alone(server: RedisServer) -> None:
    store = RedisStore(RedisOptions(server.url))
    for name in ("torn", "whole"):
        await store.report_nodes(name, [node("n0")], full=True)
    torn, _ = await followed(store, "torn")
    whole, versions = await followed(store, "whole")
    with server.client() as raw:
        raw.set(keys_of("torn").meta, "another program's")
    with pytest.raises(StaleSnapshotError):
        await asyncio.wait_for(torn, 5.0)
    await store.report_nodes("whole", [node("n1")], full=False)
    await until(lambda: versions == [2])
    whole.cancel()
    await store.close()


class EndlessStream:
    """A server that has one more entry at every reading."""

    def __init__(self) -> None:
        self.readings = 0

    async def execute_command(self, *args: object) -> list[tuple[bytes, Entries]]:
        self.readings += 1
        return [(keys_of("c").events.encode(), [(f"{self.readings}-0".encode(), {b"life": b"a"})])]


async def test_a_lone_reader_sets_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tail, "_LONE_REST_S", 3600.0)
    stream = EndlessStream()
    shared = SharedTail(stream, 1000)  # type: ignore[arg-type]  # only the calls of a tail
    follower = shared.follow(keys_of("c"), b"0-0")
    for taken in range(1, 4):
        async with asyncio.timeout(5.0):
            entries = await follower.next()
        for _ in range(20):
            await asyncio.sleep(0)
        assert stream.readings == len(entries) * taken, "nothing is read ahead of a reader that rests"
    shared.leave(follower)
    await shared.close()


class FailingStream:
    """A server that goes away at a reading."""

    def __init__(self) -> None:
        self.is_gone = asyncio.Event()

    async def execute_command(self, *args: object) -> None:
        await self.is_gone.wait()
        raise ConnectionError("gone")


@pytest.mark.parametrize("turns", range(5))
async def test_a_reading_that_fails_as_its_tail_is_closed_leaves_no_exception_unheard(turns: int) -> None:
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    stream = FailingStream()
    shared = SharedTail(stream, 1000)  # type: ignore[arg-type]  # only the calls of a tail
    shared.follow(keys_of("c"), b"0-0")
    await asyncio.sleep(0.01)
    stream.is_gone.set()
    for _ in range(turns):  # of the loop
        await asyncio.sleep(0)
    await shared.close()
    gc.collect()
    assert unheard == []


async def test_who_took_nothing_for_a_while_gets_all_entries_at_once() -> None:
    follower = Follower(keys_of("c"), b"0-0", 0.0, asyncio.Event())
    entries: Entries = [(f"{version}-0".encode(), {b"life": b"a"}) for version in (1, 2, 3)]
    for entry in entries:
        follower.tell([entry], 0.0)
    follower.tell((b"a", b"3-0"), 0.0)
    assert await follower.next() == entries
    assert await follower.next() == (b"a", b"3-0")
