"""Reads traces of jobs (CSV). Guesses nothing: an error names the file, the line and the column.

Needs the columns job_id, submit_time_s, duration_s (more than 0) and num_gpus (whole, at least 1); `gpu_fraction` (at
most 1) and `vc` (the queue) are optional; others are ignored.
"""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from placewise_core.basics.frozen import frozen

REQUIRED_COLUMNS = ("job_id", "submit_time_s", "duration_s", "num_gpus")


class TraceError(ValueError):
    """A malformed trace. `line` and `position` (the field's first character, exact unless a field before it is
    quoted) count from 1; `column` is empty if the error is about the file or a whole row."""

    def __init__(self, file: str, line: int, position: int, column: str, problem: str) -> None:
        super().__init__(f"{file}:{line}:{position}: {f'{column}: ' if column else ''}{problem}")
        self.file, self.line, self.position, self.column = file, line, position, column


@frozen
class TraceJob:
    """One job: times in seconds of the trace, whole GPUs, and its queue. `gpu_fraction` is 0 if
    the trace has none."""

    id: str
    submit_s: float
    duration_s: float
    gpus: int
    gpu_fraction: float = 0.0
    queue: str = ""


@frozen
class _TraceRecord:
    """One record and its place in the file."""

    file: str
    line: int
    text: str
    columns: Sequence[str]
    values: Sequence[str]

    def error(self, column: str, problem: str) -> TraceError:
        fields = self.text.split(",")[: self.columns.index(column)]
        return TraceError(self.file, self.line, 1 + sum(len(field) + 1 for field in fields), column, problem)

    def optional(self, column: str) -> str:
        return self.values[self.columns.index(column)].strip() if column in self.columns else ""

    def number(self, column: str, least: float) -> float:
        """A finite number of at least `least`. Raises TraceError."""
        text = self.optional(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < least:
            raise self.error(column, f"{text} is not a finite number of at least {least:g}")
        return value


def read_trace(path: Path, default_queue: str = "") -> list[TraceJob]:
    """Every job of the file, as parse_trace. Raises TraceError, OSError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text: {error.reason} at byte {error.start}"
        raise TraceError(str(path), 1, 1, "", problem) from None
    return parse_trace(text, str(path), default_queue)


def parse_trace(text: str, file: str, default_queue: str = "") -> list[TraceJob]:
    """The jobs in order of submission; those of one moment in the order of the text. `file` is named in errors; a job
    without a queue gets `default_queue`.

    Raises TraceError.
    """
    jobs: dict[str, TraceJob] = {}
    lines: dict[str, int] = {}
    for row in _rows(text, file):
        job = _job(row, default_queue)
        if job.id in jobs:
            raise row.error("job_id", f"{job.id!r} was already used in line {lines[job.id]}")
        jobs[job.id], lines[job.id] = job, row.line
    if not jobs:
        raise TraceError(file, 1, 1, "", "no jobs")
    return sorted(jobs.values(), key=lambda job: job.submit_s)


def at_rate(jobs: Sequence[TraceJob], per_hour: float) -> list[TraceJob]:
    """The same jobs, submitted `per_hour` in the mean: the gaps between them all shrink or grow alike. Jobs that all
    arrive at once stay so."""
    first_s, last_s = jobs[0].submit_s, jobs[-1].submit_s
    if last_s <= first_s:
        return list(jobs)
    factor = (len(jobs) - 1) * 3600.0 / per_hour / (last_s - first_s)
    return [replace(job, submit_s=(job.submit_s - first_s) * factor) for job in jobs]


def _rows(text: str, file: str) -> Iterator[_TraceRecord]:
    raw = text.splitlines()
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        for name in REQUIRED_COLUMNS:
            if name not in columns:
                problem = f"no column {name!r} in the header; needed: {', '.join(REQUIRED_COLUMNS)}"
                raise TraceError(file, 1, 1, name, problem)
        for values in reader:
            if not values:
                continue
            row = _TraceRecord(file, reader.line_num, raw[reader.line_num - 1], columns, values)
            if len(values) != len(columns):
                column = columns[min(len(values), len(columns) - 1)]
                raise row.error(column, f"the row has {len(values)} fields, the header {len(columns)}")
            yield row
    except csv.Error as error:
        raise TraceError(file, reader.line_num, 1, "", str(error)) from None


def _job(row: _TraceRecord, default_queue: str) -> TraceJob:
    name, gpus, duration_s = row.optional("job_id"), row.number("num_gpus", 1), row.number("duration_s", 0)
    fraction = row.number("gpu_fraction", 0) if row.optional("gpu_fraction") else 0.0
    if not name:
        raise row.error("job_id", "is empty")
    if gpus != int(gpus):
        raise row.error("num_gpus", f"{gpus:g} is not a whole number")
    if duration_s == 0:
        raise row.error("duration_s", "must be more than 0")
    if fraction > 1:
        raise row.error("gpu_fraction", f"must be at most 1, not {fraction:g}")
    queue = row.optional("vc") or default_queue
    return TraceJob(name, row.number("submit_time_s", 0), duration_s, int(gpus), fraction, queue)
