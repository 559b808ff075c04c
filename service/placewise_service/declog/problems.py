"""Faults of a log's files, one line each. A fault never ends an export."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from placewise_log.manifest import ManifestError
from placewise_log.store import OF_SCHEMA_1, SCHEMA, SCHEMA_KEY


class FileProblemError(Exception):
    """A file of the log cannot be used: says which, and why."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path}: {what}")


@dataclass(slots=True)
class Problems:
    """Lines about malformed files, and notes about reports that do not fit their decisions. Rows of one file with one
    fault are one line."""

    _files: list[str] = field(default_factory=list)
    _rows: dict[tuple[Path, str], tuple[int, str]] = field(default_factory=dict)
    _reports: dict[tuple[Path, str], tuple[int, str]] = field(default_factory=dict)

    def add(self, error: FileProblemError | ManifestError) -> None:
        """A file that was left out."""
        self._files.append(str(error))

    def add_rows(self, path: Path, what: str, example: str, count: int = 1) -> None:
        """Rows of a file that are malformed."""
        _count(self._rows, path, what, example, count)

    def note(self, path: Path, what: str, example: str) -> None:
        """A report that does not fit its decision."""
        _count(self._reports, path, what, example, 1)

    def __iter__(self) -> Iterator[str]:
        yield from self._files
        yield from _lines(self._rows)

    def merge(self, other: "Problems") -> None:
        """Adds the problems of another part of the log. The two parts share no file."""
        self._files.extend(other._files)
        self._rows.update(other._rows)
        self._reports.update(other._reports)

    @property
    def notes(self) -> Iterator[str]:
        """The lines about reports."""
        return _lines(self._reports)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _count(rows: dict[tuple[Path, str], tuple[int, str]], path: Path, what: str, example: str, count: int) -> None:
    before, first = rows.get((path, what), (0, example))
    rows[path, what] = (before + count, first)


def _lines(rows: dict[tuple[Path, str], tuple[int, str]]) -> Iterator[str]:
    for (path, what), (count, example) in rows.items():
        yield f"{path}: {count} {what} (first: {example})"


def check_schema(path: Path, schema: pa.Schema, wanted: pa.Schema) -> None:
    """Raises FileProblemError for a file that is no table of this version's log."""
    missing = [name for name in wanted.names if name not in schema.names]
    if "record" not in schema.names or "position" not in schema.names:
        raise FileProblemError(path, "a Parquet file, but no table of a decision log: move it elsewhere")
    if missing and (schema.metadata or {}).get(SCHEMA_KEY) != SCHEMA:
        raise FileProblemError(path, OF_SCHEMA_1)
    wrong = [name for name in wanted.names if name in missing or schema.field(name).type != wanted.field(name).type]
    if wrong:
        raise FileProblemError(path, f"column {wrong[0]} is not of type {wanted.field(wrong[0]).type}, or missing")
