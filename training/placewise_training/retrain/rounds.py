"""Retrains again and again, each time from the bundle that the gate let pass last. Trains and judges nothing itself.

Round n makes OUT-n. A round that was interrupted goes on, one that was refused is not done again, and while the log is
as it was in the last round there is none.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from placewise_log.manifest import LogManifest, ManifestError
from placewise_log.store import LogError
from placewise_training.lab.register import Show
from placewise_training.retrain.retrain import RetrainArgs, Retrained, alone, retrain, work_of

_ENDED: Final = "round.json"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One round: its number, and what became of it; None if there was none, and why."""

    number: int
    found: Retrained | None
    reason: str = ""


def rounds(args: RetrainArgs, count: int, wait: Callable[[], None], show: Show) -> Iterator[Attempt]:
    """`count` rounds, 0 for no end, with `wait` between two. A log that cannot be read or holds too little yet ends its
    round alone. Raises BusyError while another process does the rounds of `args.out`, and otherwise as retrain()."""
    with alone(work_of(args.out)):
        done = 0
        while True:
            yield _round(args, show)
            done += 1
            if done == count:
                return
            wait()


def _round(args: RetrainArgs, show: Show) -> Attempt:
    number, start, last = standing(args)
    this = replace(args, start=start, out=numbered(args.out, number))
    try:
        digest = LogManifest.read(args.log).digest
        if digest == last:
            return Attempt(number, None, "the log is as it was")
        found = retrain(this, show)
    except (LogError, ManifestError, ValueError) as error:
        return Attempt(number, None, str(error))
    text = json.dumps({"log": digest, "promoted": found.is_promoted})
    (work_of(this.out) / _ENDED).write_text(text + "\n", "utf-8")
    return Attempt(number, found)


def standing(args: RetrainArgs) -> tuple[int, Path, str]:
    """The number of the next round, the bundle that it begins with, and the digest of the log of the last, "" for
    none."""
    number, start, digest = 1, args.start, ""
    while (ended := work_of(numbered(args.out, number)) / _ENDED).is_file():
        ended_as = json.loads(ended.read_text("utf-8"))
        digest = ended_as["log"]
        start = numbered(args.out, number) if ended_as["promoted"] else start
        number += 1
    return number, start, digest


def numbered(out: Path, number: int) -> Path:
    """The bundle of a round."""
    return out.with_name(f"{out.name}-{number:04d}")
