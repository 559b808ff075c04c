"""Bundles that explore under their own names: loaded when a cluster names them, forgotten when none does."""

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.policies.search import BestOfK
from placewise_models.folder import DEFAULT_BUNDLE
from placewise_service.engine import Engine, EngineOptions, explorers
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

NAMED = ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings("site-1"),))


@pytest.fixture(name="bundles")
def two_bundles(tmp_path: Path) -> Path:
    for name in (DEFAULT_BUNDLE, "site-1"):
        copy_bundle(tmp_path / name)
    return tmp_path


def an_engine(store: MemoryStore, clock: ManualClock, bundles: Path) -> Engine:
    return build_engine(store, clock, Telemetry(), EngineOptions(), bundles, DEFAULT_BUNDLE)


async def test_a_replica_that_starts_later_explores_with_the_bundle_as_well(bundles: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    first, second = an_engine(store, clock, bundles), an_engine(store, clock, bundles)
    await first.start()
    await first.report_nodes(CLUSTER, [make_node("n0"), make_node("n1")], full=True)
    await first.update_settings(CLUSTER, NAMED)
    await second.start()
    for engine, name in ((first, "a"), (second, "b")):
        assert (await ask_place(engine, place(make_job(name)))).meta.is_explored
    assert second._explorers.loaded.keys() == {"site-1"}
    await second._explorers.follow(())
    assert second._explorers.loaded, "settings may be on their way"
    await second._explorers.follow(())
    assert not second._explorers.loaded
    await first.close()
    await second.close()


async def test_a_policy_of_a_bundle_explores_under_both_names(bundles: Path) -> None:
    engine = an_engine(MemoryStore(clock := ManualClock(1_000_000.0)), clock, bundles)
    await engine.start()
    await engine.report_nodes(CLUSTER, [make_node("n0"), make_node("n1")], full=True)
    wanted = ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings("site-1/search"),))
    await engine.update_settings(CLUSTER, wanted)
    assert (await ask_place(engine, place(make_job("a")))).meta.is_explored
    assert [policy.name for policy in engine._explorers.loaded.values()] == ["site-1/search"]
    assert isinstance(engine._explorers.loaded["site-1/search"], BestOfK)
    with pytest.raises(InvalidRequestError, match=r"'site-1' has no net for the policy 'consolidate'"):
        await engine.update_settings(
            CLUSTER, ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings("site-1/consolidate"),))
        )
    await engine.close()


async def test_a_bundle_that_is_gone_is_left_out_and_reported_once(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorers, "log", structlog.get_logger())
    engine = an_engine(MemoryStore(clock := ManualClock(1_000_000.0)), clock, bundles)
    with capture_logs() as lines:
        for _ in range(3):
            await engine._explorers.follow({"site-2"})
    assert [(line["explorer"], line["log_level"]) for line in lines] == [("site-2", "error")]
    assert not engine._explorers.loaded
    await engine.close()


async def test_a_bundle_without_a_net_for_placement_is_refused(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = an_engine(MemoryStore(clock := ManualClock(1_000_000.0)), clock, bundles)
    monkeypatch.setattr(engine._explorers, "_explorer_of", lambda bundle, policy: None)
    with pytest.raises(InvalidRequestError, match=r"no net that places jobs") as refused:
        await engine.update_settings(CLUSTER, NAMED)
    assert refused.value.metadata["field"] == "settings.explorers[0].policy"
    await engine.close()
