"""A cluster whose state is damaged: it is refused and logged alone, and taken up once it is repaired."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import structlog
from structlog.testing import capture_logs
from tests.fakes.cluster import make_node
from tests.fakes.engine import CLUSTER, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Node
from placewise_core.domain.events import ClusterRecords
from placewise_service.engine import engine as engine_module
from placewise_service.engine import views
from placewise_service.engine.views import LiveView
from placewise_service.state.errors import CorruptStateError
from placewise_service.state.reference.memory import MemoryStore


class DamagedStore(MemoryStore):
    damaged = "a"

    async def load(self, cluster: str) -> tuple[ClusterRecords, str] | None:
        if cluster == self.damaged:
            raise CorruptStateError("damaged")
        return await super().load(cluster)


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> DamagedStore:
    monkeypatch.setattr(engine_module, "_CLUSTERS_PERIOD_S", 0.001)
    monkeypatch.setattr(views, "_RETRY_S", 0.001)
    for module in (engine_module, views):
        monkeypatch.setattr(module, "log", structlog.get_logger())
    made = DamagedStore(ManualClock(1_000_000.0))
    await made.report_nodes("a", [make_node("n0")], full=True)
    return made


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not is_so():  # noqa: ASYNC110 - the event comes by the engine's own rounds
            await asyncio.sleep(0.001)


async def test_a_damaged_cluster_keeps_no_other_back(store: DamagedStore) -> None:
    with capture_logs() as lines:
        async with running_engine(store=store) as engine:  # it starts
            assert (await engine.get_cluster(CLUSTER)).view.nodes.records
            with pytest.raises(CorruptStateError):
                await engine.get_cluster("a")
            await store.report_nodes("z", [make_node("n0")], full=True)
            await eventually(lambda: engine._parts.views.find("z") is not None)
            assert engine._parts.views.find(CLUSTER) is not None
            store.damaged = ""
            await eventually(lambda: engine._parts.views.find("a") is not None)
    errors = [line for line in lines if line["log_level"] == "error"]
    assert [(line["event"], line["cluster"]) for line in errors] == [("view cannot be built", "a")]


async def test_a_report_of_all_nodes_repairs_a_damaged_record(
    store: DamagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = store.report_nodes

    async def repairing(cluster: str, nodes: Sequence[Node], full: bool) -> object:
        store.damaged = ""
        return await report(cluster, nodes, full)

    async with running_engine(store=store) as engine:
        with pytest.raises(CorruptStateError):
            await engine.get_cluster("a")
        monkeypatch.setattr(store, "report_nodes", repairing)
        await engine.report_nodes("a", [make_node("n0"), make_node("n1")], full=True)
        assert len((await engine.get_cluster("a")).view.nodes.records) == 2


async def test_a_damaged_cluster_that_was_deleted_and_is_damaged_again_is_logged_again(store: DamagedStore) -> None:
    def errors() -> int:
        return sum(line["log_level"] == "error" for line in lines)

    with capture_logs() as lines:
        async with running_engine(store=store) as engine:
            await eventually(lambda: errors() == 1)
            await store.delete_cluster("a")
            await eventually(lambda: not engine._damaged)
            await store.report_nodes("a", [make_node("n0")], full=True)
            await eventually(lambda: errors() == 2)


async def test_a_view_that_cannot_be_built_anew_is_logged_once(store: DamagedStore) -> None:
    store.damaged = ""
    live = LiveView("a", store, ManualClock(1_000_000.0), stale_telemetry_after_s=90.0)
    assert await live.load()
    store.damaged = "a"
    with capture_logs() as lines:
        reloading = asyncio.create_task(live._reload())
        await eventually(lambda: bool(lines))
        store.damaged = ""
        assert await reloading
    assert [line["event"] for line in lines] == ["view cannot be built"]
