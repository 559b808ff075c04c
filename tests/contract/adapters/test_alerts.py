"""The shipped alerts name metrics that there are, and fire when they should, by Prometheus' own tool."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from placewise_client.adapter.metrics import AdapterMetrics

ALERTS = Path(__file__).parents[3] / "deploy" / "kubernetes" / "alerts.yaml"
CASES = Path(__file__).with_name("alerts.promtool.yaml")


def test_alerts_name_metrics_of_the_adapter() -> None:
    named = set(re.findall(r"placewise_\w+", "".join(re.findall(r"expr: .*", ALERTS.read_text()))))
    assert named
    assert named <= set(re.findall(r"^# TYPE (\w+)", AdapterMetrics().text(), re.MULTILINE))


def test_alerts_fire_when_no_adapter_runs_and_when_nothing_is_decided(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    for path in (ALERTS, CASES):
        shutil.copy(path, tmp_path)
    command = ["promtool", "test", "rules", CASES.name]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
