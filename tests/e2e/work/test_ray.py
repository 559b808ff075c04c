"""Ray itself, in an environment of its own: a training, an evaluation and a gate give the same files as without it,
also if a worker is killed. A Ray that does not answer, or dies, is one line, and no answer is written."""

import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.unit.gate.sites import site

from placewise_models.folder import shipped_bundle

pytestmark = [pytest.mark.e2e_heavy, pytest.mark.process, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
PACKAGES = [str(ROOT / each) for each in ("service", "training", "clients/python")]
TRAIN = "train policy --method imitate+ppo --warm-share 0.5 --tasks 200 --simulations 4 --jobs 12 --width 16 --heads 2"
JUDGED = "--validation-simulations 2 --judged-seeds 2 --judged-jobs 12"
BUNDLE = str(shipped_bundle())
COMMANDS = {
    "train": f"{TRAIN} {JUDGED}",
    "evaluate": f"evaluate --log LOG --bundle {BUNDLE} --policy load-balance --policy consolidate --block-min 60",
    "gate": f"gate --log LOG --bundle {BUNDLE} --incumbent {BUNDLE} --policy consolidate --windows 4",
}
MEASURED = re.compile(r'"\w*(p95_s|training|command)": .*|p95 [0-9.]+ ms.*|<p>[^<]*made[^<]*</p>')
BUSY = "ray::performed_away"  # as Ray calls a worker that has an item


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    installed = subprocess.run([python, "-m", "pip", "install", "-q", "ray>=2.50"], check=False)
    if installed.returncode:
        pytest.skip("no package index with ray")
    (packages,) = folder.glob("lib/python3*/site-packages")
    ours = [*PACKAGES, *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "placewise.pth").write_text("\n".join(ours) + "\n", "utf-8")
    return python


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site(tmp_path_factory.mktemp("log"), 6, 500, ("load-balance", "consolidate"))


def begun(python: Path, way: str, command: str, log: Path, out: Path) -> subprocess.Popen[str]:
    words = [str(log) if word == "LOG" else word for word in command.split()]
    driver = [str(python), "-m", "tests.e2e.work.driver", way, *words, "--out", str(out)]
    return subprocess.Popen(
        driver, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """Its text on stderr; a gate's refusal is an answer."""
    _, errors = process.communicate(timeout=900)
    assert process.returncode in (0, 5), errors
    return errors


def files(out: Path) -> Mapping[str, bytes | str]:
    """Those of the answer, without measured times."""
    kept = [path for path in sorted(out.rglob("*")) if path.suffix in (".json", ".onnx", ".html")]
    return {
        str(path.relative_to(out)): path.read_bytes()
        if path.suffix == ".onnx"
        else MEASURED.sub("", path.read_text("utf-8"))
        for path in kept
    }


def workers_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """Ray's workers that have an item of this process."""
    parents: dict[int, int] = {}
    busy = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_text().startswith(BUSY):
                busy.append(int(path.name))
        except OSError:
            continue
    for pid in busy:
        above = pid
        while above in parents and above != process.pid:
            above = parents[above]
        if above == process.pid:
            yield pid


def kill_one(process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        for pid in workers_of(process):
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)
    raise AssertionError("it ended before a worker was killed")


@pytest.mark.parametrize("name", COMMANDS)
def test_files_are_the_same_however_the_work_is_done(python: Path, log: Path, tmp_path: Path, name: str) -> None:
    for way in ("here", "processes", "2"):
        ended(begun(python, way, COMMANDS[name], log, tmp_path / way))
    found = files(tmp_path / "here")
    assert len(found) >= 2
    assert files(tmp_path / "processes") == found
    assert files(tmp_path / "2") == found


@pytest.mark.parametrize("name", ["train", "gate"])
def test_a_worker_that_is_killed_changes_nothing_but_time(python: Path, log: Path, tmp_path: Path, name: str) -> None:
    ended(begun(python, "here", COMMANDS[name], log, tmp_path / "here"))
    on_ray = begun(python, "2", COMMANDS[name], log, tmp_path / "2")
    kill_one(on_ray)
    assert "A worker died or was killed" in ended(on_ray)
    assert files(tmp_path / "2") == files(tmp_path / "here")


def test_no_cluster_is_one_line_and_nothing_is_written(python: Path, log: Path, tmp_path: Path) -> None:
    before = files(Path(BUNDLE))
    gate = begun(python, "ray://127.0.0.1:1", COMMANDS["gate"], log, tmp_path / "gate")
    _, errors = gate.communicate(timeout=300)
    assert gate.returncode == 3, errors
    assert "placewise: no Ray answers at ray://127.0.0.1:1: " in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "gate").exists()
    assert files(Path(BUNDLE)) == before


def test_a_ray_that_dies_is_one_line_and_the_training_goes_on_with_resume(
    python: Path, log: Path, tmp_path: Path
) -> None:
    command, out = COMMANDS["train"].replace("--tasks 200", "--tasks 1000"), tmp_path / "train"
    training = begun(python, "2", command, log, out)
    while not (out / "policy.pt").exists() or not (workers := list(workers_of(training))):  # a first round is done
        assert training.poll() is None
        time.sleep(0.05)
    os.kill(int(Path(f"/proc/{workers[0]}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    _, errors = training.communicate(timeout=300)
    assert training.returncode == 3, errors
    assert re.search(rf"placewise: Ray at 2 went away: .*; go on with --resume \(checkpoint in {out}\)", errors)
    assert not (out / "policy.json").exists()
    ended(begun(python, "here", f"{command} --resume", log, out))
    assert (out / "policy.json").exists()
