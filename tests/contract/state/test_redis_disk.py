"""A Redis that cannot write to its disk, from the reply it gives to what probes and metrics show."""

from collections.abc import Iterator

import httpx
import pytest
from tests.fakes.servers.faces import FakeEngine
from tests.fakes.servers.redis_server import RedisServer, wait_until
from tests.fakes.state import CLUSTER, node

from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.faces.health import health_app
from placewise_service.api.identity.auth import Open
from placewise_service.settings import LimitSettings
from placewise_service.state.errors import UnwritableStateError
from placewise_service.state.options import StoreOptions
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.disk import DiskWatch
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.telemetry import Telemetry


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer().start()
    made.client().config_set("save", "3600 1")
    yield made
    made.stop()


def save_in(server: RedisServer, directory: str, is_saved: bool) -> None:
    """Redis saves there, with or without success: /proc takes no files."""
    client = server.client()
    client.config_set("dir", directory)
    client.bgsave()
    status = "ok" if is_saved else "err"
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == status)


async def test_a_full_disk_turns_readiness_red_until_there_is_room(server: RedisServer) -> None:
    store, telemetry = RedisStore(RedisOptions(url=server.url), StoreOptions()), Telemetry()
    await store.report_nodes(CLUSTER, [node()], full=True)
    gateway = Gateway(FakeEngine(), SystemClock(), LimitSettings(), Open(), telemetry)
    watch = DiskWatch(store, telemetry.state_unwritable)
    gateway.checks.append(watch.problem)
    probe = httpx.AsyncClient(transport=httpx.ASGITransport(health_app(gateway)), base_url="http://probe")

    async def seen() -> tuple[int, str, float | None]:
        await watch.look()
        answer = await probe.get("/readyz")
        problem = answer.json().get("problem", "")
        return answer.status_code, problem, telemetry.registry.get_sample_value("placewise_state_unwritable")

    assert await seen() == (200, "", 0.0)
    save_in(server, "/proc", is_saved=False)
    with pytest.raises(UnwritableStateError, match="cannot write to its disk"):
        await store.report_nodes(CLUSTER, [node()], full=True)
    status, problem, gauge = await seen()
    assert (status, gauge) == (503, 1.0)
    assert "cannot write to its disk" in problem
    assert await store.load(CLUSTER) is not None, "what only reads is answered"
    save_in(server, str(server.directory), is_saved=True)
    assert await seen() == (200, "", 0.0)
    await store.close()
