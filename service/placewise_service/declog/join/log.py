"""Joins the days of an exported log: first the runs of each day that changed, then rewards, which cross midnight."""

import hashlib
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from placewise_core.basics.arrays import IntArray
from placewise_service.declog.derived import JOINED, JOINED_SCHEMA, PROGRESS, PROGRESS_SCHEMA, RUNS, RUNS_SCHEMA
from placewise_service.declog.files import RowGroups, durable_writer
from placewise_service.declog.join.buckets import Buckets, count_for
from placewise_service.declog.join.clock import LogClock
from placewise_service.declog.join.day import DayJoin
from placewise_service.declog.join.runs import REWARDED, Sweep
from placewise_service.declog.outcomes import Status
from placewise_service.declog.problems import FileProblemError, Problems, first_line
from placewise_service.declog.tables import DECISIONS, OUTCOMES

DERIVED: Final = {JOINED: JOINED_SCHEMA, PROGRESS: PROGRESS_SCHEMA, RUNS: RUNS_SCHEMA}
_INPUTS_KEY: Final = "placewise.inputs"
_OPEN_KEY: Final = "placewise.open"  # rows that may change, and problems: not 0 if the day is joined again next time
COUNTS_KEY: Final = "placewise.counts"  # orphans and repeated rows of the day
_RULES: Final = "15"  # version of the join's own rules: tables of another one are built again
_FOLDER: Final = ".join-"
_START: Final = "start_time_s"
_ASKED_RUNS: Final = RUNS_SCHEMA.append(pa.field("is_asked", pa.bool_()))
_REWARDS_AT_ONCE: Final = 4096
_BATCH: Final = 8192


class LogJoin:
    """The derived tables of one directory."""

    def __init__(self, directory: Path, problems: Problems) -> None:
        self._directory = directory
        self._problems = problems
        self._damaged: set[Path] = set()  # tables of runs that are named already

    def run(self, clock: LogClock, *, dangling_after_s: float) -> Counter[str]:
        """Rebuilds the tables of every day that changed, has open rows, malformed files, or rewards that were not known
        yet.

        Counts the rows of these days by status, and OVERRIDDEN, REPEATED, ORPHANS, REFUSED_AGAIN, WAITING.
        """
        counts: Counter[str] = Counter()
        with _folder(self._directory) as folder:
            days: dict[str, tuple[DayJoin, str]] = {}
            for day in self._days():
                inputs = self._inputs(day)
                if self._is_stale(day, inputs):
                    join = DayJoin(folder / day, self.files(DECISIONS, day), self.files(OUTCOMES, day))
                    self._collect(day, join, clock, dangling_after_s)
                    days[day] = join, inputs
            for day, (join, inputs) in days.items():
                with tempfile.TemporaryDirectory(dir=folder) as slices:
                    join.reward(self._rewards(day, Path(slices), clock))
                self._write_joined(day, join, inputs)
                self._problems.merge(join.problems)
                counts += join.counts
        return counts

    def files(self, table: str, day: str) -> list[Path]:
        """The files of one table and day."""
        return sorted((self._directory / table / day).glob("*.parquet"))

    def _days(self) -> list[str]:
        return sorted(
            {path.name for table in (DECISIONS, OUTCOMES) for path in (self._directory / table).glob("date=*")}
        )

    def _target(self, table: str, day: str) -> Path:
        return self._directory / table / day / f"{table}.parquet"

    def _inputs(self, day: str) -> str:
        paths = [path for table in (DECISIONS, OUTCOMES) for path in self.files(table, day)]
        names = [f"{path.relative_to(self._directory)} {path.stat().st_size}" for path in paths]
        return hashlib.sha256("\n".join([_RULES, *names]).encode()).hexdigest()

    def _is_stale(self, day: str, inputs: str) -> bool:
        if not all(self._target(table, day).exists() for table in DERIVED):
            return True
        try:
            metadata = pq.read_metadata(self._target(JOINED, day)).metadata or {}
            found = [pq.read_schema(self._target(table, day)).names for table in DERIVED]
        except (pa.ArrowException, OSError):
            return True
        if found != [schema.names for schema in DERIVED.values()]:
            return True
        return metadata.get(_INPUTS_KEY.encode()) != inputs.encode() or metadata.get(_OPEN_KEY.encode()) != b"0"

    def _collect(self, day: str, join: DayJoin, clock: LogClock, dangling_after_s: float) -> None:
        with (
            durable_writer(self._target(RUNS, day), RUNS_SCHEMA, statistics=(_START,)) as runs,
            durable_writer(self._target(PROGRESS, day), PROGRESS_SCHEMA, statistics=()) as progress,
        ):
            of_runs, of_progress = RowGroups(runs), RowGroups(progress)
            for found, reported in join.collected(clock, dangling_after_s=dangling_after_s):
                of_runs.add(found)
                of_progress.add(reported)
            of_runs.end()
            of_progress.end()

    def _write_joined(self, day: str, join: DayJoin, inputs: str) -> None:
        with durable_writer(self._target(JOINED, day), JOINED_SCHEMA, statistics=()) as writer:
            groups = RowGroups(writer)
            for table in join.joined():
                groups.add(table)
            groups.end()
            left = join.counts[Status.OPEN] + join.counts["WAITING"] + len([*join.problems])
            counts = f"{join.counts['ORPHANS']} {join.counts['REPEATED']}"
            writer.add_key_value_metadata({_INPUTS_KEY: inputs, _OPEN_KEY: str(left), COUNTS_KEY: counts})

    def _rewards(self, day: str, folder: Path, clock: LogClock) -> Iterator[pa.Table]:
        """Rows of REWARDED for the runs of a day, some thousands at a time."""
        own = self._target(RUNS, day)
        first_s, last_s = _starts(own)
        if first_s > last_s:
            return
        count = count_for(pq.read_metadata(own).num_rows)
        slices = Buckets(folder, "runs", _ASKED_RUNS, count)
        width_s = max(1.0, (last_s - first_s) / count)

        def by_time(table: pa.Table, _: int) -> IntArray:
            starts = np.maximum(table.column("start_time_s").to_numpy(), first_s)
            return np.asarray((starts - first_s) // width_s, dtype=np.int64)

        slices.fill(self._near(own, first_s, last_s), by_time)
        rows: list[tuple[Any, ...]] = []
        for row in Sweep(clock).rewards(_in_order(slices, count)):
            rows.append(row)
            if len(rows) >= _REWARDS_AT_ONCE:
                yield _rewarded(rows)
                rows = []
        if rows:
            yield _rewarded(rows)

    def _near(self, own: Path, first_s: float, last_s: float) -> Iterator[pa.Table]:
        """Runs of any day that lasted into a stretch of time or began in it; those of `own` are marked."""
        for path in sorted((self._directory / RUNS).glob(f"date=*/{RUNS}.parquet")):
            for batch in self._batches(path):
                heard = pc.max_element_wise(batch["end_time_s"], batch["last_heard_time_s"])
                is_there = pc.or_(batch["is_open"], pc.greater_equal(heard, first_s))
                near = batch.filter(pc.and_(is_there, pc.less_equal(batch["start_time_s"], last_s)))
                asked = near.append_column("is_asked", pa.repeat(path == own, len(near)))
                yield pa.Table.from_batches([asked], _ASKED_RUNS)

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        """Rows of a table of runs; of a damaged one those before the damage."""
        try:
            with pq.ParquetFile(path, pre_buffer=False) as file:  # else it reads the whole file ahead
                if file.schema_arrow.names != RUNS_SCHEMA.names:
                    raise pa.ArrowInvalid("no table of runs")
                yield from file.iter_batches(_BATCH)
        except (pa.ArrowException, OSError) as error:
            if path not in self._damaged:
                self._damaged.add(path)
                what = f"damaged: {first_line(error)}; remove it, and the next export makes it again"
                self._problems.add(FileProblemError(path, what))


def _in_order(slices: Buckets, count: int) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """The runs by their starts, and which of them are asked for."""
    for i in range(count):
        table = slices.take(i).sort_by([("start_time_s", "ascending"), ("decision_id", "ascending")])
        for *row, is_asked in zip(*(column.to_pylist() for column in table.columns), strict=True):
            yield tuple(row), is_asked


def _rewarded(rows: list[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), REWARDED, strict=True)]
    return pa.Table.from_arrays(arrays, schema=REWARDED)


def _starts(path: Path) -> tuple[float, float]:
    """First and last start of a table of runs, from the file's statistics; (∞, −∞) without rows."""
    metadata = pq.read_metadata(path)
    at = [metadata.schema.column(i).path for i in range(metadata.num_columns)].index(_START)
    found = [metadata.row_group(i).column(at).statistics for i in range(metadata.num_row_groups)]
    known = [each for each in found if each is not None and each.has_min_max]
    return min((each.min for each in known), default=math.inf), max((each.max for each in known), default=-math.inf)


@contextmanager
def _folder(directory: Path) -> Iterator[Path]:
    """A folder on the disk of the log, removed at the end; those that a killed process left go first."""
    for left in directory.glob(f"{_FOLDER}*"):
        shutil.rmtree(left)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_FOLDER, dir=directory) as folder:
        yield Path(folder)
