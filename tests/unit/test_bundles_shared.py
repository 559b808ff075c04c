"""Bundles chosen in one process hold in all: activation, rollback and shadow through the store, with real bundles."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER

from placewise_core.clock import ManualClock
from placewise_core.commands import PlaceCommand
from placewise_core.errors import InvalidRequestError, NotFoundError, StateUnavailableError
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import PACKAGED_BUNDLES, build_engine
from placewise_service.model.bundle import load, write_manifest
from placewise_service.model.registry import BundleState
from placewise_service.state.memory import MemoryStore
from placewise_service.state.store import BundleChoice
from placewise_service.telemetry import Telemetry


def write_bundles(root: Path, *names: str) -> Path:
    """Copies of the shipped bundle under other names."""
    for name in names:
        shutil.copytree(PACKAGED_BUNDLES / "default", root / name)
        write_manifest(root / name, msgspec.structs.replace(load(root / name).manifest, name=name))
    return root


class Away(MemoryStore):
    """A store that can be cut off."""

    is_away = False

    async def bundles(self) -> BundleChoice:
        if self.is_away:
            raise StateUnavailableError("cut off by the test")
        return await super().bundles()


@pytest.fixture
def store() -> Away:
    return Away(ManualClock(1_000_000.0))


def replica(store: MemoryStore, bundles: Path) -> Engine:
    return build_engine(store, ManualClock(1_000_000.0), Telemetry(), EngineOptions(), bundles)


def states(statuses: object) -> dict[str, BundleState]:
    return {status.name: status.state for status in statuses}  # type: ignore[attr-defined]


async def serving(engine: Engine) -> str:
    command = PlaceCommand(CLUSTER, (make_job("a"),), is_dry_run=True)
    return (await engine.place(command)).meta.bundle


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


async def test_two_choices_at_once_take_turns(tmp_path: Path, store: Away) -> None:
    root = write_bundles(tmp_path, "default", "a", "b")
    one, two = replica(store, root), replica(store, root)
    await asyncio.gather(one.bundles.activate("a"), two.bundles.set_shadow("b"))
    assert await store.bundles() == BundleChoice(2, "a", "default", "b")
