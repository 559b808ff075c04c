"""Every trainer, through the command line: bars on a terminal that move and are full in the end, and none elsewhere."""

import io
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import Progress

from placewise_service.cli import invoke
from placewise_training.lab.register import ALL
from placewise_training.sharing import train as train_sharing
from placewise_training.throughput import train as train_throughput
from placewise_training.train_cli import train_app

# The options of a run of seconds, and the stages that have a bar.
RUNS: dict[str, tuple[str, set[str]]] = {
    "reward": (
        "--simulations 4 --judged-simulations 2 --steps 4 --width 8 --heads 2 --doubt-steps 2 --practice 2 "
        "--held-back 0.5",
        {"simulating", "simulating (held back)", "training"},
    ),
    "policy": (
        "--tasks 200 --simulations 3 --jobs 8 --width 16 --heads 2 --judged-seeds 1 --judged-jobs 8 "
        "--validation-simulations 1",
        {"simulating", "training", "judging"},
    ),
    "ldwp": (
        "--logged 1 --episodes 1 --tasks 20 --updates 2 --batch 8 --validations 1 --judged-seeds 1 --judged-tasks 5",
        {"training", "judging"},
    ),
    "harmony-paper": (
        "--tasks 60 --simulations 1 --jobs 6 --width 16 --layers 1 --validation-simulations 1",
        {"training"},
    ),
    "ldwp-paper": ("--nodes 4 --tasks 60 --logged 40 --per-minute 20", {"learning"}),
    "stdm": (
        "--draws 3 --pretrain-steps 5 --sgd-steps 5 --completion-steps 5 --processes 1",
        {"stdm"},
    ),
    "ncf": ("--draws 2 --pretrain-steps 5 --sgd-steps 5", {"ncf"}),
    "sharing": ("--steps 5 --draws 2 --ncf-steps 6 --processes 1", {"sharing"}),
    "throughput": ("--splits 1", {"fitting"}),
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Any:
    groups = train_throughput.measured_groups()
    folds = train_sharing.folds
    monkeypatch.setattr(train_throughput, "measured_groups", lambda: groups[:3])
    monkeypatch.setattr(
        train_sharing, "folds", lambda args: {name: made[:1] for name, made in list(folds(args).items())[:2]}
    )
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[float, float]]]:
    """By stage what its bar showed: (done, total)."""
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    update = Progress.update

    def watched(bar: Progress, task_id: Any, **options: Any) -> None:
        update(bar, task_id, **options)
        task = bar.tasks[task_id]
        assert task.total
        seen[task.description.partition(",")[0]].append((task.completed, task.total))

    monkeypatch.setattr(Progress, "update", watched)
    return seen


def test_every_trainer_is_run_here() -> None:
    others = {
        "ldwp-online",  # learns until it is stopped: it has no bar
        "capability",  # learns from a log alone: from_log/test_capability_from_log.py looks at its bar
    }
    assert set(RUNS) == {command.name for command in train_app.registered_commands} - {ALL} - others


_SLOW = {"sharing", "reward"}


@pytest.mark.parametrize(
    "trainer", [pytest.param(trainer, marks=pytest.mark.slow if trainer in _SLOW else ()) for trainer in RUNS]
)
def test_a_trainer_shows_on_a_terminal_how_far_it_is(
    trainer: str, tmp_path: Path, moved: dict[str, list[tuple[float, float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, stages = RUNS[trainer]
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    assert invoke(["train", trainer, "--out", str(tmp_path), *options.split()]) == 0
    shown = terminal.getvalue()
    assert stages <= set(moved)
    for stage in stages:
        done = [completed for completed, _ in moved[stage]]
        assert done[0] < done[-1], f"the bar of {stage!r} did not move"
        assert done[-1] == moved[stage][-1][1], f"the bar of {stage!r} did not fill"
        assert stage in shown
    assert "━" in shown


@pytest.mark.parametrize("is_json", [True, False])
def test_what_is_no_terminal_gets_no_bar(
    tmp_path: Path, is_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = Terminal() if is_json else io.StringIO()  # JSON is for programs: no bar, even on a terminal
    monkeypatch.setattr(sys, "stderr", reported)
    options = [*RUNS["throughput"][0].split(), *(["--json"] if is_json else [])]
    assert invoke(["train", "throughput", "--out", str(tmp_path), *options]) == 0
    assert not reported.getvalue()
    if is_json:
        assert json.loads(capsys.readouterr().out)["held_out"]
