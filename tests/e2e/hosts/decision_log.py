"""Gangs that were submitted to a scheduler: the nodes of its own records, joined with the decision log."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyarrow import parquet

_ENDS = ("FINISHED", "FAILED", "CANCELLED")
PLACEWISE = str(Path(sys.executable).parent / "placewise")
Places = Counter[str]
"""Tasks by node."""


@dataclass
class Account:
    """Every gang stands in one of the lists. `unwritten`: the decision died with a service that was killed."""

    as_decided: int = 0
    elsewhere: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    never_decided: list[str] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        apart = (self.elsewhere, self.released, self.never_decided, self.unwritten)
        return self.as_decided + sum(map(len, apart))

    def __str__(self) -> str:
        return (
            f"{self.as_decided} of {self.total} as decided, {len(self.elsewhere)} elsewhere, "
            f"{len(self.released)} released, {len(self.never_decided)} never decided, "
            f"{len(self.unwritten)} with a decision that was not written out"
        )


@dataclass(frozen=True)
class GangRun:
    """One gang that ran by a decision. `gpus` as "node/index", times in seconds by the host's clock."""

    job: str
    decision: str
    gpus: frozenset[str]
    start_s: float
    end_s: float = math.inf

    def overlaps(self, later: GangRun) -> bool:
        """Whether the later run began before this one ended. Slurm tells whole seconds, rounded down."""
        is_whole = later.start_s.is_integer() and self.end_s < math.inf
        return later.start_s < (math.floor(self.end_s) if is_whole else self.end_s)


@dataclass(frozen=True)
class DecisionLog:
    """`places` by decision and job, `starts` (decision, reason) by job, `dry` the last place of a dry run by job."""

    places: Mapping[tuple[str, str], Places]
    starts: Mapping[str, tuple[str, str]]
    dry: Mapping[str, Places]
    runs: Sequence[GangRun] = ()

    def doubled(self, ended_s: Mapping[str, float] = MappingProxyType({})) -> list[str]:
        """GPUs that were given to a gang while another ran on them, and gangs that started by two decisions.

        `ended_s`: when gangs ended by the host's records, for ends that died with a service that was killed.
        """
        decisions = Counter(run.job for run in self.runs)
        found = [f"{job} by {count} decisions" for job, count in decisions.items() if count > 1]
        by_gpu: dict[str, list[GangRun]] = {}
        ended = [
            run if run.end_s < math.inf else replace(run, end_s=ended_s.get(run.job, math.inf)) for run in self.runs
        ]
        for run in sorted(ended, key=lambda run: (run.start_s, run.end_s)):
            for gpu in run.gpus:
                by_gpu.setdefault(gpu, []).append(run)
        for gpu, runs in by_gpu.items():
            met = [(one.job, other.job) for one, other in pairwise(runs) if one.overlaps(other)]
            found += [f"{gpu} by {one} and {other}" for one, other in met]
        return found

    def account(self, ran: Mapping[str, Places]) -> Account:
        """`ran`: every gang that was submitted, with the tasks that it had on each node."""
        found = Account()
        for job, places in ran.items():
            decision, reason = self.starts.get(job, ("", ""))
            decided = self.places.get((decision, job))
            if reason.startswith("left to the host"):  # also if a decision came after that
                found.released.append(job)
            elif not decision:
                found.never_decided.append(job)
            elif decided is None:
                found.unwritten.append(job)
            elif decided == places:
                found.as_decided += 1
            else:
                found.elsewhere.append(f"{job}: {dict(places)} for {dict(decided)}")
        return found

    def agreed_dry(self, ran: Mapping[str, Places]) -> int:
        """Gangs of a dry run that ran on the nodes of their decision."""
        return sum(self.dry.get(job) == places for job, places in ran.items())


def read_log(folder: Path, cluster: str, environment: Mapping[str, str]) -> DecisionLog:
    """The log of a service with this environment, as `placewise log export` writes it below `folder`."""
    export(folder, cluster, environment)
    places, gpus, dry = {}, {}, {}
    for row in rows(folder, "decisions", "id", "time", "is_dry_run", "job_ids", "job_nodes", "job_planned"):
        for job, nodes, planned in zip(row["job_ids"], row["job_nodes"] or (), row["job_planned"] or (), strict=False):
            if nodes and row["is_dry_run"]:
                dry[job] = Places(nodes)
            elif nodes:
                places[row["id"], job] = Places(nodes)
                gpus[row["id"], job] = frozenset(gpu for gpu in planned if "/" in gpu)
    outcomes = list(rows(folder, "outcomes", "job_id", "time", "kind", "decision_id", "reason"))
    started = [row for row in outcomes if row["kind"].upper() == "STARTED"]
    starts = {row["job_id"]: (row["decision_id"] or "", row["reason"] or "") for row in started}
    return DecisionLog(places, starts, dry, list(_runs(outcomes, gpus)))


def _runs(outcomes: Sequence[Mapping[str, Any]], gpus: Mapping[tuple[str, str], frozenset[str]]) -> Iterator[GangRun]:
    """`outcomes` by time. A decision that was not written out has no GPUs. A start with a reason was the host's own."""
    first: dict[tuple[str, str, str], float] = {}
    for row in outcomes:
        if row["kind"].upper() == "STARTED" and row["reason"]:
            continue
        first.setdefault((row["decision_id"] or "", row["job_id"], row["kind"].upper()), row["time"].timestamp())
    for (decision, job, kind), start_s in first.items():
        if decision and kind == "STARTED":
            ends = [first.get((decision, job, end), math.inf) for end in _ENDS]
            yield GangRun(job, decision, gpus.get((decision, job), frozenset()), start_s, min(ends))


def export(folder: Path, cluster: str, environment: Mapping[str, str]) -> None:
    """Writes the log of a cluster. Raises CalledProcessError."""
    command = [PLACEWISE, "log", "export", str(folder), "--cluster", cluster]
    subprocess.run(command, env=dict(environment), cwd=folder.parent, check=True, capture_output=True, timeout=120)


def rows(folder: Path, table: str, *columns: str) -> Iterator[dict[str, Any]]:
    """Rows of an exported table, by time if that is among the columns."""
    paths = [path for path in folder.rglob("*.parquet") if table in path.relative_to(folder).parts]
    found = [row for path in paths for row in parquet.read_table(path, columns=list(columns)).to_pylist()]
    yield from sorted(found, key=lambda row: row["time"]) if "time" in columns else found
