"""The bundle of one cluster: chosen in one process, followed by all, named by answers and log, ended."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_admit, ask_place, logged

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, PlaceCommand, Scope
from placewise_core.domain.decision import DecisionMeta
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_log.record import DecisionRecord, decode_entry
from placewise_models.bundle import load
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.registry import BundleState
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ActiveChoice, BundleChoice
from placewise_service.telemetry import Telemetry

LAB, FARM = "lab", "farm"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("default", "next", "later"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    return tmp_path


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock(1_000_000.0))


@pytest.fixture
async def pair(root: Path, store: MemoryStore) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two replicas; both clusters exist."""
    engines = [replica(store, root) for _ in range(2)]
    for engine in engines:
        await engine.start()
    for cluster in (LAB, FARM):
        await engines[0].report_nodes(cluster, [make_node("n0", 4)], full=True)
    yield engines[0], engines[1]
    for engine in engines:
        await engine.close()


def replica(store: MemoryStore, root: Path) -> Engine:
    return build_engine(store, ManualClock(1_000_000.0), Telemetry(), EngineOptions(), root)


async def answered(engine: Engine, cluster: str, name: str = "a") -> list[DecisionMeta]:
    """The metadata of an answer of each call."""
    pipeline = make_job(name)
    placed = await ask_place(engine, PlaceCommand(cluster, (make_job(name),), is_dry_run=True))
    on_node = await ask_place(engine, PlaceCommand(cluster, (pipeline,), scope=Scope.NODE, node_id="n0"))
    admitted = await ask_admit(engine, AdmitCommand(cluster, "q", (make_job(name),), is_dry_run=True))
    split = await engine.partition(PartitionCommand(cluster, DivisibleTask("t", 100.0, overhead_s=1.0)))
    return [placed.meta, on_node.meta, admitted.meta, split.meta]


async def bundles_of(engine: Engine, cluster: str) -> set[tuple[str, str]]:
    return {(meta.bundle, meta.bundle_digest) for meta in await answered(engine, cluster)}


def named(root: Path, name: str) -> set[tuple[str, str]]:
    return {(name, load(root / name).digest)}


async def test_a_cluster_has_its_own_bundle_on_every_replica_and_after_a_restart(
    root: Path, store: MemoryStore, pair: tuple[Engine, Engine]
) -> None:
    one, other = pair
    assert (await one.bundles.activate("next", LAB)).state is BundleState.ACTIVE
    assert await bundles_of(one, LAB) == named(root, "next")
    assert await bundles_of(one, FARM) == await bundles_of(other, LAB) == named(root, "default")
    await other.bundles.refresh()
    third = replica(store, root)
    await third.start()
    for engine in (other, third):
        assert await bundles_of(engine, LAB) == named(root, "next")
        assert await bundles_of(engine, FARM) == named(root, "default")
        assert {status.name: status.state for status in await engine.bundles.list()} == {
            "default": BundleState.ACTIVE,
            "next": BundleState.ACTIVE,
            "later": BundleState.AVAILABLE,
        }
        assert dict(engine.bundles.actives) == {LAB: ActiveChoice("next", load(root / "next").digest)}
    await third.close()


async def test_activation_for_all_leaves_it_alone(root: Path, pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    await one.bundles.activate("next", LAB)
    await other.bundles.refresh()
    await other.bundles.activate("later")
    await one.bundles.refresh()
    for engine in pair:
        assert await bundles_of(engine, LAB) == named(root, "next")
        assert await bundles_of(engine, FARM) == named(root, "later")
    await one.bundles.rollback()
    assert await bundles_of(one, LAB) == named(root, "next")
    assert await bundles_of(one, FARM) == named(root, "default")


async def test_its_policies_decide(root: Path, pair: tuple[Engine, Engine]) -> None:
    one, _ = pair
    before = one._placing.placer.policies["harmony"]
    await one.bundles.activate("next", LAB)
    own = one._placing.placer_for(LAB)
    assert one._placing.placer_for(FARM).policies["harmony"] is before
    assert own.policies["harmony"] is not before
    assert own.fallback is own.policies["consolidate"]
    assert {"harmony", "random", "tetris"} <= own.explorers.keys()
    (root / "bare").mkdir()
    fits = ("throughput.json", "capability.json")
    for name in (*fits, "manifest.json"):
        (root / "bare" / name).write_bytes((root / "next" / name).read_bytes())
    rewrite(root / "bare", name="bare", files=dict.fromkeys(fits, ""), feature_schema="")
    await one.bundles.activate("bare", LAB)
    with pytest.raises(InvalidRequestError, match="no policy 'harmony'"):
        await ask_place(one, PlaceCommand(LAB, (make_job("b"),), policy="harmony", is_dry_run=True))
    with pytest.raises(InvalidRequestError, match="no policy 'harmony'"):
        one.check_place_policy(LAB, "harmony", "place.policy")
    assert (await ask_place(one, PlaceCommand(FARM, (make_job("b"),), policy="harmony", is_dry_run=True))).meta.policy


async def test_the_log_names_it_and_so_does_a_shadow(
    root: Path, store: MemoryStore, pair: tuple[Engine, Engine]
) -> None:
    one, _ = pair
    await one.bundles.activate("next", LAB)
    await one.bundles.set_shadow("", LAB, policy="load-balance")
    await ask_place(one, PlaceCommand(LAB, (make_job("a"),)))
    await logged(one)
    entries = [decode_entry(data) for _, data in await store.read_decisions(LAB, "0", 100)]
    records = [entry for entry in entries if isinstance(entry, DecisionRecord)]
    assert {(record.meta.bundle, record.meta.bundle_digest) for record in records} == named(root, "next")
    assert [bool(record.shadow_of) for record in records] == [False, True]


async def test_it_is_rolled_back_and_ended(root: Path, store: MemoryStore, pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    with pytest.raises(NotFoundError, match="for 'lab' alone"):
        await one.bundles.rollback(LAB)
    for name in ("next", "later", "later"):
        await one.bundles.activate(name, LAB)
    await other.bundles.refresh()
    assert (await other.bundles.rollback(LAB)).name == "next"
    await one.bundles.refresh()
    assert await bundles_of(one, LAB) == named(root, "next")
    await one.bundles.activate("", LAB)
    assert (await store.bundles()).actives == {}
    await other.bundles.refresh()
    for engine in pair:
        assert await bundles_of(engine, LAB) == named(root, "default")
    await one.bundles.activate("next", LAB)
    assert (await one.bundles.rollback(LAB)).name == "default"  # that of all answered before
    assert await bundles_of(one, LAB) == named(root, "default")


async def test_one_that_is_refused_changes_nothing_here_and_leaves_another_replica_not_ready(
    root: Path, tmp_path_factory: pytest.TempPathFactory, store: MemoryStore
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    copy_bundle(elsewhere / "default", created="2026-01-04T00:00:00Z")
    here, there = replica(store, root), replica(store, elsewhere)
    await here.report_nodes(LAB, [make_node("n0", 4)], full=True)
    with pytest.raises(NotFoundError):
        await here.bundles.activate("none", LAB)
    assert await store.bundles() == BundleChoice()
    await here.bundles.activate("next", LAB)
    await there.bundles.refresh()
    assert "'next' was chosen and is refused here" in there.problem()
    assert await bundles_of(there, LAB) == named(elsewhere, "default")
    copy_bundle(elsewhere / "next", created="2026-01-01T00:00:00Z")
    await there.bundles.refresh(is_retrying=True)
    assert there.problem() == ""
    assert await bundles_of(there, LAB) == named(root, "next")
    for engine in (here, there):
        await engine.close()


async def test_a_deleted_cluster_leaves_no_bundle_of_its_own(store: MemoryStore, pair: tuple[Engine, Engine]) -> None:
    one, other = pair
    await one.bundles.activate("next", LAB)
    await one.delete_cluster(LAB)
    assert (await store.bundles()).actives == {}
    await other.bundles.refresh()
    assert not one._parts.registry.own
    assert not other._parts.registry.own
