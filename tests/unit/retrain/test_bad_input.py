"""A retraining that cannot go on says why in a line, and leaves the serving bundle as it was."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.fakes.bundles import copy_bundle
from tests.unit.gate.sites import site
from typer.testing import CliRunner

from placewise_models.bundle import load
from placewise_training.retrain import command
from placewise_training.retrain.command import retrain_app
from placewise_training.retrain.retrain import RetrainError

ROOT = Path(__file__).parents[3]


class Space(NamedTuple):
    total: int
    used: int
    free: int


def options(log: Path, start: Path, out: Path) -> list[str]:
    return ["--log", str(log), "--start", str(start), "--out", str(out)]


def stopped_by(error: Exception, monkeypatch: pytest.MonkeyPatch, out: Path, free: int) -> BaseException | None:
    """How the command ends if the retraining does so, with so many bytes left."""

    def fails(*args: Any) -> None:
        raise error

    monkeypatch.setattr(command, "retrain", fails)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Space(1 << 30, (1 << 30) - free, free))
    return CliRunner().invoke(retrain_app, options(out, out, out)).exception


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),  # torch.save
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_is_told_whoever_meets_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = stopped_by(error, monkeypatch, tmp_path / "new", free=0)
    assert isinstance(found, RetrainError)
    assert str(found).startswith("the disk is full: free some of it; the same command goes on")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("shape mismatch"),
        sqlite3.OperationalError("disk I/O error"),
    ],
)
def test_other_errors_are_not_told_as_a_full_disk(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert stopped_by(error, monkeypatch, tmp_path / "new", free=1 << 29) is error


def test_a_half_written_bundle_to_begin_with_is_named(tmp_path: Path) -> None:
    start = copy_bundle(tmp_path / "half")
    net = start / "reward.onnx"
    net.write_bytes(net.read_bytes()[:-100])
    done = CliRunner().invoke(retrain_app, options(tmp_path / "log", start, tmp_path / "new"))
    assert isinstance(done.exception, RetrainError)
    assert "half" in str(done.exception)
    assert "reward.onnx" in str(done.exception)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.process
def test_a_retraining_that_is_killed_leaves_no_bundle_and_keeps_no_other_out(tmp_path: Path) -> None:
    log = site(tmp_path / "log", 6, 500, ("load-balance", "consolidate"))
    start, out = copy_bundle(tmp_path / "start"), tmp_path / "new"
    digest = load(start).digest
    few = ["--effort", "0.01", "--windows", "4", "--policy", "consolidate", "--track", str(tmp_path / "mlruns")]
    paths = os.pathsep.join(str(ROOT / name) for name in ("service", "training", "clients/python"))
    code = "from placewise_service.cli import main; main()"
    line = [sys.executable, "-c", code, "retrain", *options(log, start, out), *few]
    environment = {**os.environ, "PYTHONPATH": paths}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for stage in running.stderr:
            if "uncertainty" in stage:  # the reward model is trained, and its uncertainty is not
                break
        assert running.poll() is None
        running.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert load(start).digest == digest
    again = CliRunner().invoke(retrain_app, [*options(log, start, out), *few])
    assert again.exit_code in (0, 5), again.output
    assert "consolidate against start" in again.output
    assert load(start).digest == digest
    made = out if again.exit_code == 0 else tmp_path / "new.retrain" / "refused" / "new"
    assert load(made).manifest.parent == {"name": "start", "digest": digest}
    (run,) = (path.parent for path in (tmp_path / "mlruns").glob("*/*/meta.yaml"))
    assert (run / "tags" / "data" / "start").read_text() == digest
    assert (run / "artifacts" / "gate" / "gate.html").exists()
