"""A site's own measured rows: faults are named, trainers that can use the rows do, and the manifest names them."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from placewise_core.domain.job import Job, JobId
from placewise_core.domain.traces import TraceError
from placewise_core.speed.throughput import ThroughputModel
from placewise_models.bundle import load
from placewise_service.cli import invoke
from placewise_service.commands.remote.bundle import _data as hashes_of
from placewise_training.data.placement_tables import usable_pairs
from placewise_training.data.site_rows import PAIRS, PROVENANCE, STEPS, SiteStep, read_site_rows
from placewise_training.sharing import train as train_sharing
from placewise_training.throughput import train as train_throughput
from placewise_training.throughput.data import measured_groups, site_groups, with_own

PAIR_ROWS = """gpu_type,model_a,batch_a,model_b,batch_b,norm_a,norm_b,tput_a_alone
H100,Llama,8,ResNet-50,64,0.41,0.62,2.5
H100,Llama,8,LM,10,0.55,0.7,2.5
H100,Llama,8,nobody,1,0.5,0.5,2.5
"""
STEP_ROWS = "gpu_type,model,placement,local_batch,step_time_s,params_millions\n" + "".join(
    f"H100,Llama,{placement},{batch},{0.02 + 0.001 * batch + 0.01 * len(placement)},7000\n"
    for placement in ("1", "2", "4", "44", "8", "88")
    for batch in (4, 8, 16)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / PAIRS).write_text(PAIR_ROWS)
    (tmp_path / STEPS).write_text(STEP_ROWS + "H100,Rare,1,4,0.1,10\n")
    return tmp_path


def test_rows_are_read_with_their_hashes(folder: Path) -> None:
    rows = read_site_rows(folder)
    assert (len(rows.pairs), len(rows.steps)) == (3, 19)
    assert rows.alone_s == {("H100", "llama", 8.0): 0.4}
    assert rows.data(PAIRS) == {f"measured/{PAIRS}": hashlib.sha256(PAIR_ROWS.encode()).hexdigest()}
    assert not read_site_rows(None).pairs


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (PAIRS, "gpu_type,model_a\nH100,a\n", "pairs.csv:1:1: batch_a: no such column"),
        (PAIRS, PAIR_ROWS.replace("0.41", "1.5"), "pairs.csv:2:6: norm_a: 1.5 is not a finite number above 0"),
        (PAIRS, PAIR_ROWS.replace("0.41", "fast"), "pairs.csv:2:6: norm_a: 'fast' is not a number"),
        (PAIRS, PAIR_ROWS + "H100,a\n", "pairs.csv:5:1: the row has 2 fields, the header 8"),
        (STEPS, STEP_ROWS.replace("44,", "4-4,", 1), "placement: '4-4' is not a digit from 1 to 9 for each node"),
        (STEPS, STEP_ROWS.replace("H100,Llama,1,4", "H100,,1,4", 1), "steps.csv:2:2: model: is empty"),
        (STEPS, STEP_ROWS.splitlines()[0] + "\n", "steps.csv:1:1: no rows"),
        ("provenance.json", json.dumps({"settings": {"device": "cpu"}}), "were profiled on CPU cores"),
    ],
)
def test_bad_rows_are_named(folder: Path, file: str, text: str, message: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(TraceError) as error:
        read_site_rows(folder)
    assert message in str(error.value)


def test_a_folder_with_none_of_the_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"holds none of pairs\.csv, steps\.csv, subtasks\.csv"):
        read_site_rows(tmp_path)


def test_pairs_beside_known_networks_become_rows_to_learn_from(folder: Path) -> None:
    own, history = read_site_rows(folder), usable_pairs()
    published, joined = train_sharing.examples(history), train_sharing.examples(history, own=own)
    assert len(joined.speeds) == len(published.speeds) + 1  # partners that are no reference network tell nothing
    assert np.isclose(joined.step_s, 0.4).sum() == 1
    assert np.nanmin(np.abs(joined.speeds[:, :-1, :, 0] - 0.41)) < 1e-12


def test_a_sharing_run_names_the_rows_of_the_site(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unjudged(*_: object) -> Mapping[str, object]:
        return {}

    monkeypatch.setattr(train_sharing, "judged_all", unjudged)
    monkeypatch.setattr(train_sharing, "folds", unjudged)
    reports, nets = [], []
    for measured in (None, folder):
        args = train_sharing.Args(out=tmp_path / str(measured is None), steps=20, measured=measured)
        reports.append(train_sharing.train(args))
        nets.append(train_sharing.load_net(args.out / train_sharing.CHECKPOINT).shrinkage.detach().numpy())
    without, joined = reports
    assert "measured/pairs.csv" not in without["data"]
    assert hashes_of(joined)["measured/pairs.csv"] == hashlib.sha256(PAIR_ROWS.encode()).hexdigest()
    assert joined["samples"]["site_pairs"] == 3
    assert not np.array_equal(*nets)  # they were learnt from


def test_a_throughput_fit_answers_for_the_sites_own_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_throughput, "measured_groups", lambda: measured_groups()[:1])
    shows: list[str] = []
    args = train_throughput.Args(out=tmp_path / "out", splits=1, measured=folder)
    report = train_throughput.train(args, lambda title, done, total: shows.append(title))
    assert shows[0] == "Llama on H100"
    assert report["site_rows"] == {"used": 18, "too_few": 1}
    assert hashes_of(report)["measured/steps.csv"] == report["data"]["measured/steps.csv"]
    match = ThroughputModel(report).match(Job(JobId("a"), model="llama"), "H100")
    assert (match.profile.model, match.profile.gpu_model) == ("Llama", "H100")


def test_the_manifest_of_a_bundle_names_the_rows_their_provenance_and_the_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_throughput, "measured_groups", lambda: measured_groups()[:1])
    provenance = json.dumps({"settings": {"device": "cuda"}, "hardware": "H100"})
    (folder / PROVENANCE).write_text(provenance)
    run, bundle = tmp_path / "run", tmp_path / "site-1"
    trained = ["train", "throughput", "--out", str(run), "--splits", "1", "--measured", str(folder), "--json"]
    monkeypatch.setattr(sys, "argv", ["placewise", *trained])
    assert invoke(trained) == 0
    assert invoke(["bundle", "build", str(bundle), "--from", str(run), "--commit", "c1", "--json"]) == 0
    manifest = load(bundle).manifest
    named = {name: value for name, value in manifest.data_sha256.items() if "/measured/" in name}
    assert named == {
        f"throughput/measured/{STEPS}": hashlib.sha256((folder / STEPS).read_bytes()).hexdigest(),
        f"throughput/measured/{PROVENANCE}": hashlib.sha256(provenance.encode()).hexdigest(),
    }
    assert manifest.data_sha256["throughput/command"] == " ".join(["placewise", *trained])
    assert manifest.data_sha256["throughput/commit"]
    assert (manifest.git_commit, set(manifest.files)) == ("c1", {"throughput.json"})


def test_own_steps_stand_in_for_published_ones_and_need_a_size() -> None:
    published = measured_groups()
    known = next(group for group in published if group.model == "BERT")
    rows = [("1", 8.0, 0.1), ("2", 8.0, 0.12), ("4", 8.0, 0.15)] * 4
    own, left_out = site_groups([SiteStep(known.gpu_model, "bert", *row, 0.0) for row in rows])
    assert left_out == 0
    joined = with_own(own, published)
    assert len(joined) == len(published)
    assert [g.source for g in joined if (g.model, g.gpu_model) == ("BERT", known.gpu_model)] == ["site"]
    with pytest.raises(TraceError, match=r"steps\.csv:1:1: params_millions: is needed, as the size of 'unheard-of'"):
        site_groups([SiteStep("H100", "unheard-of", *row, 0.0) for row in rows])
