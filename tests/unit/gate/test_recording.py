"""The gate's verdict in the bundle's manifest, which the service reads at promotion."""

from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle

from placewise_models.bundle import BundleError, load
from placewise_models.signing import SIGNATURES
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
    record(verdict(*passed), bundle)
    found = load(bundle)
    assert found.manifest.gate == {"verdict": word, "cluster": "lab", "policy": "harmony"}
    assert found.document("gate.json")["verdict"] == word
    assert {file: found.manifest.files[file] for file in before.manifest.files} == before.manifest.files
    record(verdict(True), bundle)  # judged again
    assert load(bundle).manifest.gate["verdict"] == "promoted"


def test_a_signed_or_torn_bundle_gets_no_verdict(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path / "next")
    (bundle / SIGNATURES).write_text("signed", "ascii")
    digest = load(bundle).digest
    with pytest.raises(BundleError, match="record, then sign"):
        record(verdict(True), bundle)
    assert load(bundle).digest == digest
    (bundle / SIGNATURES).unlink()
    (bundle / "reward.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match=r"reward\.onnx differs from the manifest"):
        record(verdict(True), bundle)
    assert not (bundle / "gate.json").exists()
