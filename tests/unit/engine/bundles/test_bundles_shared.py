"""Bundles chosen in one process hold in all: activation, rollback and shadow through the store, with real bundles."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.errors import InvalidRequestError, NotFoundError, StateUnavailableError
from placewise_models.bundle import load
from placewise_models.public_key import PublicKey
from placewise_models.signing import read_public
from placewise_service.cli import invoke
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.registry import BundleState
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import BundleChoice
from placewise_service.telemetry import Telemetry


def write_bundles(root: Path, *names: str) -> Path:
    """Copies of the shipped bundle under other names."""
    for name in names:
        copy_bundle(root / name)
    return root


class Away(MemoryStore):
    """A store that can be cut off."""

    is_away = False
    attempts = 0  # while it is cut off

    async def bundles(self) -> BundleChoice:
        if self.is_away:
            self.attempts += 1
            await asyncio.sleep(0.01)
            raise StateUnavailableError("cut off by the test")
        return await super().bundles()


@pytest.fixture
def store() -> Away:
    return Away(ManualClock(1_000_000.0))


def replica(store: MemoryStore, bundles: Path, keys: Sequence[PublicKey] = ()) -> Engine:
    return build_engine(store, ManualClock(1_000_000.0), Telemetry(), EngineOptions(), bundles, keys=keys)


def states(statuses: object) -> dict[str, BundleState]:
    return {status.name: status.state for status in statuses}  # type: ignore[attr-defined]


async def serving(engine: Engine) -> str:
    command = PlaceCommand(CLUSTER, (make_job("a"),), is_dry_run=True)
    return (await ask_place(engine, command)).meta.bundle


async def test_a_choice_holds_in_every_process_and_after_a_restart(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "next", "later")
    one, two = replica(store, root), replica(store, root)
    await one.start()
    await one.report_nodes(CLUSTER, [], full=True)
    await two.start()
    assert (await one.bundles.activate("next")).state is BundleState.ACTIVE
    assert await serving(one) == "next"
    assert await serving(two) == "default"
    await two.bundles.refresh()
    assert await serving(two) == "next"
    await two.bundles.set_shadow("later")
    await one.bundles.refresh()
    expected = {"default": BundleState.AVAILABLE, "next": BundleState.ACTIVE, "later": BundleState.SHADOW}
    assert states(await one.bundles.list()) == states(await two.bundles.list()) == expected
    three = replica(store, root)
    await three.start()
    assert await serving(three) == "next"
    for engine in (one, two, three):
        await engine.close()


async def test_rollback_goes_back_wherever_it_is_asked(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "next")
    one, two = replica(store, root), replica(store, root)
    with pytest.raises(NotFoundError):
        await two.bundles.rollback()
    await one.bundles.activate("next")
    await one.bundles.activate("next")
    assert (await two.bundles.rollback()).name == "default"
    await one.bundles.refresh()
    assert states(await one.bundles.list())["default"] is BundleState.ACTIVE
    assert (await one.bundles.rollback()).name == "next"


async def test_a_bundle_refused_where_it_is_asked_changes_nothing_anywhere(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "torn")
    (root / "torn" / "throughput.json").write_text("{}")
    engine = replica(store, root)
    with pytest.raises(InvalidRequestError, match="checksum"):
        await engine.bundles.activate("torn")
    with pytest.raises(NotFoundError):
        await engine.bundles.set_shadow("none")
    assert await store.bundles() == BundleChoice()
    assert states(await engine.bundles.list()) == {"default": BundleState.ACTIVE, "torn": BundleState.REFUSED}


async def test_a_bundle_refused_elsewhere_leaves_the_last_good_one_until_its_files_come(
    tmp_path: Path, store: Away
) -> None:
    here = write_bundles(tmp_path / "here", "default", "next")
    there = write_bundles(tmp_path / "there", "default")
    one, two = replica(store, here), replica(store, there)
    await one.bundles.activate("next")
    await two.bundles.refresh()
    assert states(await two.bundles.list()) == {"default": BundleState.ACTIVE}
    shutil.copytree(here / "next", there / "next")
    await two.bundles.refresh()
    assert states(await two.bundles.list())["next"] is BundleState.AVAILABLE, "not tried again every second"
    await two.bundles.refresh(is_retrying=True)
    assert states(await two.bundles.list())["next"] is BundleState.ACTIVE


async def test_a_choice_that_cannot_be_stored_is_taken_back(tmp_path: Path, store: Away) -> None:
    engine = replica(store, write_bundles(tmp_path, "default", "next"))
    store.is_away = True
    with pytest.raises(StateUnavailableError):
        await engine.bundles.activate("next")
    assert states(await engine.bundles.list())["default"] is BundleState.ACTIVE


async def test_choices_that_wait_for_one_another_share_the_failure_of_the_store(tmp_path: Path, store: Away) -> None:
    """Also that of the look for choices made elsewhere, which has its turn among them."""
    one = replica(store, write_bundles(tmp_path, "default", "next"))
    store.is_away = True
    calls = [one.bundles.refresh(), *[one.bundles.activate("next") for _ in range(6)]]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {StateUnavailableError}
    assert store.attempts == 1
    store.is_away = False
    assert (await one.bundles.activate("next")).state is BundleState.ACTIVE


async def test_two_choices_at_once_take_turns(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "a", "b")
    one, two = replica(store, root), replica(store, root)
    await asyncio.gather(one.bundles.activate("a"), two.bundles.set_shadow("b"))
    digests = [load(root / name).digest for name in ("a", "default", "b")]
    assert await store.bundles() == BundleChoice(2, "a", "default", "b", *digests)


def serves(engine: Engine) -> tuple[str, bool]:
    return engine.bundles._registry.active, not engine.problem()


async def test_a_replica_with_other_contents_keeps_its_bundle_and_is_not_ready(tmp_path: Path, store: Away) -> None:
    here = write_bundles(tmp_path / "here", "default", "next")
    there = write_bundles(tmp_path / "there", "default")
    copy_bundle(there / "next", created="2026-02-02T00:00:00Z")
    one, two = replica(store, here), replica(store, there)
    await one.start()
    await two.start()
    await one.bundles.activate("next")
    await two.bundles.refresh()
    assert (serves(one), serves(two)) == (("next", True), ("default", False))
    with pytest.raises(InvalidRequestError, match="never altered"):
        await two.bundles.activate("next")
    late = replica(store, there)
    await late.start()
    assert serves(late) == ("default", False), "the choice holds for one that starts, too"
    shutil.rmtree(there / "next")
    shutil.copytree(here / "next", there / "next")
    for engine in (two, late):
        await engine.bundles.refresh(is_retrying=True)
        assert serves(engine) == ("next", True)
    for engine in (one, two, late):
        await engine.close()


async def test_a_replica_without_the_bundle_is_not_ready_and_another_choice_mends_it(
    tmp_path: Path, store: Away
) -> None:
    one = replica(store, write_bundles(tmp_path / "here", "default", "next"))
    two = replica(store, write_bundles(tmp_path / "there", "default"))
    await two.start()
    await one.bundles.activate("next")
    await two.bundles.refresh()
    assert serves(two) == ("default", False)
    await one.bundles.rollback()
    await two.bundles.refresh()
    assert serves(two) == ("default", True)
    await one.bundles.set_shadow("next")
    await two.bundles.refresh()
    assert serves(two) == ("default", True), "a shadow answers nobody"
    await two.close()


async def test_an_altered_bundle_is_neither_activated_nor_rolled_back_to(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "next")
    engine = replica(store, root)
    await engine.bundles.activate("next")
    await engine.bundles.rollback()
    for name in ("next", "default"):  # the one chosen before, and the one that serves
        rewrite(root / name, created="2026-03-03T00:00:00Z")
        with pytest.raises(InvalidRequestError, match="never altered"):
            await engine.bundles.activate(name)
    with pytest.raises(InvalidRequestError, match="never altered"):
        await engine.bundles.rollback()
    [default, _] = await engine.bundles.list()
    assert (default.state, default.refusal) == (BundleState.ACTIVE, "its files were altered since it was loaded")
    assert default.bundle is engine.bundles._registry.bundle


async def test_an_unsigned_bundle_is_not_rolled_back_to_where_a_key_is_configured(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path / "root", "default", "next")
    assert invoke(["bundle", "keygen", str(tmp_path / "site"), "--json"]) == 0
    assert invoke(["bundle", "sign", str(root / "default"), "--key", str(tmp_path / "site.key"), "--json"]) == 0
    careless = replica(store, root)
    await careless.bundles.activate("next")
    await careless.bundles.activate("default")
    chosen = await store.bundles()
    assert (chosen.active, chosen.previous) == ("default", "next")
    careful = replica(store, root, [read_public(tmp_path / "site.pub")])
    with pytest.raises(InvalidRequestError, match=r"manifest\.sig is missing"):
        await careful.bundles.rollback()
    assert await store.bundles() == chosen, "the choice of all replicas stands"
    assert states(await careful.bundles.list()) == {"default": BundleState.ACTIVE, "next": BundleState.REFUSED}
    await careless.bundles.rollback()
    await careful.bundles.refresh()
    assert serves(careful) == ("default", False), "a careless replica's choice is not taken up either"


async def test_an_alias_follows_the_release_of_each_replica(tmp_path: Path, store: Away) -> None:
    engines = []
    for release in ("2026.11", "2026.12"):
        root = write_bundles(tmp_path / release, release, "next")
        (root / "default").write_text(release)
        engines.append(replica(store, root))
    one, two = engines
    await one.bundles.activate("next")
    await one.bundles.rollback()
    chosen = await store.bundles()
    assert (chosen.active, chosen.active_digest) == ("default", "")
    await two.bundles.refresh()
    assert (one.bundles._registry.active, two.bundles._registry.active) == ("2026.11", "2026.12")
    assert one.problem() == two.problem() == ""


async def test_answers_name_the_digest_of_what_decided(tmp_path: Path, store: Away) -> None:
    engine = replica(store, write_bundles(tmp_path, "default", "next"))
    await engine.start()
    await engine.report_nodes(CLUSTER, [], full=True)
    seen = []
    for name in ("default", "next"):
        await engine.bundles.activate(name)
        meta = (await ask_place(engine, PlaceCommand(CLUSTER, (make_job("a"),), is_dry_run=True))).meta
        assert (meta.bundle, meta.bundle_digest) == (name, load(tmp_path / name).digest)
        seen.append(meta.bundle_digest)
    assert len(set(seen)) == 2
    await engine.close()


async def test_a_choice_of_a_replica_without_digests_pins_nothing(tmp_path: Path, store: Away) -> None:
    engine = replica(store, write_bundles(tmp_path, "default", "next"))
    await store.choose_bundles(BundleChoice(0, "next", "default"))
    await engine.bundles.refresh()
    assert engine.bundles._registry.active == "next"
    assert (await engine.bundles.rollback()).name == "default"
