"""Joins one day of an exported log, bucket by bucket. Reads Parquet files; never a store."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from placewise_service.declog.derived import JOINED_SCHEMA, PLACED_REWARDS, REWARDS, RUNS_SCHEMA
from placewise_service.declog.join.buckets import Buckets, count_for
from placewise_service.declog.join.clock import LogClock
from placewise_service.declog.join.flatten import (
    ALTERNATIVE_COLUMNS,
    DECIDED,
    DECISION_COLUMNS,
    FOUND,
    LATER_COLUMNS,
    OUTCOME_COLUMNS,
    REPORTED,
    decided_of,
    joined_of,
    progress_of,
    reported_of,
    reports_of,
    rows_of,
    unrepeated,
)
from placewise_service.declog.join.runs import REWARDED, run_row
from placewise_service.declog.outcomes import CLOCK_S, Decided, Fates, RowOutcome
from placewise_service.declog.problems import FileProblemError, Problems, check_schema, first_line
from placewise_service.declog.tables import DECISIONS, OUTCOMES, SCHEMAS

_BATCH: Final = 8192
# A policy in force never gives the placements of some explorers.
_PROBABILITIES: Final = {
    "propensity": ("propensities", "(0, 1]", pc.greater),
    "mixed_propensity": ("mixed propensities", "(0, 1]", pc.greater),
    "own_propensity": ("own propensities", "[0, 1]", pc.greater_equal),
}


class DayJoin:
    """The joined rows of one day, and counts: rows by status, OVERRIDDEN, REPEATED, ORPHANS, REFUSED_AGAIN (jobs of
    unchanged refusals, which have no row), WAITING (rows whose reward may be known later)."""

    def __init__(self, folder: Path, decisions: Sequence[Path], outcomes: Sequence[Path]) -> None:
        """`folder` is on the disk that has room for the buckets. Files that cannot be read are left out."""
        self.problems = Problems()
        decided = _rows_of_readable(decisions, DECISIONS, DECISION_COLUMNS, self.problems)
        reported = _rows_of_readable(outcomes, OUTCOMES, OUTCOME_COLUMNS, self.problems)
        self._decisions, self._outcomes = list(decided), list(reported)
        self._count = count_for(sum(decided.values()) + sum(reported.values()))
        folder.mkdir()
        self._decided = Buckets(folder, "decided", DECIDED, self._count)
        self._reported = Buckets(folder, "reported", REPORTED, self._count)
        self._found = Buckets(folder, "found", FOUND, self._count)
        self._rewarded = Buckets(folder, "rewarded", REWARDED, self._count)
        self.counts: Counter[str] = Counter()

    def collected(self, clock: LogClock, *, dangling_after_s: float) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Rows of `runs` and of `progress`, while the joined rows go to the disk. The memory taken does not grow with
        the day."""
        self._decided.fill(self._read(self._decisions, (*DECISION_COLUMNS, *ALTERNATIVE_COLUMNS), self._checked))
        self._reported.fill(self._read(self._outcomes, OUTCOME_COLUMNS, reported_of))
        for i in range(self._count):
            decided, reported = self._decided.take(i), self._reported.take(i)
            fresh, again = unrepeated(reported)
            for file, job_id in zip(again.column("file").to_pylist(), again.column("job_id").to_pylist(), strict=True):
                self._count_repeat(self._outcomes[file], job_id)
            yield self._bucket(i, decided, fresh, clock, dangling_after_s), progress_of(fresh)

    def reward(self, tables: Iterable[pa.Table]) -> None:
        """Takes the rewards of the day's runs, rows of REWARDED."""
        self._rewarded.fill(tables)

    def joined(self) -> Iterator[pa.Table]:
        """Rows of `joined`."""
        for i in range(self._count):
            found, rewarded = self._found.take(i), self._rewarded.take(i)
            self.counts["WAITING"] += pc.sum(rewarded.column("is_waiting")).as_py() or 0
            yield _with_rewards(found, rewarded)

    def _read(
        self, paths: Sequence[Path], columns: Sequence[str], rows_of_batch: Callable[[pa.RecordBatch, int], pa.Table]
    ) -> Iterator[pa.Table]:
        for number, path in enumerate(paths):
            try:
                with pq.ParquetFile(path) as file:
                    later = [name for name in LATER_COLUMNS if name in file.schema_arrow.names]
                    for batch in file.iter_batches(_BATCH, columns=[*columns, *later]):
                        yield rows_of_batch(_complete(batch), number)
            except (pa.ArrowException, OSError) as error:
                self.problems.add(FileProblemError(path, f"damaged: {first_line(error)}"))

    def _checked(self, batch: pa.RecordBatch, number: int) -> pa.Table:
        """The rows of decisions, with null for a probability that is none."""
        decided = decided_of(batch, number)
        for name, (plural, bounds, is_above) in _PROBABILITIES.items():
            values = decided.column(name)
            is_wrong = pc.invert(pc.and_(is_above(values, 0.0), pc.less_equal(values, 1.0)))
            if not (count := pc.sum(is_wrong).as_py()):
                continue
            example = decided.filter(is_wrong).column("decision_id")[0].as_py()
            what = f"{plural} outside {bounds}, null in joined"
            self.problems.add_rows(self._decisions[number], what, f"decision {example}", count)
            at = DECIDED.get_field_index(name)
            decided = decided.set_column(at, DECIDED.field(at), pc.if_else(is_wrong, None, values))
        return decided

    def _bucket(
        self, i: int, decided: pa.Table, reported: pa.Table, clock: LogClock, dangling_after_s: float
    ) -> pa.Table:
        rows = list(rows_of(decided))
        firsts = {row.key: at for at, row in reversed(list(enumerate(rows)))}
        if len(firsts) < len(rows):
            for row, file in zip(rows, decided.column("file").to_pylist(), strict=True):
                if rows[firsts[row.key]] is not row:
                    self._count_repeat(self._decisions[file], row.key.job_id)
            decided, rows = _taken(decided, rows, sorted(firsts.values()))
        fates = Fates(rows)
        for report in reports_of(reported):
            fates.add(report)
        self.counts["ORPHANS"] += len(fates.orphans)
        for report in fates.orphans:
            named = f"decision {report.key.decision_id}" if report.key.decision_id else "no decision named"
            what = "outcomes of unknown decisions, joined with nothing"
            self.problems.note(self._outcomes[report.file], what, named)
        if any(row.first_refusal for row in rows):
            kept = [at for at, row in enumerate(rows) if not row.first_refusal]
            self.counts["REFUSED_AGAIN"] += len(rows) - len(kept)
            decided, rows = _taken(decided, rows, kept)
        found = [fates.found(row, clock.of(row.cluster), dangling_after_s) for row in rows]
        for row, each in zip(rows, found, strict=True):
            self.counts[each.status.value] += 1
            self.counts["OVERRIDDEN"] += each.is_overridden
            self._check_clock(row, each)
        self._found.put(i, joined_of(decided, _columns(found)))
        runs = [run for row, each in zip(rows, found, strict=True) if (run := run_row(row, each)) is not None]
        return _table(runs, RUNS_SCHEMA)

    def _count_repeat(self, path: Path, job_id: str) -> None:
        self.counts["REPEATED"] += 1
        self.problems.note(path, "rows that the log has already, counted once", f"job {job_id}")

    def _check_clock(self, row: Decided, found: RowOutcome) -> None:
        fate = found.fate
        if fate.first_time_s < row.time_s - CLOCK_S:
            what = "jobs reported from before their decision: the clocks disagree"
        elif 0 < fate.end_time_s < fate.start_time_s:
            what = "jobs ended before they started: the clocks disagree"
        else:
            return
        self.problems.note(self._outcomes[fate.file], what, f"job {row.key.job_id}")


def _taken(decided: pa.Table, rows: list[Decided], kept: list[int]) -> tuple[pa.Table, list[Decided]]:
    return decided.take(pa.array(kept, pa.int64())), [rows[at] for at in kept]


def _rows_of_readable(paths: Sequence[Path], table: str, columns: Sequence[str], problems: Problems) -> dict[Path, int]:
    wanted = pa.schema([SCHEMAS[table].field(name) for name in columns])
    found = {}
    for path in paths:
        try:
            metadata = pq.read_metadata(path)
            check_schema(path, metadata.schema.to_arrow_schema(), wanted)
            found[path] = metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            problems.add(FileProblemError(path, f"not a whole Parquet file: {first_line(error)}"))
        except FileProblemError as error:
            problems.add(error)
    return found


def _complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    for name, kind in LATER_COLUMNS.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.nulls(len(batch), kind))
    return batch


def _with_rewards(found: pa.Table, rewarded: pa.Table) -> pa.Table:
    columns = [rewarded.column(name).to_pylist() for name in REWARDED.names]
    by_key: Mapping[tuple[str, str], Sequence[Any]] = {
        (decision_id, job_id): rewards for decision_id, job_id, *rewards in zip(*columns, strict=True)
    }
    names = (*REWARDS, *PLACED_REWARDS)
    nothing = [None] * len(names)
    keys = zip(*(found.column(name).to_pylist() for name in ("decision_id", "job_id", "unit")), strict=True)
    rows = [nothing if unit else by_key.get((decision_id, job_id), nothing) for decision_id, job_id, unit in keys]
    for i, name in enumerate(names):
        found = found.append_column(JOINED_SCHEMA.field(name), pa.array([row[i] for row in rows], pa.float64()))
    return found


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _columns(found: Sequence[RowOutcome]) -> dict[str, Sequence[object]]:
    fates = [each.fate for each in found]
    return {
        "status": [each.status.value for each in found],
        "actual": [fate.placement for fate in fates],
        "is_overridden": [each.is_overridden for each in found],
        "start_time_s": [fate.start_time_s or None for fate in fates],
        "end_time_s": [fate.end_time_s or None for fate in fates],
        "end": [fate.end for fate in fates],
        "speed_epochs_per_s": [each.speed_epochs_per_s for each in found],
        "epochs_done": [each.epochs_done for each in found],
        "actual_s": [fate.actual_s for fate in fates],
        "slowdown": [each.slowdown for each in found],
        "queueing_s": [each.queueing_s for each in found],
        "jct_s": [each.jct_s for each in found],
        "place_decision_id": [each.place_decision_id for each in found],
    }
