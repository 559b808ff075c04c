"""The tables of an exported log in any store of files, read file by file and batch by batch. Joins nothing.

`LogStore("DIR")` or `LogStore("s3://bucket/log")`: URLs that pyarrow knows, or fsspec if that is installed.
"""

import hashlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from placewise_log.manifest import NAME as MANIFEST
from placewise_log.manifest import LogManifest, ManifestError

ROWS_AT_ONCE: Final = 1024
_CHUNK: Final = 1 << 20
SCHEMA_KEY: Final = b"placewise.schema"
SCHEMA: Final = b"2"  # of the tables' files. Those of 1 have no mark, and lack columns and nulls that readers go by
_SINCE_2: Final = {"job_ids": "job_outcomes", "epochs_done": "receive_time"}  # by a column of decisions, of outcomes
OF_SCHEMA_1: Final = "of schema 1: run `placewise log migrate` on its folder"
_REMEDY: Final = "migrate and export the log with this version, and move files that are not of it elsewhere"
# One batch at a time: pyarrow's own read-ahead holds as much as the files are large, and its cache the metadata of
# each file that was read.
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
        self._files, self._folder = opened(self.where) if "://" in self.where else _local(self.where)

    @property
    def digest(self) -> str:
        """The digest of the log's manifest, which stands for all of its files; "" without a manifest. Raises
        LogError for one that cannot be read."""
        path = f"{self._folder}/{MANIFEST}"
        try:
            with self._files.open_input_stream(path) as file:
                return LogManifest.parse(file.read().decode("utf-8"), path).digest
        except FileNotFoundError:
            return ""
        except (ManifestError, UnicodeDecodeError, pa.ArrowException, OSError) as error:
            raise self.error(error, path) from error

    def has(self, table: str) -> bool:
        """Whether the log has this table."""
        return bool(self._files.get_file_info(f"{self._folder}/{table}").type == fs.FileType.Directory)

    def paths(self, table: str) -> list[str]:
        """The files of a table by their names; none if the log has no such table. Raises LogError if one is a copy of
        another of its day: their rows would count twice."""
        if not self.has(table):
            return []
        try:
            infos = self._files.get_file_info(fs.FileSelector(f"{self._folder}/{table}", recursive=True))
            found = sorted((info for info in infos if info.path.endswith(".parquet")), key=lambda info: info.path)
            self._check_copies(found)
        except (pa.ArrowException, OSError) as error:
            raise self.error(error, self.where) from error
        return [info.path for info in found]

    def batches(
        self, table: str, columns: Sequence[str], wanted: pc.Expression | None = None, rows: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted, at most `rows` at once, file by file in the order of their names. Raises
        LogError."""
        if not self.has(table):
            raise LogError(f"{self.where}/{table} does not exist: `placewise log export {self.where}` writes it")
        for path in self.paths(table):
            yield from self.batches_of(path, columns, wanted, rows)

    def batches_of(
        self, path: str, columns: Sequence[str], wanted: pc.Expression | None = None, rows: int = ROWS_AT_ONCE
    ) -> Iterator[pa.RecordBatch]:
        """The same of one file. Raises LogError, which names it."""
        try:
            file = _FORMAT.make_fragment(path, filesystem=self._files)
            if is_of_schema_1(file.physical_schema):
                raise LogError(f"{path}: {OF_SCHEMA_1}, then `placewise log export`")
            missing = [name for name in columns if name not in file.physical_schema.names]
            if missing:
                raise LogError(f"{path}: has no column {missing[0]}: {_REMEDY}")
            yield from file.to_batches(columns=list(columns), filter=wanted, batch_size=rows, **_LEAN)
        except (pa.ArrowException, OSError) as error:
            raise self.error(error, path) from error

    def error(self, error: Exception, path: str = "") -> LogError:
        """What happened and the remedy, in one line."""
        return LogError(f"{path or self.where}: {str(error).splitlines()[0]}; export the log again")

    def _check_copies(self, infos: Sequence[fs.FileInfo]) -> None:
        by_size: dict[tuple[str, int], list[str]] = {}
        for info in infos:
            by_size.setdefault((info.path.rpartition("/")[0], info.size), []).append(info.path)
        for paths in by_size.values():
            known: dict[bytes, str] = {}
            for path in paths if len(paths) > 1 else ():
                first = known.setdefault(self._digest(path), path)
                if first != path:
                    raise LogError(f"{path}: a copy of {first}: its rows would count twice, move it elsewhere")

    def _digest(self, path: str) -> bytes:
        digest = hashlib.sha256()
        with self._files.open_input_stream(path, compression=None) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        return digest.digest()


def is_of_schema_1(schema: pa.Schema) -> bool:
    """Whether a file of decisions or outcomes is an earlier version's."""
    names = set(schema.names)
    is_raw = {"position", "record"} <= names
    lacks = any(column in names and later not in names for column, later in _SINCE_2.items())
    return is_raw and lacks and SCHEMA_KEY not in (schema.metadata or {})


def _local(folder: str) -> tuple[fs.FileSystem, str]:
    return fs.LocalFileSystem(), folder.rstrip("/")


def opened(url: str) -> tuple[fs.FileSystem, str]:
    """The files of a store by its URL, and the folder in it. Raises LogError for a URL that neither pyarrow nor an
    installed fsspec knows."""
    try:
        files, folder = fs.FileSystem.from_uri(url)
    except (pa.ArrowException, OSError) as error:
        try:
            fsspec: Any = importlib.import_module("fsspec")
            own, folder = fsspec.core.url_to_fs(url)
        except ImportError:
            raise LogError(f"{url}: {str(error).splitlines()[0]}; other stores need the package fsspec") from error
        except ValueError as unknown:
            raise LogError(f"{url}: {unknown}") from unknown
        files = fs.PyFileSystem(fs.FSSpecHandler(own))
    return files, str(folder).rstrip("/")
