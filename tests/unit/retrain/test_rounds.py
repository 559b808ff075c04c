"""Rounds of retraining: each begins with the bundle that passed last, goes on after a stop, and is done once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewise_log.store import LogError
from placewise_training.retrain import rounds as repeating
from placewise_training.retrain.retrain import BusyError, RetrainArgs, Retrained, alone, work_of
from placewise_training.retrain.rounds import Attempt, rounds


class FakeVerdict:
    def __init__(self, is_promoted: bool) -> None:
        self.is_promoted = is_promoted


@pytest.fixture
def args(tmp_path: Path) -> RetrainArgs:
    return RetrainArgs(tmp_path / "log", tmp_path / "first", tmp_path / "new")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(start, out) of each retraining; `outcomes` has what becomes of the next ones."""
    found: list[tuple[str, str]] = []

    def retrain(args: RetrainArgs, show: Callable[..., None]) -> Retrained:
        found.append((args.start.name, args.out.name))
        work_of(args.out).mkdir(exist_ok=True)
        outcome = outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Retrained(FakeVerdict(outcome), (), args.out)  # type: ignore[arg-type]

    class Log:
        @staticmethod
        def read(where: Path) -> Any:
            return type("Read", (), {"digest": digests.pop(0)})

    outcomes.clear()
    digests[:] = [f"d{n}" for n in range(20)]
    monkeypatch.setattr(repeating, "retrain", retrain)
    monkeypatch.setattr(repeating, "LogManifest", Log)
    return found


outcomes: list[bool | BaseException] = []
digests: list[str] = []


def run(args: RetrainArgs, count: int) -> list[Attempt]:
    return list(rounds(args, count, lambda: None, lambda *_: None))


def test_a_round_begins_with_the_bundle_that_passed_last(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [False, True, False, True]
    assert [each.number for each in run(args, 3)] == [1, 2, 3]
    run(args, 1)  # another process, later
    assert made == [
        ("first", "new-0001"), ("first", "new-0002"), ("new-0002", "new-0003"), ("new-0002", "new-0004"),
    ]  # fmt: skip
    assert json.loads((args.out.with_name("new-0002.retrain") / "round.json").read_text())["promoted"]


def test_a_stopped_round_goes_on_and_an_equal_log_gives_none(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [KeyboardInterrupt(), True]
    with pytest.raises(KeyboardInterrupt):
        run(args, 1)
    run(args, 1)
    digests[:0] = ["d1"]  # as in the round before
    (found,) = run(args, 1)
    assert (found.found, found.reason) == (None, "the log is as it was")
    assert made == [("first", "new-0001"), ("first", "new-0001")]


@pytest.mark.parametrize("error", [LogError("torn"), ValueError("too short")])
def test_a_log_that_cannot_be_read_ends_its_round_alone(
    args: RetrainArgs, made: list[tuple[str, str]], error: BaseException
) -> None:
    outcomes[:] = [error, True]
    first, second = run(args, 2)
    assert (first.found, first.reason) == (None, str(error))
    assert second.found is not None
    assert made == [("first", "new-0001"), ("first", "new-0001")]


def test_two_at_once_are_refused(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    with alone(work_of(args.out)), pytest.raises(BusyError, match="another retraining writes"):
        run(args, 1)
    assert made == []
