"""An export is copied to a store: each file once, the manifest last."""

from pathlib import Path

import fsspec
import pytest
from tests.fakes.declog import NOON_S, FakeRing, decision, files, outcome, run

from placewise_core.domain.commands import JobEventKind
from placewise_log.manifest import LogManifest
from placewise_service.declog.upkeep.publish import Store, StoreError


async def test_a_store_has_each_file_once_and_the_manifest(tmp_path: Path) -> None:
    here, there = tmp_path / "log", tmp_path / "store"
    ring = FakeRing(decision(1))
    await run(ring, here)
    store = Store(there.as_uri())
    assert store.publish(here) == len(LogManifest.read(here).files)
    LogManifest.read(there).check(there)
    assert store.publish(here) == 0
    ring.add(outcome(1, JobEventKind.STARTED, NOON_S + 1))
    await run(ring, here)
    assert store.publish(here) == 3, "the outcome, and the joined rows and runs of its day"
    LogManifest.read(there).check(there)


async def test_any_store_of_fsspec_will_do(tmp_path: Path) -> None:
    await run(FakeRing(decision(1)), tmp_path)
    Store("memory://logs/a").publish(tmp_path)
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    memory = fsspec.filesystem("memory")
    assert memory.cat_file(f"/logs/a/{path.relative_to(tmp_path)}") == path.read_bytes()
    assert memory.exists("/logs/a/manifest.json")


async def test_a_publication_that_was_cut_off_leaves_the_manifest_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "log", tmp_path / "store"
    ring = FakeRing(decision(1))
    await run(ring, here)
    store = Store(there.as_uri())
    store.publish(here)
    before = (there / "manifest.json").read_bytes()
    ring.add(decision(2))
    await run(ring, here)
    copied: list[str] = []

    def cut(self: Store, source: Path, name: str) -> None:
        copied.append(name)
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_copy", cut)
        with pytest.raises(StoreError, match="connection lost"):
            store.publish(here)
    assert (there / "manifest.json").read_bytes() == before
    assert "manifest.json" not in copied
    assert store.publish(here) > 0
    LogManifest.read(there).check(there)


def test_a_url_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StoreError, match="no-such-scheme"):
        Store("no-such-scheme://x")
