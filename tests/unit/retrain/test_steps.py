"""Steps of a retraining: done once, left if the log holds too little, done again from other data."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from placewise_training.lab.register import Trainer
from placewise_training.retrain import steps
from placewise_training.retrain.steps import Source, TrainerStep, run_step

SOURCE = Source(Path("log"), "d1", 10.0, Path("start"), "s1")


@dataclass(frozen=True)
class Args:
    out: Path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of a trainer "fits", whether each was to resume; `fails` has the error of the next call."""
    found: list[bool] = []

    def train(args: Args, show: Callable[..., None]) -> None:
        if fails:
            error = fails.pop()
            if isinstance(error, KeyboardInterrupt) and error.args:
                (args.out / "fits.pt").touch()
            raise error
        (args.out / "fits.json").write_text(json.dumps({"log": {"later": later}}), "utf-8")

    def made(source: Source, out: Path, resume: bool) -> Any:
        if out != Path():
            found.append(resume)
        return Args(out)

    trainer = Trainer("fits", "", Args, train, "fits.json", (), lambda report: (), lambda report: "")
    monkeypatch.setattr(steps, "TRAINERS", (trainer,))
    monkeypatch.setattr("placewise_training.lab.register.origin", dict)
    monkeypatch.setattr(steps, "STEPS", (TrainerStep("fits", made, ("fits.json",), can_resume=True),))
    return found


fails: list[BaseException] = []
later: dict[str, Any] = {"gain": 0.1}


def run(work: Path, source: Source = SOURCE) -> Any:
    return run_step(steps.STEPS[0], source, work, lambda *_: None)


def test_a_step_is_done_once_for_equal_data_and_again_for_other_data(calls: list[bool], tmp_path: Path) -> None:
    assert run(tmp_path).later == {"gain": 0.1}
    assert run(tmp_path).files == ("fits.json",)
    assert calls == [False]
    run(tmp_path, replace(SOURCE, digest="d2"))
    assert calls == [False, False]


def test_a_step_whose_files_are_gone_is_done_again(calls: list[bool], tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "fits" / "fits.json").unlink()
    assert run(tmp_path).later == {"gain": 0.1}
    assert len(calls) == 2


def test_a_log_that_holds_too_little_leaves_the_model_as_it_was(calls: list[bool], tmp_path: Path) -> None:
    fails.append(ValueError("the log has 3 usable rows, 20 are needed"))
    for _ in range(2):  # it is not tried again either
        found = run(tmp_path)
        assert (found.files, found.left) == ((), "the log has 3 usable rows, 20 are needed")
    assert calls == [False]


def test_a_model_that_no_placement_judges_is_left_unless_its_error_on_later_rows_fell(
    calls: list[bool], tmp_path: Path
) -> None:
    step = replace(steps.STEPS[0], needs_gain=True)
    for name, low, files in (("fell", 0.01, ("fits.json",)), ("did not", -0.01, ())):
        later.update(gain=0.1, gain_interval=[low, 0.3])
        found = run_step(step, replace(SOURCE, digest=name), tmp_path, lambda *_: None)
        assert found.files == files
        assert bool(found.left) == (low < 0)
    later.pop("gain_interval")


def test_an_interrupted_step_goes_on_where_it_was(calls: list[bool], tmp_path: Path) -> None:
    interrupted(tmp_path, "with a checkpoint")
    run(tmp_path)
    assert calls == [False, True]
    interrupted(tmp_path, "with a checkpoint", source=replace(SOURCE, start_digest="s2"))
    run(tmp_path, replace(SOURCE, digest="d3"))  # another log: not from that checkpoint
    assert calls == [False, True, False, False]


def test_a_step_that_left_no_checkpoint_begins_anew(calls: list[bool], tmp_path: Path) -> None:
    interrupted(tmp_path)
    run(tmp_path)
    assert calls == [False, False]


def test_a_step_never_goes_on_from_the_checkpoint_of_another_log(calls: list[bool], tmp_path: Path) -> None:
    interrupted(tmp_path, "with a checkpoint")
    other = replace(SOURCE, digest="d2")
    interrupted(tmp_path, source=other)  # before its own first checkpoint
    run(tmp_path, other)
    assert calls == [False, False, False]


def interrupted(work: Path, *checkpoint: str, source: Source = SOURCE) -> None:
    fails.append(KeyboardInterrupt(*checkpoint))
    with pytest.raises(KeyboardInterrupt):
        run(work, source)
