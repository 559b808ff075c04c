"""The tables of an exported log in any store of files, read batch by batch. Joins nothing.

`LogStore("DIR")` or `LogStore("s3://bucket/log")`: URLs that pyarrow knows, or fsspec if that is installed.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

ROWS_AT_ONCE: Final = 1024
# One file and one batch at a time: pyarrow's own read-ahead holds as much as the files are large, and its cache the
# metadata of each file that was read.
_LEAN: Final = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False, "cache_metadata": False}
_FORMAT: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(
        use_buffered_stream=True, buffer_size=1 << 16, pre_buffer=False
    )
)


class LogError(Exception):
    """The exported log, or a file of it, cannot be read. One line that names it and the remedy."""

    exit_code = 6


class LogStore:
    """A log in a folder, or in a folder of a store by its URL."""

    def __init__(self, where: str | Path) -> None:
        """Raises LogError for a URL that neither pyarrow nor an installed fsspec knows."""
        self.where = str(where)
        self._files, self._folder = _opened(self.where)

    def has(self, table: str) -> bool:
        """Whether the log has this table."""
        return bool(self._files.get_file_info(f"{self._folder}/{table}").type == fs.FileType.Directory)

    def dataset(self, table: str, columns: Sequence[str]) -> ds.Dataset:
        """A table that has these columns. Raises LogError."""
        path = f"{self._folder}/{table}"
        if not self.has(table):
            raise LogError(f"{self.where}/{table} does not exist: `placewise log export {self.where}` writes it")
        try:
            found = ds.dataset(path, filesystem=self._files, format=_FORMAT, partitioning="hive")
        except (pa.ArrowException, OSError) as error:
            raise self.error(error) from error
        missing = [name for name in columns if name not in found.schema.names]
        if missing:
            raise LogError(f"{self.where}/{table} has no column {missing[0]}: export the log with this version")
        return found

    def batches(
        self, table: str, columns: Sequence[str], wanted: pc.Expression | None = None, rows: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted, at most `rows` at once, file by file in the order of their names. Raises
        LogError."""
        found = self.dataset(table, columns)
        try:
            yield from found.to_batches(columns=list(columns), filter=wanted, batch_size=rows, **_LEAN)
        except (pa.ArrowException, OSError) as error:
            raise self.error(error) from error

    def error(self, error: Exception) -> LogError:
        """What happened and the remedy, in one line."""
        return LogError(f"{self.where}: {str(error).splitlines()[0]}; export the log again")


def _opened(where: str) -> tuple[fs.FileSystem, str]:
    if "://" not in where:
        return fs.LocalFileSystem(), where.rstrip("/")
    try:
        files, folder = fs.FileSystem.from_uri(where)
    except (pa.ArrowException, OSError) as error:
        try:
            fsspec: Any = importlib.import_module("fsspec")
            own, folder = fsspec.core.url_to_fs(where)
        except ImportError:
            raise LogError(f"{where}: {str(error).splitlines()[0]}; other stores need the package fsspec") from error
        except ValueError as unknown:
            raise LogError(f"{where}: {unknown}") from unknown
        files = fs.PyFileSystem(fs.FSSpecHandler(own))
    return files, str(folder).rstrip("/")
