"""Rounds of retraining: each begins with the bundle that passed last, goes on after a stop, and is done once."""

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placewise_log.store import LogError
from placewise_training.retrain import rounds as repeating
from placewise_training.retrain.retrain import (
    BusyError,
    RetrainArgs,
    Retrained,
    RetrainError,
    WrittenMeanwhileError,
    alone,
    work_of,
)
from placewise_training.retrain.rounds import Attempt, Feed, NoRoundError, rest_s, rounds


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
        (work_of(args.out) / "reward").mkdir()
        if outcome:
            args.out.mkdir()
        return Retrained(FakeVerdict(outcome), (), args.out)  # type: ignore[arg-type]

    class Log:
        @staticmethod
        def read(where: Path) -> Any:
            return type("Read", (), {"digest": digests.pop(0)})

    outcomes.clear()
    digests[:] = [f"d{n}" for n in range(30)]
    monkeypatch.setattr(repeating, "retrain", retrain)
    monkeypatch.setattr(repeating, "LogManifest", Log)
    return found


outcomes: list[bool | BaseException] = []
digests: list[str] = []


def run(args: RetrainArgs, count: int, feed: Feed | None = None) -> list[Attempt]:
    return list(rounds(args, count, lambda: None, lambda *_: None, feed))


def work(args: RetrainArgs, number: int) -> Path:
    return args.out.with_name(f"{args.out.name}-{number:04d}.retrain")


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
    digests[:0] = ["d2"]  # as in the round before
    (found,) = run(args, 1)
    assert (found.found, found.reason) == (None, "the log is as it was")
    assert made == [("first", "new-0001"), ("first", "new-0001")]


@pytest.mark.parametrize(
    "error", [LogError("torn"), ValueError("too short"), NoRoundError("away"), WrittenMeanwhileError("written")]
)
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


class Exported:
    """A log of its own for each round; `passed` has the bundles that the gate let pass."""

    def __init__(self) -> None:
        self.count = 0
        self.passed_: list[str] = []

    def next(self, args: RetrainArgs) -> RetrainArgs:
        self.count += 1
        return replace(args, log=Path(f"export-{self.count}"), start=Path("incumbent"))

    def passed(self, args: RetrainArgs) -> str:
        self.passed_.append(args.out.name)
        return f"{args.out.name} on {args.log}"


def test_a_feed_gives_log_and_incumbent_and_hears_what_passed(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:], feed = [True, False, True], Exported()
    found = run(args, 3, feed)
    assert made == [("incumbent", "new-0001"), ("incumbent", "new-0002"), ("incumbent", "new-0003")]
    assert feed.passed_ == ["new-0001", "new-0003"]
    assert [each.note for each in found] == ["new-0001 on export-1", "", "new-0003 on export-3"]


def test_an_interrupted_round_goes_on_with_its_own_log(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:], feed = [KeyboardInterrupt(), True], Exported()
    with pytest.raises(KeyboardInterrupt):
        run(args, 1, feed)
    digests[:0] = ["d0", "d0"]  # nobody wrote to it
    (found,) = run(args, 1, feed)
    assert (found.number, str(found.args.log), feed.count) == (1, "export-1", 1)
    assert not (work(args, 1) / "begun.json").exists()


def test_a_full_disk_ends_its_round_alone(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [OSError(errno.ENOSPC, "No space left on device"), True]
    first, second = run(args, 2)
    assert (first.found, first.reason) == (None, "the disk is full: free some of it; the next round tries again")
    assert second.found is not None
    outcomes[:] = [OSError(errno.EIO, "Input/output error")]
    with pytest.raises(OSError, match="Input/output"):
        run(args, 1)


def test_what_cannot_get_better_ends_them_all(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [RetrainError("no step is called 'rewards'")]
    with pytest.raises(RetrainError):
        run(args, 2)


def test_a_round_that_ends_the_process_each_time_is_given_up(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    digests[:] = ["d0"] * 20
    for _ in range(3):
        outcomes[:] = [MemoryError()]
        with pytest.raises(MemoryError):
            run(args, 1)
    (found,) = run(args, 1)
    assert (found.found, found.reason) == (None, "given up: it was begun 3 times and never ended")
    outcomes[:], digests[:] = [True], ["d1"] * 3
    (after,) = run(args, 1)
    assert (after.number, made[-1]) == (2, ("first", "new-0002"))


def test_rounds_count_on_from_the_last_one_that_was_kept(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [True, False, True]
    run(args, 3)
    for path in (work(args, 1), work(args, 2)):  # an operator tidies up
        (path / "round.json").unlink()
        (path / "reward").rmdir() if (path / "reward").exists() else None
        (path / "lock").unlink(missing_ok=True)
        path.rmdir()
    args.out.with_name("new-0001").rmdir()
    outcomes[:] = [False]
    assert run(args, 1)[0].number == 4
    assert made[-1] == ("new-0003", "new-0004")


def test_a_bundle_in_its_place_ends_a_round_that_could_not_say_so(
    args: RetrainArgs, made: list[tuple[str, str]]
) -> None:
    """Killed between the two."""
    outcomes[:] = [True, False]
    run(args, 1)
    (work(args, 1) / "round.json").unlink()
    run(args, 1)
    assert made == [("first", "new-0001"), ("new-0001", "new-0002")]


def test_checkpoints_go_with_their_round(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    outcomes[:] = [False]
    run(args, 1)
    assert sorted(path.name for path in work(args, 1).iterdir()) == ["round.json"]


def test_a_restart_keeps_to_the_schedule(args: RetrainArgs, made: list[tuple[str, str]]) -> None:
    assert rest_s(args, 600.0) == 0.0
    outcomes[:] = [False, KeyboardInterrupt()]
    run(args, 1)
    ended_s = time.time() - 200.0
    os.utime(work(args, 1) / "round.json", (ended_s, ended_s))
    assert 350.0 < rest_s(args, 600.0) <= 400.0
    assert rest_s(args, 60.0) == 0.0
    with pytest.raises(KeyboardInterrupt):
        run(args, 1)
    assert rest_s(args, 600.0) == 0.0  # it goes on at once
