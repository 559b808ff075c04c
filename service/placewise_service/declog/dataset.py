"""The exported log on disk: Parquet files partitioned by day. Never reads a store.

    DIR/decisions/date=2026-01-31/<cluster>-<first>-<last>.parquet   one row per decision
    DIR/outcomes/date=2026-01-31/…                                   what hosts reported, under the decision's day
    DIR/unreadable/date=2026-01-31/…                                 entries this version cannot decode, as they were
    DIR/joined/date=2026-01-31/joined.parquet                        one row per job, derived from the first two
    DIR/positions.json                                               up to where each cluster's log is in here

A file is written beside its place, flushed to the disk, and renamed: a reader, or a crash, sees all of it or nothing.
One process writes at a time (a lock on DIR).
"""

import datetime
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from placewise_log.record import DecisionRecord, Entry, OutcomeRecord, decode_entry
from placewise_service.declog.outcomes import Fates, Row, Status, count_statuses, join, repeats
from placewise_service.declog.tables import DECISIONS, JOINED_SCHEMA, OUTCOMES, SCHEMAS, row_of

START: Final = "0"  # the position before the first entry of any ring
_JOINED = "joined"
_POSITIONS = "positions.json"
_INPUTS_KEY = b"placewise.inputs"
_OPEN_KEY = b"placewise.open"
_ROWS_AT_ONCE = 4096


class DatasetBusyError(RuntimeError):
    """Another process is writing to this directory."""


class Dataset:
    """Writes batches of log entries, each id once, and the joined table."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._seen: dict[Path, set[str]] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the directory for this process. Raises DatasetBusyError if another holds it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatasetBusyError(f"another export is writing to {self.directory}: wait until it ends") from None
            self._seen.clear()
            self._remove_leftovers()
            yield

    def write(self, cluster: str, entries: Sequence[tuple[str, bytes]]) -> Counter[str]:
        """Writes (position, bytes) pairs durably; how many rows were new, by table, and how many were "repeated"."""
        parts: dict[tuple[str, datetime.date], list[dict[str, Any]]] = {}
        for position, data in entries:
            table, day, row = row_of(cluster, position, data)
            parts.setdefault((table, day), []).append(row)
        counts: Counter[str] = Counter()
        name = f"{quote(cluster, safe='')}-{entries[0][0]}-{entries[-1][0]}.parquet" if entries else ""
        for (table, day), rows in parts.items():
            fresh = self._unseen(self._partition(table, day), rows)
            counts[table] += len(fresh)
            counts["repeated"] += len(rows) - len(fresh)
            if fresh:
                rows_table = pa.Table.from_pylist(fresh, schema=SCHEMAS[table])
                write_durably(self._partition(table, day) / name, [rows_table], SCHEMAS[table])
                self._seen[self._partition(table, day)].update(row["id"] for row in fresh)
        return counts

    def position(self, cluster: str) -> str:
        """Position in the cluster's log up to which this directory has its entries; START if unknown."""
        return self._positions().get(cluster, START)

    def advance(self, cluster: str, position: str) -> None:
        """Notes durably that everything up to `position` was written."""
        path = self.directory / _POSITIONS
        temporary = path.with_name(f".{_POSITIONS}.tmp")
        with temporary.open("w") as file:
            json.dump({**self._positions(), cluster: position}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(self.directory)

    def _positions(self) -> dict[str, str]:
        """Empty for a directory of an earlier version: its log is read again, without repeats."""
        path = self.directory / _POSITIONS
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def join_all(self, *, now_s: float, dangling_after_s: float) -> Counter[str]:
        """Rebuilds the joined table of every day that changed or has open rows; rows by status over those days."""
        counts: Counter[str] = Counter()
        for partition in sorted((self.directory / DECISIONS).glob("date=*")):
            counts += self._join_day(partition.name, now_s, dangling_after_s)
        return counts

    def _join_day(self, day: str, now_s: float, dangling_after_s: float) -> Counter[str]:
        target = self.directory / _JOINED / day / "joined.parquet"
        inputs = self._inputs_digest(day)
        metadata = pq.read_schema(target).metadata if target.exists() else {}
        if metadata.get(_INPUTS_KEY) == inputs and metadata.get(_OPEN_KEY) == b"0":
            return Counter()
        fates = Fates(repeats(self._decisions(day)))
        for entry in self._entries(OUTCOMES, day):
            assert isinstance(entry, OutcomeRecord)
            fates.add(entry)
        rows = list(join(self._decisions(day), fates, now_s=now_s, dangling_after_s=dangling_after_s))
        counts = count_statuses(rows)
        schema = JOINED_SCHEMA.with_metadata({_INPUTS_KEY: inputs, _OPEN_KEY: str(counts[Status.OPEN]).encode()})
        chunks = (rows[i : i + _ROWS_AT_ONCE] for i in range(0, len(rows), _ROWS_AT_ONCE))
        write_durably(target, (_joined_table(chunk, schema) for chunk in chunks), schema)
        return counts

    def _decisions(self, day: str) -> Iterator[DecisionRecord]:
        return (entry for entry in self._entries(DECISIONS, day) if isinstance(entry, DecisionRecord))

    def _entries(self, table: str, day: str) -> Iterator[Entry]:
        for path in sorted((self.directory / table / day).glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(_ROWS_AT_ONCE, columns=["record"]):
                yield from (decode_entry(data.as_py()) for data in batch.column(0))

    def _inputs_digest(self, day: str) -> bytes:
        names = sorted(
            str(path.relative_to(self.directory))
            for path in chain.from_iterable((self.directory / t / day).glob("*.parquet") for t in (DECISIONS, OUTCOMES))
        )
        return hashlib.sha256("\n".join(names).encode()).hexdigest().encode()

    def _unseen(self, partition: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows whose id is not in the partition yet, each once."""
        if partition not in self._seen:
            files = partition.glob("*.parquet")
            ids = (pq.read_table(path, columns=["id"]).column("id").to_pylist() for path in files)
            self._seen[partition] = set(chain.from_iterable(ids))
        fresh = {row["id"]: row for row in reversed(rows) if row["id"] not in self._seen[partition]}
        return list(reversed(fresh.values()))

    def _partition(self, table: str, day: datetime.date) -> Path:
        return self.directory / table / f"date={day.isoformat()}"

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob("*/date=*/.*.tmp"):
            path.unlink()


def write_durably(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Writes a Parquet file so that it is on the disk, whole, when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.tmp"
    with temporary.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)
    _sync_directory(path.parent.parent)


def _sync_directory(directory: Path) -> None:
    """Makes a rename in this directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _joined_table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
