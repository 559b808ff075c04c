"""What a reproduction says of its origin when it runs with a bundle."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from placewise_models.bundle import Manifest, write_manifest
from placewise_training.reproduce import document, registry
from placewise_training.reproduce.bundle_origin import bundle_origin
from placewise_training.reproduce.command import reproduce_app
from placewise_training.reproduce.design import Experiment, Metric, NeedsBundleError, TrialOutcome
from placewise_training.reproduce.paper import Paper


def paper(*methods: str) -> Paper:
    def trial(setting: str, method: str, seed: int) -> TrialOutcome:
        if method == "learned":
            raise NeedsBundleError("needs a bundle")
        return TrialOutcome({"time": 1.0 + seed})

    experiment = Experiment("e", "times", "Fig. 1", ("1", "2"), methods, (Metric("time", "time"),), trial)
    return Paper("made-up", "A paper made up", [experiment], [])


def bundle_of(folder: Path, *, has_manifest: bool) -> str:
    """A bundle, or the folder of a training run, with a net of seed 7; its digest."""
    folder.mkdir()
    report_of_net = {"seed": 7, "origin": {"command": "placewise train policy --seed 7", "commit": "0123456789ab"}}
    (folder / "harmony_paper.json").write_text(json.dumps(report_of_net))
    if not has_manifest:
        sums = f"{hashlib.sha256((folder / 'harmony_paper.json').read_bytes()).hexdigest()} harmony_paper.json\n"
        return hashlib.sha256(sums.encode()).hexdigest()
    made = {f"harmony_paper/{key}": value for key, value in report_of_net["origin"].items()}  # type: ignore[attr-defined]
    write_manifest(
        folder,
        Manifest(folder.name, "", {"harmony_paper.json": ""}, seeds={"harmony_paper": 7}, data_sha256=made),
    )
    return hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_rows_can_be_traced_to_the_net_that_made_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_manifest: bool
) -> None:
    """Each run with a bundle names its digest, the seed and the command of each net, and the rows that it made."""
    digest = bundle_of(tmp_path / "printed", has_manifest=has_manifest)
    out = str(tmp_path / "out")
    made = paper("theirs")
    monkeypatch.setattr(registry, "load", lambda name, **options: made)
    assert CliRunner().invoke(reproduce_app, ["harmony", "--out", out, "--seeds", "2"]).exit_code == 0
    made = paper("ours", "theirs", "learned")
    options = ["--out", out, "--seeds", "2", "--resume", "--bundle", str(tmp_path / "printed"), "--json"]
    result = CliRunner().invoke(reproduce_app, ["harmony", *options])
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)["origins"]
    assert sorted(first) == ["command", "commit"]
    assert second["bundle"] == {
        "name": "printed",
        "digest": digest,
        "nets": {"harmony_paper": {"seed": 7, "command": "placewise train policy --seed 7", "commit": "0123456789ab"}},
    }
    assert second["rows"] == {"e": {"ours": ["1", "2"]}}, "not those that were there, nor those without a net"
    found = {**json.loads((tmp_path / "out" / "made-up.json").read_text()), "paper": "heat"}
    text = document.markdown([found], tmp_path, "reproduction")
    assert f"digest {digest[:12]}: harmony_paper of seed 7 by `placewise train policy --seed 7`" in text
    assert "It made, with the number of settings, e: ours (2)." in text


def test_a_bundle_that_is_torn_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json: "):
        bundle_origin(tmp_path)
