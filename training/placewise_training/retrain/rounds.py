"""Retrains again and again. Trains and judges nothing itself.

Round n makes OUT-n. A round that was interrupted goes on with its log, one that was refused is not done again, and
while the log is as it was in the last round there is none.
"""

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from placewise_log.manifest import LogManifest, ManifestError
from placewise_log.store import LogError
from placewise_training.evaluate.evaluation import NeverAskedError
from placewise_training.lab.register import Show
from placewise_training.retrain.retrain import (
    DISK_FULL,
    RetrainArgs,
    Retrained,
    WrittenMeanwhileError,
    alone,
    is_disk_full,
    retrain,
    work_of,
)
from placewise_training.retrain.steps import STEPS

_BEGUN: Final = "begun.json"
_ENDED: Final = "round.json"
_MOST_BEGINS: Final = 3  # an error that ends the process each time would otherwise keep a machine busy for ever


class NoRoundError(Exception):
    """There is nothing to learn from this time; the message gives the reason."""


class Feed(Protocol):
    """Source of the log and of the first bundle of each round."""

    def next(self, args: RetrainArgs) -> RetrainArgs:
        """The same with the log and the start of this round. `args.start` is the bundle that passed last. Raises
        NoRoundError, LogError, OSError for a full disk."""
        ...

    def passed(self, args: RetrainArgs) -> str:
        """Takes over `args.out`, which the gate let pass. Returns a line for the user, or ""."""
        ...


@dataclass(frozen=True, slots=True)
class GrowingLog:
    """A log that an export of somebody else keeps writing to."""

    def next(self, args: RetrainArgs) -> RetrainArgs:
        return args

    def passed(self, args: RetrainArgs) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One round: its number, arguments and result. Without a result, `reason` says why. `note` is the feed's line on a
    bundle that passed."""

    number: int
    args: RetrainArgs
    found: Retrained | None
    reason: str = ""
    note: str = ""


def rounds(
    args: RetrainArgs, count: int, wait: Callable[[], None], show: Show, feed: Feed | None = None
) -> Iterator[Attempt]:
    """`count` rounds, 0 for no end, with `wait` between two. A log that cannot be read or holds too little yet, and a
    full disk, end their round alone. Raises BusyError while another process does the rounds of `args.out`, and
    otherwise as retrain()."""
    with alone(work_of(args.out)):
        done = 0
        while True:
            yield _round(args, show, feed or GrowingLog())
            done += 1
            if done == count:
                return
            wait()


def rest_s(args: RetrainArgs, every_s: float) -> float:
    """Seconds until the next round is due: 0 unless one ended less than `every_s` ago and no other was begun."""
    number = standing(args).number
    ended = work_of(numbered(args.out, number - 1)) / _ENDED
    if number == 1 or not ended.is_file() or (work_of(numbered(args.out, number)) / _BEGUN).is_file():
        return 0.0
    return max(0.0, ended.stat().st_mtime + every_s - time.time())


def _round(args: RetrainArgs, show: Show, feed: Feed) -> Attempt:
    last = standing(args)
    this = replace(args, start=last.passed, out=numbered(args.out, last.number))
    begun = work_of(this.out) / _BEGUN
    try:
        this, begins = _again(this) or (feed.next(this), 0)
        digest = LogManifest.read(this.log).digest
        if digest == last.log:
            return Attempt(last.number, this, None, "the log is as it was")
        if begins == _MOST_BEGINS:
            _end(this, {"log": digest, "promoted": False})
            return Attempt(last.number, this, None, f"given up: it was begun {begins} times and never ended")
        _write(begun, {"log": str(this.log), "start": str(this.start), "digest": digest, "begins": begins + 1})
        found = retrain(this, show)
    except (NoRoundError, LogError, ManifestError, NeverAskedError, WrittenMeanwhileError, ValueError) as error:
        begun.unlink(missing_ok=True)
        return Attempt(last.number, this, None, str(error))
    except (OSError, RuntimeError, sqlite3.Error) as error:
        if not is_disk_full(error, args.out.parent):
            raise
        return Attempt(last.number, this, None, f"{DISK_FULL}; the next round tries again")
    note = feed.passed(this) if found.is_promoted else ""
    _end(this, {"log": digest, "promoted": found.is_promoted})
    return Attempt(last.number, this, found, note=note)


def _again(args: RetrainArgs) -> tuple[RetrainArgs, int] | None:
    """The round that was begun and not ended, with its own log, and how often it was begun; None if there is none, or
    if its log has changed since."""
    begun = _read(work_of(args.out) / _BEGUN)
    if begun is None:
        return None
    this = replace(args, log=Path(begun["log"]), start=Path(begun["start"]))
    try:
        is_same = LogManifest.read(this.log).digest == begun["digest"]
    except ManifestError:
        return None
    return (this, begun["begins"]) if is_same else None


def _end(args: RetrainArgs, outcome: dict[str, Any]) -> None:
    """Keeps candidate, reports and the verdict. Nothing goes on from the checkpoints any more."""
    work = work_of(args.out)
    _write(work / _ENDED, outcome)
    (work / _BEGUN).unlink(missing_ok=True)
    for step in STEPS:
        shutil.rmtree(work / step.name, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Standing:
    """The number of the next round, the bundle that passed last, and the digest of the log of the last round, "" for
    none."""

    number: int
    passed: Path
    log: str


def standing(args: RetrainArgs) -> Standing:
    """Counts on from the highest number, so that the folders of earlier rounds may be deleted."""
    numbers = [_number(args.out, path) for path in args.out.parent.glob(f"{args.out.name}-*")]
    number, passed, log = 1, args.start, ""
    for each in sorted(set(numbers) - {0}):
        bundle = numbered(args.out, each)
        ended = _read(work_of(bundle) / _ENDED)
        number = each if ended is None and not bundle.is_dir() else each + 1  # one that was begun goes on
        log = ended["log"] if ended is not None else log
        passed = bundle if bundle.is_dir() else passed
    return Standing(number, passed, log)


def numbered(out: Path, number: int) -> Path:
    """The bundle of a round."""
    return out.with_name(f"{out.name}-{number:04d}")


def _number(out: Path, path: Path) -> int:
    """Of a round's bundle or folder of work; 0 for anything else."""
    match = re.fullmatch(rf"{re.escape(out.name)}-(\d{{4,}})(\.retrain)?", path.name)
    return int(match[1]) if match else 0


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content) + "\n", "utf-8")
    part.replace(path)
