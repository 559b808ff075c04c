"""Writes the files of an earlier version's export again, with the columns of today. The entries stay as they are."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from placewise_log.store import SCHEMA, SCHEMA_KEY
from placewise_service.declog.files import durable_writer
from placewise_service.declog.problems import FileProblemError, Problems
from placewise_service.declog.tables import DECISIONS, OUTCOMES, SCHEMAS, UNREADABLE, row_of

_BATCH: Final = 2048
_ENTRY: Final = ("cluster", "position", "record")


def migrate(directory: Path, problems: Problems) -> Counter[str]:
    """Rewrites every file that lacks columns of today from its entries; how many files and rows, by table.

    A file is replaced once the new one is on the disk, so that a killed migration can be repeated. Entries that cannot
    be read go to `unreadable`, under the same day and file name. Files that are no tables of a log stay as they are.
    """
    counts: Counter[str] = Counter()
    for table in (DECISIONS, OUTCOMES):
        for path in sorted((directory / table).glob("date=*/*.parquet")):
            try:
                if not _is_current(path, table):
                    counts += _rewritten(directory, table, path)
                    counts["files"] += 1
            except FileProblemError as error:
                problems.add(error)
    return counts


def _is_current(path: Path, table: str) -> bool:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise FileProblemError(path, f"not a whole Parquet file: {str(error).splitlines()[0]}") from error
    if not set(_ENTRY) <= set(schema.names):
        raise FileProblemError(path, "a Parquet file, but no table of a decision log: move it elsewhere")
    return (schema.metadata or {}).get(SCHEMA_KEY) == SCHEMA and set(SCHEMAS[table].names) <= set(schema.names)


def _rewritten(directory: Path, table: str, path: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    unreadable: list[dict[str, Any]] = []
    with durable_writer(path, SCHEMAS[table]) as writer:
        for rows in _rows(path):
            of_table = [row for name, row in rows if name == table]
            unreadable += [row for name, row in rows if name != table]
            writer.write_table(pa.Table.from_pylist(of_table, schema=SCHEMAS[table]))
            counts[table] += len(of_table)
        if unreadable:  # before the old file goes
            kept = directory / UNREADABLE / path.parent.name / path.name
            with durable_writer(kept, SCHEMAS[UNREADABLE]) as other:
                other.write_table(pa.Table.from_pylist(unreadable, schema=SCHEMAS[UNREADABLE]))
            counts[UNREADABLE] += len(unreadable)
    return counts


def _rows(path: Path) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Rows of each batch with the table that they belong to."""
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH, columns=list(_ENTRY)):
                found = (row_of(*entry) for entry in zip(*(batch[name].to_pylist() for name in _ENTRY), strict=True))
                yield [(name, row) for name, _, row in found]
    except (pa.ArrowException, OSError) as error:
        raise FileProblemError(path, f"damaged: {str(error).splitlines()[0]}") from error
