"""The state store against Redis servers that die, hang, fail over, or hold foreign data; and against crowds."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest
from tests.fakes.servers.redis_server import RedisClusterServers, RedisServer, SentinelServers, wait_until
from tests.fakes.state import CLUSTER, demand, job, node, position, records, same, started, tailed, task

from placewise_core.domain.cluster import ClusterSettings, RunningJob
from placewise_core.domain.errors import StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.holdings import holds_of
from placewise_service.state.keys import keys_of
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.store import Conflict, Reserved, ReserveRequest, StateStore

pytestmark = pytest.mark.e2e
T = TypeVar("T")

# Redis is reported dead and back within this; the margin over the promised 2 s is for a busy test machine.
RECOVERY_S = 2.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer(["--appendonly", "yes"]).start()
    yield made
    made.stop()


@contextlib.asynccontextmanager
async def opened(url: str, timeout_s: float = 1.0) -> AsyncIterator[RedisStore]:
    store = RedisStore(RedisOptions(url, timeout_s=timeout_s))
    try:
        yield store
    finally:
        await store.close()


async def until_it_works(attempt: Callable[[], Awaitable[T]], within_s: float) -> T:
    """Repeats what raises StateUnavailableError. Any other error, or none in time, fails the test."""
    end_s = time.monotonic() + within_s
    while True:
        try:
            return await attempt()
        except StateUnavailableError:
            if time.monotonic() > end_s:
                raise
            await asyncio.sleep(0.02)


def reservation(one: RunningJob, ttl_s: float = 60.0) -> ReserveRequest:
    return ReserveRequest((one,), ttl_s)


# -- one server that dies -----------------------------------------------------------------------------------------


async def test_a_killed_redis_comes_back_with_everything(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node("n0"), node("n1")], full=True)
        assert isinstance(await store.reserve(CLUSTER, reservation(job("a"))), Reserved)
        await store.report_jobs(CLUSTER, [started(job("b", task(gpus=(1,))))])
        before, place = await records(store), await position(store)
        for _ in range(3):
            server.kill()
            with pytest.raises(StateUnavailableError, match="cannot be reached"):
                await store.reserve(CLUSTER, reservation(job("c", task(gpus=(2,)))))
            server.start()
            await until_it_works(store.ping, RECOVERY_S)
        assert same(await records(store), before)
        assert await store.reserve(CLUSTER, reservation(job("x"))) == Conflict("n0", "GPU_TAKEN")
        event = await store.update_settings(CLUSTER, ClusterSettings("after"))
        async for _, events in tailed(store, CLUSTER, place):
            assert list(events) == [event]
            break


async def test_a_tail_says_that_its_server_died_and_goes_on_later(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        place = await position(store)

        async def follow() -> list[Event]:
            return [event async for _, events in tailed(store, CLUSTER, place) for event in events]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        server.kill()
        with pytest.raises(StateUnavailableError):
            async with asyncio.timeout(5):
                await following
        server.start()
        await until_it_works(lambda: store.update_settings(CLUSTER, ClusterSettings("after")), RECOVERY_S)
        async for _, events in tailed(store, CLUSTER, place):
            assert [event.version for event in events] == [2]
            break


async def test_a_server_that_hangs_is_unavailable_in_about_a_second(server: RedisServer) -> None:
    async with opened(server.url, timeout_s=0.3) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        server.pause()
        async with asyncio.timeout(5):
            with pytest.raises(StateUnavailableError, match="in time"):
                await store.reserve(CLUSTER, reservation(job("a")))
        server.resume()
        await until_it_works(store.ping, RECOVERY_S)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [(("CONFIG", "SET", "maxmemory", "1"), "out of memory"), (("REPLICAOF", "127.0.0.1", "1"), "cannot write")],
)
async def test_a_server_that_cannot_write_says_why(server: RedisServer, trouble: tuple[str, ...], words: str) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        raw = server.client()
        raw.execute_command(*trouble)
        raw.close()
        with pytest.raises(StateUnavailableError, match=words) as caught:
            await store.report_nodes(CLUSTER, [node("n1")], full=False)
        assert not isinstance(caught.value, CorruptStateError)
        assert [known.id for known in (await records(store)).nodes] == ["n0"]


async def test_nobody_listens(server: RedisServer) -> None:
    url = server.url
    server.kill()
    async with opened(url) as store:
        for call in (store.ping(), store.clusters(), store.load(CLUSTER), store.expire(CLUSTER)):
            with pytest.raises(StateUnavailableError):
                await call


async def test_a_server_that_lost_its_last_writes_is_noticed(server: RedisServer) -> None:
    """As after a power failure, or a failover to a replica that was behind: the same versions are counted again."""
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        raw = server.client()
        raw.bgrewriteaof()
        copy = {name: raw.dump(name) for name in raw.scan_iter("pw:*")}
        await store.update_settings(CLUSTER, ClusterSettings("lost"))
        place = await position(store)
        raw.flushall()
        for name, value in copy.items():
            raw.restore(name, 0, value)
        raw.close()
        with pytest.raises(StaleSnapshotError):
            async for _ in tailed(store, CLUSTER, place):
                pass
        await store.update_settings(CLUSTER, ClusterSettings("another history"))
        with pytest.raises(StaleSnapshotError):
            async for _ in tailed(store, CLUSTER, place):
                pass


async def test_a_server_that_lost_everything_is_noticed_while_waiting(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        place = await position(store)
        raw = server.client()
        tail = tailed(store, CLUSTER, place)
        await anext(tail)
        raw.flushall()
        with pytest.raises(StaleSnapshotError):
            await anext(tail)
        raw.close()
        assert await store.load(CLUSTER) is None
        await store.report_nodes(CLUSTER, [node()], full=True)
        assert list(await store.clusters()) == [CLUSTER]


# -- crowds -------------------------------------------------------------------------------------------------------


def random_gang(rng: random.Random, name: str, nodes: int) -> RunningJob:
    """One to three tasks of one or two GPUs each, anywhere."""
    made = []
    for i in range(rng.randint(1, 3)):
        gpus = tuple(rng.sample(range(4), rng.randint(1, 2)))
        made.append(task(f"n{rng.randrange(nodes)}", gpus, demand(rng.choice([1.0, 4.0, 7.5]), len(gpus)), id_=f"w{i}"))
    return job(name, *made)


class Auditor:
    """Counts for itself what every caller believes to hold."""

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, int], str] = {}
        self.cpu: dict[str, float] = {}
        self.held = 0

    def take(self, one: RunningJob) -> None:
        self.held += 1
        for hold in holds_of(one):
            self.cpu[hold.node] = self.cpu.get(hold.node, 0.0) + hold.cpu_cores
            assert self.cpu[hold.node] <= 16.0, f"cores of {hold.node} handed out twice"
            for gpu in hold.gpus:
                assert (hold.node, gpu) not in self.gpus, f"GPU {hold.node}/{gpu} handed out twice"
                self.gpus[hold.node, gpu] = one.id

    def drop(self, one: RunningJob) -> None:
        for hold in holds_of(one):
            self.cpu[hold.node] -= hold.cpu_cores
            for gpu in hold.gpus:
                del self.gpus[hold.node, gpu]


async def one_client(store: StateStore, auditor: Auditor, seed: int, rounds: int, nodes: int) -> None:
    """Reserves at random on nearly full nodes; gives some back, confirms and ends others."""
    rng = random.Random(seed)
    mine: list[RunningJob] = []
    for i in range(rounds):
        one = random_gang(rng, f"j{seed}-{i}", nodes)
        result = await store.reserve(CLUSTER, reservation(one))
        if isinstance(result, Reserved):
            auditor.take(one)
            mine.append(one)
        while mine and (len(mine) > 2 or rng.random() < 0.3):
            leaving = mine.pop(rng.randrange(len(mine)))
            auditor.drop(leaving)  # first: from the release on, somebody else may rightly hold it
            if rng.random() < 0.5:
                await store.release(CLUSTER, [leaving.reservation_id])
            else:
                end = replace(started(leaving), kind="FINISHED", running=None, is_end=True)
                await store.report_jobs(CLUSTER, [started(leaving), end])


async def test_no_gpu_or_core_is_handed_out_twice_to_a_crowd(server: RedisServer) -> None:
    auditor = Auditor()
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(server.url)) for _ in range(4)]
        await stores[0].report_nodes(CLUSTER, [node(f"n{i}") for i in range(4)], full=True)
        await asyncio.gather(*(one_client(stores[i % 4], auditor, i, 60, 4) for i in range(32)))
        left = (await records(stores[0])).jobs
        assert auditor.held > 100, "the crowd hardly got anything: the test shows nothing"
        assert {(hold.node, gpu) for one in left for hold in holds_of(one) for gpu in hold.gpus} == set(auditor.gpus)
        await stores[0].release(CLUSTER, [one.reservation_id for one in left])
        assert (await records(stores[0])).jobs == ()
    raw = server.client()
    assert raw.hlen(keys_of(CLUSTER).used) == 0
    raw.close()


async def test_a_crowd_over_a_dying_redis_leaks_nothing(server: RedisServer) -> None:
    """Answers lost on the way may leave reservations that nobody knows of: their time to live takes them back."""
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node(f"n{i}") for i in range(4)], full=True)
        stop = asyncio.Event()

        async def client(seed: int) -> int:
            rng, failures = random.Random(seed), 0
            for i in range(100_000):
                if stop.is_set():
                    break
                try:
                    one = random_gang(rng, f"j{seed}-{i}", 4)
                    if isinstance(await store.reserve(CLUSTER, reservation(one, ttl_s=0.2)), Reserved):
                        await store.release(CLUSTER, [one.reservation_id])
                except StateUnavailableError:
                    failures += 1
                    await asyncio.sleep(0.02)
            return failures

        crowd = asyncio.gather(*(client(seed) for seed in range(8)))
        for _ in range(4):
            await asyncio.sleep(0.15)
            server.kill()
            server.start()
            await until_it_works(store.ping, RECOVERY_S)
        stop.set()
        assert sum(await crowd) > 0, "nobody met the dead server: the test shows nothing"
        await asyncio.sleep(0.25)
        await store.expire(CLUSTER)
        assert (await records(store)).jobs == ()
        whole = task(gpus=(0, 1, 2, 3), ask=demand(16.0, 4.0, 64.0))
        assert isinstance(await store.reserve(CLUSTER, reservation(job("whole", whole))), Reserved)


# -- data that is not ours ----------------------------------------------------------------------------------------


FOREIGN: dict[str, Callable[[object], object]] = {
    "meta of another type": lambda raw: raw.set(keys_of(CLUSTER).meta, "mine"),  # type: ignore[attr-defined]
    "meta of another schema": lambda raw: raw.hset(keys_of(CLUSTER).meta, "schema", "99"),  # type: ignore[attr-defined]
    "a job that is no job": lambda raw: raw.hset(keys_of(CLUSTER).jobs, "a", b"\xc1junk"),  # type: ignore[attr-defined]
    "a node that is no node": lambda raw: raw.hset(keys_of(CLUSTER).nodes, "n0", b""),  # type: ignore[attr-defined]
    "nodes of another type": lambda raw: (raw.delete(keys_of(CLUSTER).nodes), raw.set(keys_of(CLUSTER).nodes, "x")),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("damage", FOREIGN.values(), ids=FOREIGN.keys())
async def test_data_that_is_not_ours_gives_a_clear_error(
    server: RedisServer, damage: Callable[[object], object]
) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        raw = server.client()
        if damage is FOREIGN["meta of another type"]:
            raw.delete(keys_of(CLUSTER).meta)
        damage(raw)
        raw.close()
        with pytest.raises(CorruptStateError, match=f"cluster '{CLUSTER}' cannot be read"):
            await store.load(CLUSTER)


async def test_capacities_that_are_torn_hold_nothing(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        raw = server.client()
        raw.hset(keys_of(CLUSTER).capacities, "n0", b"\x98\x01")
        with pytest.raises(CorruptStateError):
            await store.reserve(CLUSTER, reservation(job("a")))
        assert raw.hlen(keys_of(CLUSTER).used) == 0
        raw.close()


async def test_records_without_their_meta_are_not_taken_over(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        raw = server.client()
        raw.delete(keys_of(CLUSTER).meta)
        raw.close()
        with pytest.raises(CorruptStateError, match="missing"):
            await store.report_nodes(CLUSTER, [node()], full=True)


async def test_a_damaged_event_ends_the_tail(server: RedisServer) -> None:
    async with opened(server.url) as store:
        await store.report_nodes(CLUSTER, [node()], full=True)
        place = await position(store)
        raw = server.client()
        life = raw.hget(keys_of(CLUSTER).meta, "life")
        raw.xadd(keys_of(CLUSTER).events, {"life": life, "kind": "jobs", "body": b"\xc1", "args": b""}, id="2-1")
        raw.close()
        with pytest.raises(CorruptStateError):
            await anext(tailed(store, CLUSTER, place))


# -- Sentinel and Cluster -----------------------------------------------------------------------------------------


async def test_sentinel_leads_to_the_new_master_with_the_state_intact() -> None:
    servers = SentinelServers()
    try:
        servers.start()
        async with opened(servers.url) as store:
            await store.report_nodes(CLUSTER, [node()], full=True)
            assert isinstance(await store.reserve(CLUSTER, reservation(job("a"))), Reserved)
            raw = servers.master.client()
            assert raw.wait(1, 2000) == 1, "the replica has everything before the master dies"
            raw.close()
            before = await records(store)
            servers.master.kill()
            with pytest.raises(StateUnavailableError):
                await store.load(CLUSTER)
            assert same(await until_it_works(lambda: records(store), 20.0), before)
            result = await until_it_works(lambda: store.reserve(CLUSTER, reservation(job("b"))), 5.0)
            assert result == Conflict("n0", "GPU_TAKEN")
    finally:
        servers.stop()


async def test_a_cluster_node_that_dies_comes_back_within_two_seconds() -> None:
    servers = RedisClusterServers()
    try:
        servers.start()
        async with opened(servers.url) as store:
            names = [f"cluster-{i}" for i in range(12)]
            for name in names:
                await store.report_nodes(name, [node()], full=True)
                assert isinstance(await store.reserve(name, reservation(job("a"))), Reserved)
            used = [bool(raw_keys(server)) for server in servers.nodes]
            assert all(used), "the clusters are spread over all three nodes"
            servers.nodes[1].kill()
            async with asyncio.timeout(10):
                outcomes = await asyncio.gather(*(store.load(name) for name in names), return_exceptions=True)
            assert any(isinstance(outcome, StateUnavailableError) for outcome in outcomes)
            assert all(isinstance(o, StateUnavailableError | tuple) for o in outcomes), outcomes
            servers.nodes[1].start()
            await asyncio.to_thread(wait_until, servers.is_ready)  # a cluster lets its masters rejoin after a pause
            for name in names:
                loaded = await until_it_works(lambda name=name: store.load(name), RECOVERY_S)  # type: ignore[misc]
                assert loaded is not None
                assert [held.id for held in loaded[0].jobs] == ["a"]
    finally:
        servers.stop()


def raw_keys(server: RedisServer) -> int:
    raw = server.client()
    try:
        return int(raw.dbsize())
    finally:
        raw.close()
