"""Moves the decision log from the store's ring to Parquet: at least once from the ring, exactly once in the files.

A batch is on the disk before the ring marks it as exported. So a process killed at any moment has lost nothing that it
acknowledged; rows written without acknowledgement are recognised by id the next time.

Each directory keeps its own position. If others have overtaken it, it continues at its own position and not at the
ring's mark; otherwise decisions would lie in one directory and their outcomes in another, never to be joined.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from placewise_log.logs import Log, LogState
from placewise_service.declog.dataset import START, Dataset

_VIEWS_BATCH = 200  # entries of some hundred kB each
DEFAULT_DANGLING_AFTER_S = 86_400.0  # longer than most jobs' silence: hosts that report progress do so within minutes


class ExportRing(Protocol):
    """The part of the state store that the export needs."""

    async def ping(self) -> float:
        """The store's clock, seconds since the epoch."""
        ...

    async def clusters(self) -> Sequence[str]: ...

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        """(position, entry) pairs after a position."""
        ...

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        """Says that everything up to `position` is durably exported."""
        ...

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        """How far a log was exported, what it lost, and the host's time."""
        ...


@dataclass(slots=True)
class ExportReport:
    """Result of one export: new rows by table, repeats left out, the joined rows by status of the days rebuilt, and the
    digest of the manifest. `problems` are lines about files that are malformed, `notes` about reports that do not fit.
    """

    written: Counter[str] = field(default_factory=Counter)
    joined: Counter[str] = field(default_factory=Counter)
    positions: dict[str, str] = field(default_factory=dict)
    manifest: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _no_progress(rows: int) -> None:
    pass


async def export(
    ring: ExportRing,
    directory: Path,
    *,
    clusters: Sequence[str] = (),
    after: str = START,
    batch: int = 5000,
    dangling_after_s: float = DEFAULT_DANGLING_AFTER_S,
    on_progress: Callable[[int], None] = _no_progress,
) -> ExportReport:
    """Exports the new entries, of all clusters unless some are named, and joins outcomes to decisions. Decisions and
    outcomes up to the position `after` are left out; views are not, as later decisions may have read them.

    Raises StateUnavailableError if the store does not answer, DatasetBusyError if another export runs, OSError if the
    disk refuses. After each of them a repeat continues at the last written batch.
    """
    report = ExportReport()
    dataset = Dataset(directory)
    with dataset.locked():
        for cluster in clusters or await ring.clusters():
            for log in Log:  # views after the decisions that read them
                await _export_log(ring, dataset, cluster, log, after, batch, report, on_progress)
        now_s = await ring.ping()
        report.joined = dataset.join_all(now_s=now_s, dangling_after_s=dangling_after_s)
        report.manifest = dataset.write_manifest(now_s)
        report.problems, report.notes = list(dataset.problems), list(dataset.problems.notes)
    return report


async def _export_log(
    ring: ExportRing,
    dataset: Dataset,
    cluster: str,
    log: Log,
    after: str,
    batch: int,
    report: ExportReport,
    on_progress: Callable[[int], None],
) -> None:
    # The ring's mark is the earlier one if the store lost its past, or an export was killed before it moved the mark.
    name = cluster if log is Log.DECISIONS else f"{cluster}\x1f{log}"  # no name of a cluster has such a character
    state = await ring.log_state(cluster, log)
    dataset.note(cluster, log, state)
    position = min(state.exported, dataset.position(name), key=_ordinal)
    if log is Log.DECISIONS:
        position = max(position, after, key=_ordinal)
    while entries := await ring.read_decisions(cluster, position, batch if log is Log.DECISIONS else _VIEWS_BATCH, log):
        report.written += dataset.write(cluster, entries)
        position = entries[-1][0]
        dataset.advance(name, position)
        await ring.mark_exported(cluster, position, log)
        on_progress(len(entries) if log is Log.DECISIONS else 0)
    if log is Log.DECISIONS:
        report.positions[cluster] = position


def _ordinal(position: str) -> tuple[int, int]:
    """Positions in their order: "milliseconds-number"."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number or 0)
