"""The exported log on disk: Parquet files partitioned by day. Never reads a store.

    DIR/decisions/date=2026-01-31/<cluster>-<first>-<last>.parquet   one row per decision
    DIR/outcomes/date=2026-01-31/…                                   what hosts reported, under the decision's day
    DIR/unreadable/date=2026-01-31/…                                 entries this version cannot decode, as they were
    DIR/joined/date=2026-01-31/joined.parquet                        one row per job, derived from the first two
    DIR/runs/date=2026-01-31/runs.parquet                            one row per job that ran, derived like it
    DIR/progress/date=2026-01-31/progress.parquet                    one row per report of progress, derived like it
    DIR/positions.json                                               up to where each cluster's log is in here
    DIR/manifest.json                                                files, hashes and positions of the last export

A file is written beside its place, flushed to the disk, and renamed: a reader, or a crash, sees all of it or nothing.
One process writes at a time (a lock on DIR).
"""

import datetime
import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from placewise_log.logs import Log, LogState
from placewise_log.manifest import NAME as MANIFEST
from placewise_log.manifest import LogManifest, ManifestError
from placewise_service.declog.files import durable_writer, write_durably
from placewise_service.declog.join.clock import LogClock
from placewise_service.declog.join.log import LogJoin
from placewise_service.declog.problems import FileProblemError, Problems
from placewise_service.declog.seen import SeenIds
from placewise_service.declog.tables import SCHEMAS, row_of

START: Final = "0"  # the position before the first entry of any ring
_POSITIONS = "positions.json"


class DatasetBusyError(RuntimeError):
    """Another process is writing to this directory."""


class Dataset:
    """Writes batches of log entries, each id once, and the joined table."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.problems = Problems()
        self._seen: dict[Path, SeenIds] = {}
        self._states: dict[str, dict[Log, LogState]] = {}
        self._before: LogManifest | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for this process. Raises DatasetBusyError if another holds it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatasetBusyError(f"another export is writing to {self.directory}: wait until it ends") from None
            self._remove_leftovers()
            try:
                yield
            finally:
                for seen in self._seen.values():
                    seen.close()
                self._seen.clear()

    def write(self, cluster: str, entries: Sequence[tuple[str, bytes]]) -> Counter[str]:
        """Writes (position, bytes) pairs durably; how many rows were new, by table, and how many were "repeated"."""
        parts: dict[tuple[str, datetime.date], list[dict[str, Any]]] = {}
        for position, data in entries:
            table, day, row = row_of(cluster, position, data)
            parts.setdefault((table, day), []).append(row)
        counts: Counter[str] = Counter()
        name = f"{quote(cluster, safe='')}-{entries[0][0]}-{entries[-1][0]}.parquet" if entries else ""
        for (table, day), rows in parts.items():
            partition = self._partition(table, day)
            with SeenIds.of(self._seen, partition).fresh(rows, name) as fresh:
                if fresh:
                    with durable_writer(partition / name, SCHEMAS[table]) as writer:
                        writer.write_table(pa.Table.from_pylist(fresh, schema=SCHEMAS[table]))
            counts[table] += len(fresh)
            counts["repeated"] += len(rows) - len(fresh)
        return counts

    def position(self, cluster: str) -> str:
        """Position in the cluster's log up to which this directory has its entries; START if unknown."""
        return self._positions().get(cluster, START)

    def advance(self, cluster: str, position: str) -> None:
        """Notes durably that everything up to `position` was written."""
        path = self.directory / _POSITIONS
        write_durably(path, json.dumps({**self._positions(), cluster: position}))

    def note(self, cluster: str, log: Log, state: LogState) -> None:
        """Keeps the state of a cluster's log for the join and the manifest."""
        self._states.setdefault(cluster, {})[log] = state

    def _positions(self) -> dict[str, str]:
        """Empty for a directory of an earlier version, and if the file is malformed: the log is read again, without
        repeats."""
        path = self.directory / _POSITIONS
        try:
            return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}
        except (ValueError, TypeError):
            self.problems.add(FileProblemError(path, "malformed, written again: all that the store has is read again"))
            path.unlink()
            return {}

    def join_all(self, *, now_s: float, dangling_after_s: float) -> Counter[str]:
        """Rebuilds the derived tables of every day that needs it; the counts of LogJoin.run. `now_s` is the store's
        time, that of clusters whose host sets none."""
        clock = LogClock(now_s, self._host_times_s(self._manifest()))
        return LogJoin(self.directory, self.problems).run(clock, dangling_after_s=dangling_after_s)

    def write_manifest(self, made_time_s: float) -> str:
        """Writes the manifest of what there is now; its digest."""
        before = self._manifest()
        dropped = {cluster: {log.value: of[log].dropped for log in of} for cluster, of in self._states.items()}
        manifest = LogManifest.of(
            self.directory,
            self._positions(),
            made_time_s,
            before,
            dropped={**before.dropped, **dropped},
            host_times_s=self._host_times_s(before),
        )
        write_durably(self.directory / MANIFEST, manifest.text())
        return manifest.digest

    def _manifest(self) -> LogManifest:
        """The last one; an empty one if there is none, or one that cannot be read."""
        if self._before is None:
            try:
                self._before = LogManifest.read(self.directory)
            except ManifestError as error:
                self._before = LogManifest()
                if (self.directory / MANIFEST).exists():
                    self.problems.add(error)
        return self._before

    def _host_times_s(self, before: LogManifest) -> dict[str, float]:
        """Of clusters whose host sets the time: now, or at the last export if this one does not read their log."""
        known = {cluster: time_s for cluster, time_s in before.host_times_s.items() if cluster not in self._states}
        given = {cluster: of[Log.DECISIONS].host_time_s for cluster, of in self._states.items()}
        return known | {cluster: time_s for cluster, time_s in given.items() if time_s is not None}

    def _partition(self, table: str, day: datetime.date) -> Path:
        return self.directory / table / f"date={day.isoformat()}"

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob("*/date=*/.*.tmp"):
            path.unlink()
