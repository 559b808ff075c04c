"""`train all` runs every trainer, in order, and passes each its options."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from placewise_service.cli import invoke
from placewise_training.lab.register import ALL, Trainer, run_all
from placewise_training.train_cli import train_app


@dataclass
class Args:
    out: Path = field(default=Path("x"), metadata={"help": "out"})
    seed: int = field(default=0, metadata={"help": "seed"})
    resume: bool = field(default=False, metadata={"help": "resume"})
    rate: float = field(default=0.5, metadata={"help": "rate"})


@dataclass
class FewArgs:
    out: Path = field(default=Path("y"), metadata={"help": "out"})
    splits: int = field(default=3, metadata={"help": "splits"})


def a_trainer(name: str, args: type[Any], ran: list[Any], error: BaseException | None = None) -> Trainer:
    def train(given: Any, show: Any) -> None:
        if error:
            raise error
        ran.append(given)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "report.json").write_text("{}", "utf-8")

    return Trainer(name, "help", args, train, "report.json", ("a",), lambda report: [("1",)], lambda report: "card")


def test_each_trainer_gets_its_folder_its_defaults_and_what_is_passed_on(tmp_path: Path) -> None:
    ran: list[Any] = []
    trainers = [a_trainer("first", Args, ran), a_trainer("second", FewArgs, ran)]
    shown: list[str] = []
    run_all(trainers, tmp_path, tmp_path / "cards", {"seed": 7, "resume": True}, shown.append)
    assert shown == ["first", "second"]
    assert ran == [Args(tmp_path / "first", 7, True, 0.5), FewArgs(tmp_path / "second", 3)]
    assert (tmp_path / "cards" / "first.md").read_text("utf-8") == "card"
    for name in ("first", "second"):
        made_by = json.loads((tmp_path / name / "report.json").read_text("utf-8"))["origin"]
        assert made_by["command"].startswith("placewise")
        assert made_by["commit"]


def test_a_trainer_that_needs_a_log_is_left_out(tmp_path: Path) -> None:
    ran: list[Any] = []
    trainers = [replace(a_trainer("of a log", Args, ran), needs_log=True), a_trainer("other", Args, ran)]
    run_all(trainers, tmp_path, None, {}, lambda _: None)
    assert [given.out.name for given in ran] == ["other"]


def test_a_trainer_that_stops_stops_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[Any] = []
    trainers = [a_trainer("broken", Args, ran, KeyboardInterrupt()), a_trainer("after", Args, ran)]
    with pytest.raises(typer.Exit) as stopped:
        run_all(trainers, tmp_path, None, {}, lambda _: None)
    assert stopped.value.exit_code == 130
    assert not ran
    assert "--resume" in capsys.readouterr().err


def test_a_trainer_that_cannot_resume_does_not_offer_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        run_all([a_trainer("broken", FewArgs, [], KeyboardInterrupt())], tmp_path, None, {}, lambda _: None)
    assert capsys.readouterr().err.strip() == "stopped"


@pytest.mark.parametrize("name", ["reward", "policy", "ldwp"])
def test_going_on_without_a_checkpoint_is_refused_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert invoke(["train", name, "--resume", "--out", str(tmp_path)]) == 2
    problem = f"--resume finds no {name}.pt in {tmp_path}"
    printed = f"placewise: {problem}: name the --out of the earlier run, or start without --resume"
    assert capsys.readouterr().err.splitlines() == [printed]
    assert not list(tmp_path.iterdir())


def test_all_goes_on_from_the_checkpoints_and_begins_the_rest(tmp_path: Path) -> None:
    ran: list[Any] = []
    trainers = [replace(a_trainer(name, Args, ran), checkpoint="net.pt") for name in ("begun", "not begun")]
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "net.pt").touch()
    run_all(trainers, tmp_path, None, {"resume": True}, lambda _: None)
    assert [(given.out.name, given.resume) for given in ran] == [("begun", True), ("not begun", False)]


def test_every_shipped_model_has_a_trainer() -> None:
    names = {command.name for command in train_app.registered_commands}
    assert {"reward", "throughput", "stdm", ALL} <= names
