"""The gate's verdict in the bundle's manifest, which the service reads at promotion."""

from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle

from placewise_models.bundle import BundleError, load
from placewise_models.public_key import SIGNATURES
from placewise_training.gate.checks import Check
from placewise_training.gate.gate import GateVerdict
from placewise_training.gate.report import record

FACTS = {"name": "next", "digest": "d"}


def verdict(*passed: bool) -> GateVerdict:
    checks = [Check(f"check {i}", each, "as the test asked") for i, each in enumerate(passed)]
    return GateVerdict(FACTS, FACTS, "lab", "harmony", checks)


@pytest.mark.parametrize(("passed", "word"), [((True, True), "promoted"), ((True, False), "refused")])
def test_the_manifest_has_the_verdict_and_the_bundle_its_report(
    tmp_path: Path, passed: tuple[bool, ...], word: str
) -> None:
    bundle = copy_bundle(tmp_path / "next")
    before = load(bundle)
    record(verdict(*passed), bundle, tmp_path / "judged")
    found = load(tmp_path / "judged")
    assert found.manifest.gate == {"verdict": word, "cluster": "lab", "policy": "harmony"}
    assert found.document("gate.json")["verdict"] == word
    assert {file: found.manifest.files[file] for file in before.manifest.files} == before.manifest.files
    record(verdict(True), tmp_path / "judged", tmp_path / "judged-again")
    assert load(tmp_path / "judged-again").manifest.gate["verdict"] == "promoted"
    assert load(tmp_path / "judged").digest == found.digest


def test_the_bundle_that_is_judged_stays_as_it_is(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path / "next")
    (bundle / SIGNATURES).write_text("signed", "ascii")
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    record(verdict(True), bundle, tmp_path / "judged")
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert not (tmp_path / "judged" / SIGNATURES).exists(), "they are over another manifest"
    for there in ("next", "judged"):
        with pytest.raises(BundleError, match="exists, and a bundle never changes"):
            record(verdict(False), bundle, tmp_path / there)


def test_a_torn_bundle_gets_no_verdict(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path / "next")
    (bundle / "reward.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match=r"reward\.onnx differs from the manifest"):
        record(verdict(True), bundle, tmp_path / "judged")
    assert [path.name for path in tmp_path.iterdir()] == ["next"]
