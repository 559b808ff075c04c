"""Splits rows into files of a bounded number of rows, by job id for the join, by time for a sweep.

By job and not by decision: a question asked again has another decision id and the same job, as has an admission before
its Place.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from placewise_core.basics.arrays import IntArray

BucketOf = Callable[[pa.Table, int], IntArray]

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_ROWS: Final = 50_000  # of one bucket, decisions and outcomes together: some 100 MB as objects
_MOST: Final = 768  # files that are open at once, of 1024 that a process may have as a rule
_TOGETHER: Final = 65_536  # rows that are split at once
_AT_ONCE: Final = 64  # buckets that they are split into: into more, a bucket would be a heap of tiny pieces


def count_for(rows: int) -> int:
    """Number of buckets for so many rows."""
    return min(_MOST, max(1, -(-rows // _ROWS)))


def by_job(table: pa.Table, count: int) -> IntArray:
    """All rows of a job in one bucket."""
    return np.array([zlib.crc32(job_id.encode()) for job_id in table.column("job_id").to_pylist()]) % count


class Buckets:
    """The rows of one table, split into `count` files."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, count: int) -> None:
        self._folder, self._name = folder, name
        self._paths = [folder / f"{name}-{i}.arrow" for i in range(count)]
        self._schema = schema

    def fill(self, tables: Iterable[pa.Table], bucket_of: BucketOf = by_job) -> None:
        """Writes all rows, which are of the schema. `bucket_of` gives (rows,) integers; those outside count as the
        first or last bucket. More than _AT_ONCE buckets are filled in two steps."""
        count = len(self._paths)
        width = -(-count // -(-count // _AT_ONCE))
        if width == count:
            self._write(tables, _from(0, bucket_of, count), range(count))
            return
        coarse = Buckets(self._folder, f"{self._name}-coarse", self._schema, -(-count // width))
        coarse.fill(tables, lambda table, _: bucket_of(table, count) // width)
        for i in range(len(coarse._paths)):
            fine = range(i * width, min(count, (i + 1) * width))
            self._write(coarse._stream(i), _from(fine.start, bucket_of, count), fine)

    def _write(self, tables: Iterable[pa.Table], bucket_of: BucketOf, buckets: range) -> None:
        _give_back()
        with ExitStack() as stack:
            new, paths = pa.ipc.new_stream, self._paths[buckets.start : buckets.stop]
            writers = [stack.enter_context(new(str(path), self._schema, options=_OPTIONS)) for path in paths]
            for table in _together(tables):
                _split(table, writers, bucket_of)
        _give_back()

    def _stream(self, i: int) -> Iterator[pa.Table]:
        """The rows of bucket i piece by piece; it is removed from the disk in the end."""
        with pa.OSFile(str(self._paths[i])) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
        self._paths[i].unlink()

    def put(self, i: int, table: pa.Table) -> None:
        """Writes the rows of bucket i."""
        with pa.ipc.new_stream(str(self._paths[i]), self._schema, options=_OPTIONS) as writer:
            writer.write_table(table)

    def take(self, i: int) -> pa.Table:
        """The rows of bucket i, which is removed from the disk."""
        _give_back()
        with pa.OSFile(str(self._paths[i])) as file, pa.ipc.open_stream(file) as reader:
            table = reader.read_all()
        self._paths[i].unlink()
        return table


def _give_back() -> None:
    """Returns freed memory to the system: allocators keep it in pieces, more of them the longer a log is."""
    pa.default_memory_pool().release_unused()


def _from(first: int, bucket_of: BucketOf, count: int) -> BucketOf:
    """The bucket of each row, one of `count`, counted from `first`."""
    return lambda table, _: np.clip(bucket_of(table, count), 0, count - 1) - first


def _split(table: pa.Table, writers: list[pa.ipc.RecordBatchStreamWriter], bucket_of: BucketOf) -> None:
    if len(writers) == 1:
        writers[0].write_table(table)
        return
    of = bucket_of(table, len(writers))
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(len(writers) + 1))
    ordered = table.take(pa.array(order))
    for i, writer in enumerate(writers):
        if ends[i] < ends[i + 1]:
            writer.write_table(ordered.slice(ends[i], ends[i + 1] - ends[i]))


def _together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        if rows >= _TOGETHER:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)
