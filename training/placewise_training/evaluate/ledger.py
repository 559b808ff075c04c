"""The candidates that were judged on each stretch of a log. A file in the log's folder keeps them: the count does not
depend on the folder of the reports.

A copy of the log's folder has the record up to the copying. Later judgements of one are not known in the other.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from placewise_training.evaluate.again import CandidatePolicy

NAME: Final = "judged.jsonl"
WITH_LOG: Final = "with the log"
OUT_ALONE: Final = "in the folder of this report alone, as that of the log cannot be written"
NOWHERE: Final = "nowhere, as the folder of the log cannot be written and there is no --out"
_DESCRIPTIONS: Final = frozenset({"gate.json", "retrain.json", "manifest.sig"})


class JudgedBeforeError(ValueError):
    """The candidate was judged on this stretch already, by other settings."""


@dataclass(frozen=True, slots=True)
class Look:
    """One judgement: of what, on which stretch of time, and by which settings. `identity` is the candidate's: a
    renamed bundle keeps its own. `cluster` is "" for all of the log."""

    candidate: str
    identity: str
    first_s: float
    last_s: float
    cluster: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    time_s: float = 0.0

    def is_same_test(self, other: "Look") -> bool:
        """The same candidate on the same stretch."""
        return self._key == other._key

    def overlaps(self, other: "Look") -> bool:
        """Whether both have read the same rewards."""
        is_one_cluster = self.cluster == other.cluster or not self.cluster or not other.cluster
        return is_one_cluster and self.first_s <= other.last_s and self.last_s >= other.first_s

    @property
    def _key(self) -> tuple[str, float, float]:
        return self.identity, self.first_s, self.last_s


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of tests of the stretch, this one included; the place that keeps them; the time of the same test
    before, 0 without one."""

    tried: int
    kept: str
    before_s: float

    @property
    def facts(self) -> Mapping[str, str]:
        """For a report."""
        text = datetime.fromtimestamp(self.before_s, UTC).isoformat(timespec="seconds") if self.before_s else "no"
        return {"judgements_kept": self.kept, "judged_before": text}


def identity(candidate: str | CandidatePolicy) -> str:
    """A policy of the log by its name; a bundle by its policy and the hashes of its models."""
    if isinstance(candidate, str):
        return candidate
    files = {name: each for name, each in candidate.bundle.manifest.files.items() if name not in _DESCRIPTIONS}
    hashed = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
    return f"{candidate.policy} {hashed}"


def counted(log: Path, out: Path | None, look: Look) -> Counted:
    """Enters a judgement that is about to be made. Raises JudgedBeforeError."""
    known = _read(log / NAME)
    if out is not None:
        # Reports on several logs may share a folder: without a digest nothing tells these logs apart.
        known += [one for one in _read(out / NAME) if one.digest and one.digest == look.digest]
    same = [one for one in known if one.is_same_test(look)]
    for one in same:
        _check_settings(one, look)
    tests = {one._key for one in known if one.overlaps(look)} | {look._key}
    kept = _keep(log, out, look, known)
    return Counted(len(tests), kept, min((one.time_s for one in same), default=0.0))


def _check_settings(before: Look, now: Look) -> None:
    for name in before.settings.keys() & now.settings.keys():
        if before.settings[name] != now.settings[name]:
            when = datetime.fromtimestamp(before.time_s, UTC).isoformat(timespec="seconds")
            raise JudgedBeforeError(
                f"JUDGED_BEFORE: {before.candidate} was judged on this stretch at {when} with {name} "
                f"{before.settings[name]}, and is judged once: ask for that again, or judge on a later log"
            )


def _keep(log: Path, out: Path | None, look: Look, known: list[Look]) -> str:
    # A line of its own even behind one that an interruption cut off.
    row = "\n" + json.dumps(asdict(look) | {"time_s": time.time()}) + "\n"
    is_known = any(one.is_same_test(look) and one.settings == look.settings for one in known)
    for folder, kept in ((log, WITH_LOG), (out, OUT_ALONE)):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / NAME).open("a", encoding="utf-8") as file:
                if not is_known:
                    file.write(row)
        except OSError:
            if folder is out:
                raise
            continue
        return kept
    return NOWHERE


def _read(path: Path) -> list[Look]:
    """Lines that an interruption cut off are left out."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(Look(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found
