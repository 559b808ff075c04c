"""Numbers of an exported log: how much of it there is, who decided, and how much of it a training can use.

Reads a few columns, some thousands of rows at a time.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from placewise_log.coverage import Coverage, gangs_of
from placewise_log.manifest import NAME as MANIFEST
from placewise_log.manifest import LogManifest, ManifestError
from placewise_log.record import CorruptEntryError
from placewise_log.views import SNAPSHOT
from placewise_service.declog.derived import JOINED, PLACED_REWARDS, REWARDS
from placewise_service.declog.join.log import COUNTS_KEY
from placewise_service.declog.outcomes import Status
from placewise_service.declog.problems import FileProblemError, Problems
from placewise_service.declog.tables import DECISIONS, OUTCOMES, UNREADABLE, VIEWS

_BATCH: Final = 8192
_HELD: Final = frozenset({Status.OBSERVED, Status.OPEN, Status.DANGLING})


_VIEW_COLUMNS: Final = ("cluster", "epoch", "view", "view_version")


@dataclass(slots=True)
class PolicyStats:
    """Held rows of jobs that one policy, or an explorer beside it, placed or admitted.

    `with_support` have P(a) < 1: another placement was possible. `largest_weight` is the largest 1/P(a), `ess` the
    effective sample size of these weights, (Σw)² / Σw².
    """

    rows: int = 0
    explored: int = 0
    with_support: int = 0
    largest_weight: float = 0.0
    weights: float = 0.0
    squares: float = 0.0
    explorers: Counter[str] = field(default_factory=Counter)

    def add(self, propensity: float | None, explorer: str | None, *, is_explored: bool) -> None:
        """Counts one row."""
        self.rows += 1
        self.explored += is_explored
        if explorer:
            self.explorers[explorer] += 1
        if propensity is not None:
            self.with_support += propensity < 1.0
            weight = 1.0 / propensity
            self.largest_weight = max(self.largest_weight, weight)
            self.weights += weight
            self.squares += weight * weight

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": self.rows,
            "explored": self.explored,
            "explorers": dict(self.explorers),
            "with_support": self.with_support,
            "largest_weight": self.largest_weight,
            "ess": self.weights**2 / self.squares if self.squares else 0.0,
        }


@dataclass(slots=True)
class LogStats:
    """Everything that `placewise log stats` prints. `shadows` are in no other count but that of rows by status;
    `covered` counts held rows that have each of some labels; `views` decisions by whether the log has the snapshot,
    the events and the gangs that their view is rebuilt from; `dropped` by cluster and log the entries that were lost
    before any export had them."""

    decisions: Counter[str] = field(default_factory=Counter)
    shadows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    policies: dict[str, PolicyStats] = field(default_factory=dict)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    covered: Counter[str] = field(default_factory=Counter)
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held: int = 0
    unreadable: int = 0
    orphans: int = 0
    repeated: int = 0
    refusals_left_out: int = 0
    without_alternatives: int = 0
    views: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "decisions": dict(self.decisions),
            "shadows": self.shadows,
            "outcomes": dict(self.outcomes),
            "policies": {name: policy.summary() for name, policy in sorted(self.policies.items())},
            "statuses": {rpc: dict(counts) for rpc, counts in sorted(self.statuses.items())},
            "held": self.held,
            "covered": dict(self.covered),
            "dropped": {cluster: dict(logs) for cluster, logs in sorted(self.dropped.items())},
            "unreadable": self.unreadable,
            "orphans": self.orphans,
            "repeated": self.repeated,
            "refusals_left_out": self.refusals_left_out,
            "without_alternatives": self.without_alternatives,
            "views": dict(self.views),
        }


def stats_of(directory: Path, problems: Problems) -> LogStats:
    """The numbers of one directory. Files that cannot be read are problems, and left out."""
    stats = LogStats()
    logged = Coverage(_rows(directory, VIEWS, ("kind", "cluster", "name", "first_version", "last_version"), problems))
    columns = ("rpc", "outcome", "shadow_of", "first_refusal", "refusals_left_out", "alternatives", "view_assumed")
    lost = _lost_gangs(directory)
    for rpc, outcome, shadow_of, first, left_out, alternatives, assumed, *read in _rows(
        directory, DECISIONS, (*columns, *_VIEW_COLUMNS), problems
    ):
        if shadow_of is not None:
            stats.shadows += 1
            continue
        if first is not None:  # another replica wrote it first
            stats.refusals_left_out += 1 + (left_out or 0)
            continue
        is_whole = read[-1] is not None and logged.has(*read) and lost.isdisjoint(assumed or ())
        stats.views["not logged" if read[-1] is None else "complete" if is_whole else "dropped"] += 1
        stats.decisions[f"{rpc} {outcome}"] += 1
        stats.refusals_left_out += left_out or 0
        stats.without_alternatives += rpc == "Place" and alternatives is None
    for (kind,) in _rows(directory, OUTCOMES, ("kind",), problems):
        stats.outcomes[kind] += 1
    if (directory / MANIFEST).exists():
        try:
            stats.dropped = LogManifest.read(directory).dropped
        except ManifestError as error:
            problems.add(error)
    stats.unreadable = sum(1 for _ in _rows(directory, UNREADABLE, ("id",), problems))
    _add_joined(stats, directory, problems)
    return stats


def _lost_gangs(directory: Path) -> set[str]:
    """Gangs on the view of some decision, by reservation, which no entry of the views names.

    Reads the entries only if decisions were made beside gangs in flight. One that cannot be decoded names none.
    """
    lost: set[str] = set()
    for (assumed,) in _rows(directory, DECISIONS, ("view_assumed",), Problems()):
        lost.update(assumed or ())
    for kind, record in _rows(directory, VIEWS, ("kind", "record"), Problems()) if lost else ():
        if kind != SNAPSHOT:
            with contextlib.suppress(CorruptEntryError):
                lost.difference_update(gangs_of(record))
    return lost


_LABELS: Final = ("start_time_s", "end_time_s", "speed_epochs_per_s", *REWARDS, *PLACED_REWARDS)
_JOINED_COLUMNS: Final = ("rpc", "policy", "status", "propensity", "explorer", "is_explored", *_LABELS)


def _add_joined(stats: LogStats, directory: Path, problems: Problems) -> None:
    for rpc, policy, status, propensity, explorer, is_explored, *labels in _rows(
        directory, JOINED, _JOINED_COLUMNS, problems
    ):
        stats.statuses.setdefault(rpc, Counter())[status] += 1
        if status in _HELD:
            of = stats.policies.setdefault(f"{rpc} {policy}", PolicyStats())
            of.add(propensity, explorer, is_explored=is_explored)
            stats.held += 1
            for name, label in zip(_LABELS, labels, strict=True):
                stats.covered[name] += label is not None
    for path in sorted((directory / JOINED).glob("date=*/*.parquet")):
        try:
            counts = (pq.read_metadata(path).metadata or {}).get(COUNTS_KEY.encode(), b"0 0").split()
        except (pa.ArrowException, OSError):
            continue  # named above
        stats.orphans, stats.repeated = stats.orphans + int(counts[0]), stats.repeated + int(counts[1])


def _rows(directory: Path, table: str, columns: Sequence[str], problems: Problems) -> Iterator[tuple[Any, ...]]:
    for path in sorted((directory / table).glob("date=*/*.parquet")):
        try:
            with pq.ParquetFile(path) as file:
                if not set(columns) <= set(file.schema_arrow.names):
                    raise FileProblemError(path, "lacks columns: run `placewise log migrate` or `log export` first")
                for batch in file.iter_batches(_BATCH, columns=list(columns)):
                    yield from zip(*(batch[name].to_pylist() for name in columns), strict=True)
        except FileProblemError as error:
            problems.add(error)
        except (pa.ArrowException, OSError) as error:
            problems.add(FileProblemError(path, f"not a whole Parquet file: {str(error).splitlines()[0]}"))
