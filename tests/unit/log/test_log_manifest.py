"""The manifest of an export names every file with its hash."""

import json
from pathlib import Path

import pytest
from tests.fakes.declog import NOON_S, FakeRing, decision, files, outcome, run

from placewise_core.domain.commands import JobEventKind
from placewise_log.logs import Log
from placewise_log.manifest import LogManifest, ManifestError
from placewise_log.store import LogError, LogStore


async def test_the_manifest_names_every_file_and_how_far_the_log_goes(tmp_path: Path) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.STARTED, NOON_S + 1))
    report = await run(ring, tmp_path)
    manifest = LogManifest.read(tmp_path)
    assert set(manifest.files) == {path.relative_to(tmp_path).as_posix() for path in files(tmp_path, "*/*/*.parquet")}
    assert {name.partition("/")[0] for name in manifest.files} == {
        "decisions",
        "outcomes",
        "joined",
        "runs",
        "progress",
    }
    assert (manifest.watermark, manifest.made_time_s) == ({"c": ring.entries[-1][0]}, ring.now_s)
    assert report.manifest == manifest.digest == json.loads((tmp_path / "manifest.json").read_text())["digest"]
    manifest.check(tmp_path)


async def test_the_digest_changes_with_the_log_alone(tmp_path: Path) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 1))
    first = (await run(ring, tmp_path)).manifest
    assert (await run(ring, tmp_path)).manifest == first
    ring.add(decision(2))
    assert (await run(ring, tmp_path)).manifest != first


async def test_readers_know_the_digest_of_the_log_in_any_store(tmp_path: Path) -> None:
    first = (await run(FakeRing(decision(1)), tmp_path)).manifest
    assert LogStore(tmp_path).digest == LogStore(tmp_path.as_uri()).digest == first
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(LogError, match=r"manifest.json: no manifest of a log"):
        _ = LogStore(tmp_path).digest
    (tmp_path / "manifest.json").unlink()
    assert LogStore(tmp_path).digest == ""


async def test_the_manifest_keeps_what_it_knows_of_clusters_that_this_export_leaves_out(tmp_path: Path) -> None:
    hosted, other = FakeRing(decision(1)), FakeRing()
    hosted.dropped[Log.DECISIONS], hosted.host_time_s = 3, 120.0
    await run(hosted, tmp_path)
    await run(other, tmp_path, clusters=("d",))  # type: ignore[arg-type]
    manifest = LogManifest.read(tmp_path)
    assert manifest.host_times_s == {"c": 120.0}
    nothing = {"decisions": 0, "views": 0}
    assert manifest.dropped == {"c": {**nothing, "decisions": 3}, "d": nothing}
    (tmp_path / "manifest.json").write_text('{"files": {}, "watermark": {}, "made_time_s": 1.0}')  # of before
    assert LogManifest.read(tmp_path).dropped == LogManifest.read(tmp_path).host_times_s == {}


@pytest.mark.parametrize("damage", ["changed", "gone"])
async def test_a_file_that_is_not_as_exported_is_named(tmp_path: Path, damage: str) -> None:
    await run(FakeRing(decision(1)), tmp_path)
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    path.unlink() if damage == "gone" else path.write_bytes(b"PAR1")
    with pytest.raises(ManifestError, match=path.name):
        LogManifest.read(tmp_path).check(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"a": {}}, "watermark": {}, "made_time_s": 0}'])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ManifestError, match="missing"):
        LogManifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match="no manifest"):
        LogManifest.read(tmp_path)
