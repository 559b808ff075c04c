"""Which rows a partition holds already, so that each is written once. Kept on disk: a day may have millions.

The files are the truth. The index is behind them after a crash, and reads those that it does not know.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

NAME: Final = ".ids.sqlite"
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS ids (id TEXT PRIMARY KEY) WITHOUT ROWID",
)
_ADD: Final = "INSERT OR IGNORE INTO ids VALUES (?)"


class SeenIds:
    """Ids of the rows of one partition. One process at a time."""

    def __init__(self, partition: Path) -> None:
        """Reads the ids of files that the index does not know; those that cannot be read have none."""
        self._partition = partition
        partition.mkdir(parents=True, exist_ok=True)
        try:
            self._index = self._opened()
        except sqlite3.DatabaseError:
            (partition / NAME).unlink()
            self._index = self._opened()

    @classmethod
    def of(cls, opened: dict[Path, Self], partition: Path) -> Self:
        """That of a partition, opened if it is not yet."""
        if partition not in opened:
            opened[partition] = cls(partition)
        return opened[partition]

    @contextmanager
    def fresh(self, rows: Sequence[dict[str, Any]], file: str) -> Iterator[list[dict[str, Any]]]:
        """The rows whose ids are new, each once. They count as written once the block, of `file`, has ended."""
        with self._index:
            found = [row for row in rows if self._index.execute(_ADD, (row["id"],)).rowcount == 1]
            yield found
            if found:
                self._index.execute("INSERT OR IGNORE INTO files VALUES (?)", (file,))

    def close(self) -> None:
        """Closes the index."""
        self._index.close()

    def _opened(self) -> sqlite3.Connection:
        index = sqlite3.connect(self._partition / NAME)
        with index:
            for table in _TABLES:
                index.execute(table)
            known = {name for (name,) in index.execute("SELECT name FROM files")}
            found = {path.name for path in self._partition.glob("*.parquet")}
            if known - found:
                index.execute("DELETE FROM ids")
                index.execute("DELETE FROM files")
                known = set()
            for name in sorted(found - known):
                try:
                    with pq.ParquetFile(self._partition / name) as file:
                        for batch in file.iter_batches(columns=["id"]):
                            index.executemany(_ADD, ((each,) for each in batch["id"].to_pylist()))
                except (pa.ArrowException, OSError, KeyError):
                    continue  # the join names it
                index.execute("INSERT INTO files VALUES (?)", (name,))
        return index
