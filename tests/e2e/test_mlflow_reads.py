"""MLflow itself, in an environment of its own, reads the runs that `--track` leaves."""

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest

from placewise_training.lab.mlruns import FinishedRun, add_run

READ = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
found = []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "later/reward/error_after")
        found.append({
            "experiment": experiment.name, "name": run.info.run_name, "status": run.info.status,
            "params": run.data.params, "metrics": run.data.metrics, "tag": run.data.tags.get("data/log"),
            "steps": [each.step for each in history],
            "files": sorted(each.path for each in client.list_artifacts(run.info.run_id)),
            "gate": [each.path for each in client.list_artifacts(run.info.run_id, "gate")],
        })
print(json.dumps(found))
"""


@pytest.mark.e2e_heavy
@pytest.mark.process
def test_mlflow_reads_runs_parameters_metrics_tags_and_artifacts(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "mlflow-skinny>=2.14"], check=False)
    if installed.returncode:
        pytest.skip("no package index with mlflow-skinny")
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "gate.html").write_text("<p>refused</p>")
    (tmp_path / "reward.onnx").write_bytes(b"net")
    store = tmp_path / "mlruns"
    metrics = {"later/reward/error_after": 0.125, "simulated/gain": float("nan")}
    files = [tmp_path / "gate", tmp_path / "reward.onnx"]
    add_run(store, FinishedRun("retrain", "2026.12", 5.0, {"seed": 7}, metrics, {"data/log": "abc"}, files))
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [python, "-c", READ, store.as_uri()], capture_output=True, text=True, check=False, env=quiet, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["metrics"].pop("simulated/gain") != 0.0
    assert found == {
        "experiment": "retrain", "name": "2026.12", "status": "FINISHED", "params": {"seed": "7"},
        "metrics": {"later/reward/error_after": 0.125}, "tag": "abc", "steps": [0], "files": ["gate", "reward.onnx"],
        "gate": ["gate/gate.html"],
    }  # fmt: skip
