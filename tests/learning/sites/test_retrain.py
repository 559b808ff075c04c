"""`placewise retrain` from a log to a bundle that passed the gate, and every way in which there is none."""

import errno
import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gate.sites import site
from typer.testing import CliRunner, Result

from placewise_log.manifest import LogManifest
from placewise_log.store import LogError
from placewise_models.bundle import load
from placewise_models.folder import shipped_bundle
from placewise_training.gate import checks
from placewise_training.retrain import retrain as retraining
from placewise_training.retrain.command import retrain_app
from placewise_training.retrain.retrain import BusyError, RetrainError

JOBS, FEW, SEED = 1500, 500, 6  # few are enough for a refusal


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`load-balance` is in force; `consolidate`, which explores, is better."""
    return site(tmp_path_factory.mktemp("log"), SEED, JOBS, ("load-balance", "consolidate"))


@pytest.fixture(scope="module")
def short_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("short"), SEED, FEW, ("load-balance", "consolidate"))


def run(log: Path, out: Path, *more: str) -> Result:
    options = ["--log", str(log), "--start", str(shipped_bundle()), "--out", str(out), "--effort", "0.01"]
    done = CliRunner().invoke(retrain_app, [*options, "--windows", "4", *more])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.slow
def test_a_full_disk_and_ctrl_c_leave_nothing_at_the_place_of_the_bundle_and_the_next_run_goes_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "2026.12", load(shipped_bundle()).digest

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(RetrainError, match="the disk is full: free some of it; the same command goes on"):
            run(log, out, "--policy", "consolidate")
    assert not out.exists()
    trained = tmp_path / "2026.12.retrain" / "reward" / "reward.onnx"
    made_ns = trained.stat().st_mtime_ns

    def stopped(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(retraining, "gate", stopped)
        assert run(log, out, "--policy", "consolidate").exit_code == 130
    assert not out.exists()

    monkeypatch.setattr(checks, "MOST_LOSS", 0.1)  # so few jobs rule out no less
    done = run(log, out, "--policy", "consolidate")
    assert done.exit_code == 0, done.output
    assert trained.stat().st_mtime_ns == made_ns  # not trained again
    assert "throughput: error on later rows" in done.output
    bundle = load(out)
    assert bundle.manifest.parent == {"name": shipped_bundle().name, "digest": before}
    assert bundle.manifest.logs == {str(log): LogManifest.read(log).digest}
    assert bundle.manifest.gate == {"verdict": "promoted", "cluster": "c", "policy": "consolidate"}
    assert bundle.document("gate.json")["verdict"] == "promoted"
    assert bundle.document("retrain.json")["steps"]["reward"]["later"]["rows"] > 0
    assert bundle.document("retrain.json")["log"]["nodes"] == {"c": {f"server{n}": "1080TI" for n in range(6)}}
    assert bundle.manifest.files["reward.onnx"] != load(shipped_bundle()).manifest.files["reward.onnx"]
    assert load(shipped_bundle()).digest == before
    with pytest.raises(RetrainError, match="exists, and a bundle never changes"):
        run(log, out)


@pytest.mark.slow
def test_a_candidate_that_the_gate_refuses_does_not_come_to_its_place(short_log: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    done = run(short_log, out, "--policy", "load-balance", "--only", "reward")
    assert done.exit_code == 5
    assert "FAILED  gain in the paired simulation" in done.output
    assert not out.exists()
    assert (tmp_path / "next.retrain" / "gate" / "gate.html").exists()
    assert load(tmp_path / "next.retrain" / "refused" / "next").manifest.gate["verdict"] == "refused"


@pytest.mark.slow
def test_a_half_written_log_a_second_run_and_an_unknown_step_are_told(short_log: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(short_log, torn)
    part = next(torn.glob("joined/*/*.parquet"))
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(LogError, match=r"parquet: not as the manifest has it; run `placewise log export"):
        run(torn, tmp_path / "a")
    (torn / "manifest.json").unlink()
    with pytest.raises(LogError, match=r"manifest.json: missing"):
        run(torn, tmp_path / "a")
    (tmp_path / "b.retrain").mkdir()
    with (tmp_path / "b.retrain" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another retraining writes"):
            run(short_log, tmp_path / "b")
    with pytest.raises(RetrainError, match="no step is called 'rewards'; there are throughput, reward"):
        run(short_log, tmp_path / "c", "--only", "rewards")
    assert not any((tmp_path / name).exists() for name in "abc")
