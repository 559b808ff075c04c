"""The stores under test: memory, one Redis, and a Redis Cluster of three nodes."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis
from redis.cluster import RedisCluster as SyncRedisCluster
from tests.fakes.servers.redis_server import RedisClusterServers, RedisServer
from tests.fakes.state import CLUSTER, Harness, memory_harness, node, redis_harness

from placewise_service.state.options import StoreOptions
from placewise_service.state.store import StateStore

OPTIONS = StoreOptions(
    answer_ttl_s=1.0,
    ended_ttl_s=0.3,
    lapsed_ttl_s=1.0,
    lapsed_bytes=1600,
    outcome_ttl_s=0.3,
    ring_records=5,
    ring_bytes=1000,
    views_bytes=25_000,
)


@pytest.fixture(scope="session")
def one_server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def three_servers() -> Iterator[RedisClusterServers]:
    servers = RedisClusterServers().start()
    yield servers
    servers.stop()


@pytest.fixture(params=["memory", "redis", "cluster"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "memory":
        made = memory_harness(OPTIONS)
    elif request.param == "redis":
        server = request.getfixturevalue("one_server")
        raw: redis.Redis = server.client()
        raw.flushall()
        made = redis_harness("redis", server.url, raw, OPTIONS)
    else:
        servers = request.getfixturevalue("three_servers")
        cluster = SyncRedisCluster(host="127.0.0.1", port=servers.nodes[0].port)
        cluster.flushall(target_nodes=SyncRedisCluster.PRIMARIES)
        made = redis_harness("cluster", servers.url, cluster, OPTIONS)
    yield made
    await made.close()


@pytest.fixture
async def store(harness: Harness) -> StateStore:
    """A store with two nodes, n0 exclusive and s0 with up to three jobs per GPU."""
    await harness.store.report_nodes(CLUSTER, [node("n0"), node("s0", max_jobs_per_gpu=3)], full=True)
    return harness.store
