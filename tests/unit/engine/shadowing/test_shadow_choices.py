"""Who shadows which cluster: bundles and policies by name, in every process, after a restart, and without files."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_place, logged

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.errors import InvalidRequestError, NotFoundError, StateUnavailableError
from placewise_core.inputs.reward import PartTokens
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_models.policy import POLICY_GRAPHS, POLICY_REPORT
from placewise_service.cli import invoke
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.registry import BundleState
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import BundleChoice, ShadowChoice
from placewise_service.telemetry import Telemetry

CLUSTERS = ("one", "two")
CLOCK = ManualClock(1_000_000.0)
NUMBERS = itertools.count()


def folder(root: Path, *names: str) -> Path:
    """Bundles of these names, each with another digest."""
    for i, name in enumerate(names):
        copy_bundle(root / name, created=f"2026-01-0{i + 1}T00:00:00Z")
    return root


async def replica(store: MemoryStore, bundles: Path) -> Engine:
    engine = build_engine(store, CLOCK, Telemetry(), EngineOptions(), bundles)
    await engine.start()
    for cluster in CLUSTERS:
        await engine.report_nodes(cluster, [make_node(f"n{i}", 4) for i in range(4)], full=True)
    return engine


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(CLOCK)


async def shadow_of(engine: Engine, cluster: str, policy: str = "consolidate") -> tuple[str, str] | None:
    """(bundle, policy) of the shadow's decision about a new job; None without one."""
    engine._shadowed._rests_until_s = 0.0
    answer = await ask_place(engine, PlaceCommand(cluster, (make_job(f"j{next(NUMBERS)}"),), policy=policy))
    await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(cluster, "0", 1000)]
    for entry in found:
        if isinstance(entry, DecisionRecord) and entry.shadow_of == answer.meta.decision_id:
            return entry.meta.bundle, entry.meta.policy
    return None


async def test_a_bundle_decides_by_the_policy_that_answered_or_by_its_first_net(
    tmp_path: Path, store: MemoryStore
) -> None:
    engine = await replica(store, folder(tmp_path, "default", "next"))
    status = await engine.bundles.set_shadow("next")
    assert status is not None
    assert status.state is BundleState.SHADOW
    assert await shadow_of(engine, "one", "search") == ("next", "search")
    assert await shadow_of(engine, "one", "consolidate") == ("next", "harmony")
    await engine.bundles.set_shadow("next", policy="search")
    assert await shadow_of(engine, "one", "harmony") == ("next", "search")
    await engine.bundles.set_shadow("", policy="tetris")
    assert await shadow_of(engine, "one", "harmony") == ("default", "tetris")
    await engine.bundles.set_shadow("")
    assert await shadow_of(engine, "one") is None
    assert {status.name: status.state for status in await engine.bundles.list()}["next"] is BundleState.AVAILABLE
    await engine.close()


class Faster:
    """A reward model's speeds, times a factor."""

    def __init__(self, whole: Any, factor: float) -> None:
        self._whole, self._factor = whole, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def speeds(self, tokens: PartTokens) -> Any:
        return self._factor * self._whole.speeds(tokens)

    def speeds_and_spread(self, tokens: PartTokens) -> Any:
        speeds, spread = self._whole.speeds_and_spread(tokens)
        return self._factor * speeds, spread


async def test_each_bundles_reward_model_has_columns_of_its_own(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await replica(store, folder(tmp_path, "default", "next"))
    await engine.bundles.set_shadow("next")
    found = []
    for cluster, factor in zip(CLUSTERS, (1.0, 2.0), strict=True):
        shadow = engine._parts.registry.shadows.of(cluster)
        assert shadow is not None
        assert shadow.policies is not None
        model = shadow.policies.learned.search
        monkeypatch.setattr(model, "_scorer", Faster(model._scorer, factor))  # type: ignore[union-attr]
        engine._shadowed._rests_until_s = 0.0
        command = PlaceCommand(cluster, (make_job("a", 2, single_gpu_s=60.0),), policy="load-balance")
        answer = await ask_place(engine, command)
        await logged(engine)
        entries = [decode_entry(data) for _, data in await store.read_decisions(cluster, "0", 10)]
        (record,) = [entry for entry in entries if getattr(entry, "shadow_of", "") == answer.meta.decision_id]
        (columns,) = row_of(cluster, "1-0", encode(record))[2]["compared"]
        found.append({name: value for name, value in columns.items() if name.startswith(("by_active", "by_shadow"))})
    as_it_is, faster = found
    assert {name for name, value in faster.items() if value != as_it_is[name]} == {
        f"by_shadow_{name}" for name in ("answer_per_s", "shadow_per_s", "own_answer_per_s", "own_shadow_per_s")
    }
    assert faster["by_shadow_own_answer_per_s"] == pytest.approx(2.0 * faster["by_active_own_answer_per_s"])
    await engine.close()


async def test_a_cluster_has_a_shadow_of_its_own(tmp_path: Path, store: MemoryStore) -> None:
    engine = await replica(store, folder(tmp_path, "default", "next", "later"))
    await engine.bundles.set_shadow("next")
    await engine.bundles.set_shadow("later", cluster="two")
    assert [await shadow_of(engine, cluster) for cluster in CLUSTERS] == [("next", "harmony"), ("later", "harmony")]
    states = {status.name: status.state for status in await engine.bundles.list()}
    assert states == {"default": BundleState.ACTIVE, "next": BundleState.SHADOW, "later": BundleState.SHADOW}
    assert {c: each.bundle for c, each in engine.bundles.shadows.items()} == {"": "next", "two": "later"}
    await engine.bundles.set_shadow("")
    assert [await shadow_of(engine, cluster) for cluster in CLUSTERS] == [None, ("later", "harmony")]
    await engine.delete_cluster("two")
    await engine.report_nodes("two", [make_node("n0", 4)], full=True)
    assert await shadow_of(engine, "two") is None, "another cluster of that name"
    assert await store.bundles() == BundleChoice(4)
    await engine.close()


async def test_shadows_hold_in_every_process_and_after_a_restart(tmp_path: Path, store: MemoryStore) -> None:
    root = folder(tmp_path, "default", "next")
    one, two = await replica(store, root), await replica(store, root)
    await one.bundles.set_shadow("next", cluster="one", policy="search")
    await one.bundles.set_shadow("", policy="tetris")
    assert await shadow_of(two, "one") is None
    await two.bundles.refresh()
    three = await replica(store, root)
    for engine in (one, two, three):
        assert await shadow_of(engine, "one") == ("next", "search")
        assert await shadow_of(engine, "two") == ("default", "tetris")
        await engine.close()


async def test_a_bundle_that_shadows_is_read_once(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await replica(store, folder(tmp_path, "default", "next"))
    await engine.bundles.set_shadow("next")
    kept = engine._parts.registry.shadows.of("one")
    shutil.rmtree(tmp_path / "next")
    await engine.bundles.set_shadow("", cluster="two", policy="tetris")
    await engine.bundles.refresh(is_retrying=True)
    now = engine._parts.registry.shadows.of("one")
    assert kept is not None
    assert now is not None
    assert (now.bundle, now.policies) == (kept.bundle, kept.policies)
    await engine.close()


@pytest.mark.parametrize(
    ("name", "policy", "error", "words"),
    [
        ("none", "", NotFoundError, "no bundle 'none'"),
        ("torn", "", InvalidRequestError, "checksum"),
        ("", "tetri", InvalidRequestError, "did you mean 'tetris'"),
        ("next", "tetris", InvalidRequestError, "has no net for 'tetris'"),
        ("next", "nothing", InvalidRequestError, "no policy 'nothing'"),
        ("tables", "", InvalidRequestError, "no net that places jobs"),
    ],
)
async def test_what_cannot_shadow_is_refused_where_it_is_asked_and_changes_nothing(
    name: str, policy: str, error: type[Exception], words: str, tmp_path: Path, store: MemoryStore
) -> None:
    root = folder(tmp_path, "default", "next", "torn")
    (root / "torn" / "throughput.json").write_text("{}")
    without_nets(root / "tables")
    engine = await replica(store, root)
    await engine.bundles.set_shadow("next", policy="search")
    before = await store.bundles()
    with pytest.raises(error, match=words):
        await engine.bundles.set_shadow(name, policy=policy)
    assert await store.bundles() == before
    assert await shadow_of(engine, "one") == ("next", "search")
    await engine.close()


async def test_a_shadow_that_is_missing_or_damaged_elsewhere_keeps_no_answer_back(
    tmp_path: Path, store: MemoryStore
) -> None:
    here = folder(tmp_path / "here", "default", "next")
    engines = [await replica(store, here)]
    for name in ("missing", "torn", "other"):
        there = folder(tmp_path / name, "default")
        if name != "missing":
            copy_bundle(there / "next", created="2026-05-05T00:00:00Z" if name == "other" else "2026-01-02T00:00:00Z")
        if name == "torn":
            (there / "next" / POLICY_GRAPHS[0]).write_bytes(b"torn")
        engines.append(await replica(store, there))
    await engines[0].bundles.set_shadow("next")
    for engine in engines[1:]:
        await engine.bundles.refresh()
        assert engine.problem() == "", "ready all the same"
        assert await shadow_of(engine, "one") is None
    shutil.copytree(here / "next", tmp_path / "missing" / "next")
    await engines[1].bundles.refresh(is_retrying=True)
    assert await shadow_of(engines[1], "one") == ("next", "harmony")
    for engine in engines:
        await engine.close()


async def test_a_refused_shadow_does_not_leave_the_one_before_in_force(tmp_path: Path, store: MemoryStore) -> None:
    here, there = folder(tmp_path / "here", "default", "a", "b"), folder(tmp_path / "there", "default", "a")
    one, two = await replica(store, here), await replica(store, there)
    for name in ("a", "b"):
        await one.bundles.set_shadow(name)
        await two.bundles.refresh()
    assert await shadow_of(two, "one") is None
    for engine in (one, two):
        await engine.close()


async def test_a_choice_that_cannot_be_stored_is_taken_back(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await replica(store, folder(tmp_path, "default", "next"))

    async def away(*_: object) -> bool:
        raise StateUnavailableError("cut off by the test")

    monkeypatch.setattr(store, "choose_bundles", away)
    with pytest.raises(StateUnavailableError):
        await engine.bundles.set_shadow("next")
    assert await shadow_of(engine, "one") is None
    assert engine.bundles.shadows == {}
    await engine.close()


async def test_a_policy_that_went_with_its_bundle_is_counted(tmp_path: Path, store: MemoryStore) -> None:
    root = folder(tmp_path, "default")
    without_nets(root / "tables")
    engine = await replica(store, root)
    await engine.bundles.set_shadow("", policy="harmony")
    await engine.bundles.activate("tables")
    assert await shadow_of(engine, "one") is None
    assert 'placewise_shadow_left_out_total{reason="policy"} 1.0' in engine._parts.telemetry.render().decode()
    assert engine.bundles.shadows == {"": ShadowChoice(policy="harmony")}
    await engine.close()


def without_nets(path: Path, kept: Sequence[str] = ("throughput.json", "capability.json")) -> None:
    """A bundle of coefficients alone."""
    source = path.with_name(f"{path.name}-files")
    shutil.copytree(copy_bundle(path.with_name("whole")), source)
    shutil.rmtree(path.with_name("whole"))
    for file in source.iterdir():
        if file.name not in kept:
            file.unlink()
    assert invoke(["bundle", "build", str(path), "--from", str(source), "--commit", "c", "--json"]) == 0
    shutil.rmtree(source)
    assert not (path / POLICY_REPORT).exists()
