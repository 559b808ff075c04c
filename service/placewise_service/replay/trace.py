"""Reads traces of jobs (CSV). Guesses nothing: what is malformed is named with file, line and column."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from placewise_core.frozen import frozen
from placewise_service.commands.exits import BadInputError

REQUIRED = ("job_id", "submit_time_s", "duration_s", "num_gpus")
DEFAULT_QUEUE = "default"


@frozen
class TraceJob:
    """One job of a trace: times in seconds of the trace, whole GPUs, and the queue (virtual cluster) it came from."""

    id: str
    submit_s: float
    duration_s: float
    gpus: int
    queue: str


@frozen
class _Line:
    """One record with where it stands, for errors."""

    source: str
    number: int
    text: str
    values: dict[str, str]
    columns: Sequence[str]

    def bad(self, column: str, message: str) -> BadInputError:
        return BadInputError(self.source, f"{column}: {message}", self.number, self._position(column))

    def number_of(self, column: str, *, least: float) -> float:
        """A finite number of at least `least`. Raises BadInputError."""
        text = self.values[column].strip()
        try:
            value = float(text)
        except ValueError:
            raise self.bad(column, f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < least:
            raise self.bad(column, f"{text} is not a finite number of at least {least:g}")
        return value

    def _position(self, column: str) -> int:
        """1-based character where the field begins (exact unless an earlier field is quoted)."""
        fields = self.text.split(",")
        return 1 + sum(len(field) + 1 for field in fields[: self.columns.index(column)])


def read_trace(path: Path) -> list[TraceJob]:
    """The jobs in order of submission. Raises BadInputError.

    Needs the columns job_id, submit_time_s, duration_s (> 0) and num_gpus (≥ 1, whole); `vc` names the queue; others
    are ignored.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(str(path), str(error)) from None
    jobs: dict[str, TraceJob] = {}
    for line in _lines(text, str(path)):
        job = _job(line)
        if job.id in jobs:
            raise line.bad("job_id", f"{job.id!r} stands in the trace twice")
        jobs[job.id] = job
    if not jobs:
        raise BadInputError(str(path), "no jobs", 1, 1)
    return sorted(jobs.values(), key=lambda job: (job.submit_s, job.id))


def _lines(text: str, source: str) -> Iterator[_Line]:
    raw = text.splitlines()
    reader = csv.reader(raw)
    columns = next(reader, [])
    for name in REQUIRED:
        if name not in columns:
            raise BadInputError(source, f"no column {name!r} in the header; needed: {', '.join(REQUIRED)}", 1, 1)
    for values in reader:
        if not values:
            continue
        number = reader.line_num
        if len(values) != len(columns):
            short = min(len(values), len(columns))
            position = 1 + sum(len(value) + 1 for value in values[:short])
            message = f"{len(values)} fields where the header has {len(columns)}"
            raise BadInputError(source, message, number, position)
        yield _Line(source, number, raw[number - 1], dict(zip(columns, values, strict=True)), columns)


def _job(line: _Line) -> TraceJob:
    job_id = line.values["job_id"].strip()
    if not job_id:
        raise line.bad("job_id", "empty")
    gpus = line.number_of("num_gpus", least=1)
    if gpus != int(gpus):
        raise line.bad("num_gpus", f"{gpus:g} is not a whole number")
    duration_s = line.number_of("duration_s", least=0)
    if duration_s == 0:
        raise line.bad("duration_s", "a job of no length")
    return TraceJob(
        id=job_id,
        submit_s=line.number_of("submit_time_s", least=0),
        duration_s=duration_s,
        gpus=int(gpus),
        queue=line.values.get("vc", "").strip() or DEFAULT_QUEUE,
    )
