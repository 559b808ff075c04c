"""Runs in MLflow's layout: the contents of a trainer's run. That MLflow reads it: tests/e2e/test_mlflow_reads.py."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from placewise_training.lab.mlruns import FinishedRun, add_run, numbers
from placewise_training.train_cli import train_app

MEASURED = {"detect": {"sm": 0.4, "speedup": 9.0}}


def runs(store: Path) -> list[Path]:
    return [path.parent for path in store.glob("*/*/meta.yaml")]


@pytest.mark.process  # git, for the commit
def test_a_trainers_run_has_options_seed_hashes_commit_metrics_and_files(tmp_path: Path) -> None:
    (tmp_path / "profiles.json").write_text(json.dumps(MEASURED))
    options = ["--out", str(tmp_path / "ncf"), "--profiles", str(tmp_path / "profiles.json"), "--seed", "7"]
    steps = ["--draws", "2", "--pretrain-steps", "5", "--sgd-steps", "5", "--track", str(tmp_path / "mlruns")]
    done = CliRunner().invoke(train_app, ["ncf", *options, *steps, "--card", str(tmp_path / "ncf.md")])
    assert done.exit_code == 0, done.output
    (run,) = runs(tmp_path / "mlruns")
    report = json.loads((tmp_path / "ncf" / "ncf.json").read_text())
    assert (run / "params" / "seed").read_text() == "7"
    assert (run / "tags" / "data" / "training").read_text() == report["data"]["training"]
    assert (run / "tags" / "commit").read_text() == report["origin"]["commit"]
    _, value, step = (run / "metrics" / "metrics" / "loss" / "last").read_text().split()
    assert (float(value), step) == (report["metrics"]["loss"]["last"], "0")
    assert {path.name for path in (run / "artifacts").iterdir()} == {"ncf.onnx", "ncf.json", "ncf.md"}
    made = (tmp_path / "ncf" / "ncf.onnx").read_bytes()
    assert hashlib.sha256((run / "artifacts" / "ncf.onnx").read_bytes()).digest() == hashlib.sha256(made).digest()


def test_runs_of_one_trainer_are_one_experiment_and_ids_differ(tmp_path: Path) -> None:
    folders = [add_run(tmp_path, FinishedRun(name, "a", 5.0)) for name in ("reward", "reward", "policy")]
    assert folders[0].parent == folders[1].parent != folders[2].parent
    assert len({folder.name for folder in folders}) == 3
    experiment = yaml.safe_load((folders[0].parent / "meta.yaml").read_text())
    assert (experiment["name"], experiment["experiment_id"]) == ("reward", folders[0].parent.name)
    run = yaml.safe_load((folders[0] / "meta.yaml").read_text())
    assert (run["run_id"], run["start_time"], run["lifecycle_stage"]) == (folders[0].name, 5000, "active")


def test_a_run_that_was_not_written_to_its_end_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        add_run(tmp_path, FinishedRun("reward", "a", 5.0, artifacts=[tmp_path / "missing.onnx"]))
    assert runs(tmp_path) == []


def test_names_leave_the_folder_of_their_kind_neither_up_nor_by_signs_that_mlflow_refuses(tmp_path: Path) -> None:
    run = add_run(tmp_path, FinishedRun("reward", "a", 5.0, metrics={"/../../gain > 2 %": 1.0}))
    assert [str(path.relative_to(run / "metrics")) for path in run.rglob("gain*")] == ["gain _ 2 _"]


def test_numbers_of_a_report() -> None:
    report = {"a": {"b": 1, "c": [1, 2], "ok": True, "d": {"e": 0.5}}, "f": "2", "g": None}
    assert dict(numbers(report)) == {"a/b": 1.0, "a/d/e": 0.5}
