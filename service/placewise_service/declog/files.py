"""Files that are on the disk whole, or not at all. Knows no table."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from placewise_log.store import SCHEMA, SCHEMA_KEY


@contextmanager
def durable_writer(
    path: Path, schema: pa.Schema, *, statistics: Sequence[str] | None = None
) -> Iterator[pq.ParquetWriter]:
    """A Parquet file that is on the disk, whole, once the block has ended; nothing of it if the block raises.

    `statistics`: the columns whose bounds are kept for each piece of the file, in memory too until it ends; None: all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.tmp"
    with temporary.open("wb") as file:
        with pq.ParquetWriter(
            file,
            schema.with_metadata({SCHEMA_KEY: SCHEMA}),
            compression="zstd",
            write_statistics=True if statistics is None else list(statistics),
        ) as writer:
            yield writer
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
    sync_directory(path.parent.parent)


class RowGroups:
    """Writes small tables in row groups of at least `rows` rows; `end` writes the last ones.

    Until a file ends, its writer keeps nearly a kilobyte for each column of each row group, and twice that at the end.
    """

    def __init__(self, writer: pq.ParquetWriter, rows: int = 30_000) -> None:
        self._writer, self._at_least = writer, rows
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Takes a table, which may have no rows."""
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= self._at_least:
            self.end()

    def end(self) -> None:
        """Writes what waits."""
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0


def write_durably(path: Path, text: str) -> None:
    """Replaces a file's text."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes a rename in this directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
