"""Runs and outcomes of a log by decision and job, in a file on the disk: memory does not grow with the log.

Knows no trainer. The file is temporary and goes with the index.
"""

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from placewise_core.domain.realised import Run
from placewise_log.store import LogStore

_CACHE_KIB: Final = 8192
_ROWS: Final = 8192
_LATEST: Final = 128  # jobs of a node that are looked through for those that are there
_RUN_COLUMNS: Final = (
    "decision_id", "job_id", "cluster", "nodes", "start_time_s", "end_time_s", "end", "last_heard_time_s", "is_open",
    "total_epochs", "times_s", "epochs",
)  # fmt: skip
_JOB_COLUMNS: Final = (
    "decision_id", "job_id", "unit", "subtask", "status", "is_overridden", "actual", "submit_time_s",
)  # fmt: skip
_PART_COLUMNS: Final = ("decision_id", "job_id", "unit", "subtask", "status", "actual_s")
_SCHEMA: Final = """
CREATE TABLE runs (decision TEXT, job TEXT, cluster TEXT, nodes TEXT, start REAL, end REAL, how TEXT, heard REAL,
    total REAL, times BLOB, epochs BLOB, is_open INT, PRIMARY KEY (decision, job)) WITHOUT ROWID;
CREATE TABLE outcomes (decision TEXT, job TEXT, status TEXT, is_overridden INT, actual TEXT, submit REAL, reward REAL,
    PRIMARY KEY (decision, job)) WITHOUT ROWID;
CREATE TABLE parts (decision TEXT, job TEXT, unit TEXT, subtask TEXT, seconds REAL, is_open INT,
    PRIMARY KEY (decision, job, unit, subtask)) WITHOUT ROWID;
CREATE TABLE heat (decision TEXT, unit TEXT, celsius REAL, PRIMARY KEY (decision, unit)) WITHOUT ROWID;
CREATE TABLE stays (cluster TEXT, node TEXT, start REAL, end REAL, job TEXT);
CREATE TABLE declared (decision TEXT, job TEXT, speed REAL, model TEXT, batch REAL, step REAL,
    PRIMARY KEY (decision, job)) WITHOUT ROWID;
"""
_INDICES: Final = """
CREATE INDEX runs_of_job ON runs (cluster, job, start);
CREATE INDEX starts_on_node ON stays (cluster, node, start);
CREATE INDEX ends_on_node ON stays (cluster, node, end);
"""


class Logged(NamedTuple):
    """A run and how it ended: FINISHED, FAILED, CANCELLED, or "" while no end is reported. `known_s` is the latest time
    for which it is known whether it still ran: its end, else the log's end, or its host's last word if it dangles."""

    decision_id: str
    run: Run
    end: str
    known_s: float

    @property
    def has_finished(self) -> bool:
        return self.end == "FINISHED"


class Part(NamedTuple):
    """A share or subtask: seconds taken, None before its end; whether it still runs, as far as the log knows."""

    seconds: float | None
    is_open: bool


class Declared(NamedTuple):
    """What a job declares of itself: linear speed in epochs per second, model, batch, and seconds of a step alone, 0 if
    unknown."""

    linear: float
    model: str
    batch: float
    step_s: float


class JobOutcome(NamedTuple):
    """A row of `joined`. `actual` are the GPUs ("node/gpu") that the host named; `reward` is None if unknown."""

    status: str
    is_overridden: bool
    actual: tuple[str, ...]
    submit_time_s: float | None
    reward: float | None


class LogIndex:
    """Use it in a `with` statement."""

    def __init__(self, store: LogStore, reward: str = "") -> None:
        """`reward` names a column of `joined`; without one no outcome has a reward. Raises LogError."""
        self._store, self._reward = store, reward
        self.end_s = -math.inf  # of the log: its last word

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="placewise-log-")
        self._db = sqlite3.connect(Path(self._folder.name) / "index.sqlite", isolation_level=None)
        self._db.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{_CACHE_KIB};"
            f"PRAGMA temp_store=FILE; {_SCHEMA}"
        )
        try:
            self._fill()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()
        self._folder.cleanup()

    def outcome(self, decision_id: str, job_id: str) -> JobOutcome | None:
        """What became of a job of a decision; None if it is not in the log."""
        sql = "SELECT status, is_overridden, actual, submit, reward FROM outcomes WHERE decision = ? AND job = ?"
        row = self._db.execute(sql, (decision_id, job_id)).fetchone()
        if row is None:
            return None
        status, is_overridden, actual, submit_time_s, reward = row
        return JobOutcome(
            status, bool(is_overridden), tuple(actual.split("\n")) if actual else (), submit_time_s, reward
        )

    def run(self, decision_id: str, job_id: str) -> Logged | None:
        """The run of a decision; None if it never started."""
        return self._one("decision = ? AND job = ?", (decision_id, job_id))

    def run_at(self, cluster: str, job_id: str, time_s: float) -> Logged | None:
        """The latest run of a job that began by then."""
        return self._one(
            "cluster = ? AND job = ? AND start <= ? ORDER BY start DESC LIMIT 1", (cluster, job_id, time_s)
        )

    def next_change_s(self, cluster: str, nodes: Iterable[str], after_s: float, but: str) -> float:
        """When another job next starts or ends on one of these nodes; infinite if none does."""
        found = []
        for node in nodes:
            for sql in (_NEXT_START, _NEXT_END):
                (time_s,) = self._db.execute(sql, (cluster, node, after_s, but)).fetchone()
                found += [] if time_s is None else [time_s]
        return min(found, default=math.inf)

    def runs(self) -> Iterator[Logged]:
        """Every run, in no order."""
        for row in self._db.cursor().execute(f"{_SELECT} WHERE 1"):
            yield self._logged(row)

    def beside(self, cluster: str, nodes: Iterable[str], time_s: float, but: str) -> list[Logged]:
        """The other runs that are on one of these nodes at a time: of those that came to it last."""
        jobs = set()
        for node in nodes:
            jobs |= {job for (job,) in self._db.execute(_ON_NODE, (cluster, node, time_s, _LATEST, time_s, but))}
        found = (self.run_at(cluster, job, time_s) for job in sorted(jobs))
        return [one for one in found if one is not None]

    def share(self, decision_id: str, task_id: str, unit: str) -> Part:
        """A share of a divisible task."""
        sql = "SELECT seconds, is_open FROM parts WHERE decision = ? AND job = ? AND unit = ? AND subtask = ''"
        return _part(self._db.execute(sql, (decision_id, task_id, unit)).fetchone())

    def subtask(self, decision_id: str, job_id: str, subtask: str) -> Part:
        """A subtask of a pipeline."""
        sql = "SELECT seconds, is_open FROM parts WHERE decision = ? AND job = ? AND subtask = ?"
        return _part(self._db.execute(sql, (decision_id, job_id, subtask)).fetchone())

    def remember_heat(self, rows: Iterable[tuple[str, str, float]]) -> None:
        """The highest °C of a unit during a share of a decision, for `peak_celsius`."""
        self._put("heat", rows)

    def peak_celsius(self, decision_id: str, unit: str) -> float | None:
        """None if unknown."""
        sql = "SELECT celsius FROM heat WHERE decision = ? AND unit = ?"
        row = self._db.execute(sql, (decision_id, unit)).fetchone()
        return float(row[0]) if row else None

    def remember_declared(self, rows: Iterable[tuple[str, str, Declared]]) -> None:
        """By decision and job, for `declared` and `linear`."""
        self._put("declared", ((decision_id, job_id, *declared) for decision_id, job_id, declared in rows))

    def declared(self, decision_id: str, job_id: str) -> Declared | None:
        """None for a job without a length."""
        sql = "SELECT speed, model, batch, step FROM declared WHERE decision = ? AND job = ?"
        row = self._db.execute(sql, (decision_id, job_id)).fetchone()
        return Declared(*row) if row else None

    def linear(self, decision_id: str, job_id: str) -> float:
        """0 if unknown."""
        found = self.declared(decision_id, job_id)
        return found.linear if found is not None else 0.0

    def _fill(self) -> None:
        for batch in self._store.batches("runs", _RUN_COLUMNS, rows=_ROWS):
            heard = batch.column("last_heard_time_s").to_pylist()
            self.end_s = max(self.end_s, *(time_s for time_s in heard if time_s is not None), self.end_s)
            rows = [_run_row(*row) for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
            self._put("runs", rows)
            self._put("stays", (stay for row in rows for stay in _stays(row)))
        columns = (*_JOB_COLUMNS, "actual_s", "end_time_s", *([self._reward] if self._reward else []))
        for batch in self._store.batches("joined", columns, rows=_ROWS):
            self._put("outcomes", _outcome_rows(batch, self._reward))
            self._put("parts", _part_rows(batch))
            ends = [time_s for time_s in batch.column("end_time_s").to_pylist() if time_s is not None]
            self.end_s = max([self.end_s, *ends])
        self._db.executescript(_INDICES)

    def _put(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(_INSERT[table], rows)
        self._db.execute("COMMIT")

    def _one(self, where: str, values: Sequence[Any]) -> Logged | None:
        row = self._db.execute(f"{_SELECT} WHERE {where}", values).fetchone()
        return None if row is None else self._logged(row)

    def _logged(self, row: Sequence[Any]) -> Logged:
        decision, job, nodes, start_s, end_s, how, heard_s, total, times, epochs, is_open = row
        points = list(zip(np.frombuffer(times).tolist(), np.frombuffer(epochs).tolist(), strict=True))
        has_ended = end_s is not None
        run = Run(job, frozenset(nodes.split("\n")), start_s, end_s if has_ended else math.inf, total or 0.0, points)
        known_s = end_s if has_ended else self.end_s if is_open else heard_s
        return Logged(decision, run, how or "", known_s)


_INSERT: Final = {
    "runs": "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "outcomes": "INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?)",
    "parts": "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?, ?)",
    "heat": "INSERT OR IGNORE INTO heat VALUES (?, ?, ?)",
    "stays": "INSERT INTO stays VALUES (?, ?, ?, ?, ?)",
    "declared": "INSERT OR IGNORE INTO declared VALUES (?, ?, ?, ?, ?, ?)",
}
_NEXT_START: Final = "SELECT MIN(start) FROM stays WHERE cluster = ? AND node = ? AND start > ? AND job != ?"
_NEXT_END: Final = "SELECT MIN(end) FROM stays WHERE cluster = ? AND node = ? AND end > ? AND job != ?"
_ON_NODE: Final = (
    "SELECT job FROM (SELECT job, end FROM stays WHERE cluster = ? AND node = ? AND start <= ? ORDER BY start DESC"
    " LIMIT ?) WHERE (end IS NULL OR end > ?) AND job != ?"
)
_SELECT: Final = "SELECT decision, job, nodes, start, end, how, heard, total, times, epochs, is_open FROM runs"


def _run_row(
    decision_id: str, job_id: str, cluster: str, nodes: list[str], start_s: float, end_s: float | None,
    how: str | None, heard_s: float | None, is_open: bool, total: float | None, times: list[float], epochs: list[float],
) -> tuple[Any, ...]:  # fmt: skip
    blobs = (np.asarray(times, dtype=np.float64).tobytes(), np.asarray(epochs, dtype=np.float64).tobytes())
    heard_s = max(start_s, heard_s or 0.0)
    return decision_id, job_id, cluster, "\n".join(nodes), start_s, end_s, how, heard_s, total, *blobs, is_open


def _stays(row: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The host's last word ends a job that dangles."""
    _, job_id, cluster, nodes, start_s, end_s, _, heard_s, *_, is_open = row
    for node in nodes.split("\n"):
        yield cluster, node, start_s, heard_s if end_s is None and not is_open else end_s, job_id


def _outcome_rows(batch: pa.RecordBatch, reward: str) -> Iterator[tuple[Any, ...]]:
    names = [*_JOB_COLUMNS, *([reward] if reward else [])]
    for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        decision_id, job_id, unit, subtask, status, is_overridden, actual, submit_time_s, *rest = row
        if not unit and not subtask:
            value = rest[0] if rest else None
            yield decision_id, job_id, status, is_overridden, "\n".join(actual or ()), submit_time_s, value


def _part_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = (batch.column(name).to_pylist() for name in _PART_COLUMNS)
    for decision_id, job_id, unit, subtask, status, seconds in zip(*columns, strict=True):
        if unit or subtask:
            yield decision_id, job_id, unit or "", subtask or "", seconds, status == "OPEN"


def _part(row: tuple[float | None, int] | None) -> Part:
    return Part(None, False) if row is None else Part(row[0], bool(row[1]))
