"""Cluster traces as workloads: reads the CSV schema, refuses malformed rows by file, line and column, maps to models.

No trace says what a job trains. `TraceMapping` states the assumption: a seeded draw from a table by GPU count.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from placewise_core.job import Architecture, Job, JobId, Resources
from placewise_training.sim.jobs import SimJob, demand_signature, elastic, gang
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.workloads import EXPECTED_LATENCIES, draw_priority, sized

REQUIRED_COLUMNS = ("job_id", "submit_time_s", "duration_s", "num_gpus")
SHIPPED = {"philly": "philly_cut.csv", "ms_itp": "ms_itp_cut.csv"}


class TraceError(ValueError):
    """A trace that cannot be read. The message names file, line and column."""

    exit_code = 6  # malformed input, in the command line's table of exit codes

    def __init__(self, file: str, line: int, column: str, problem: str) -> None:
        super().__init__(f"{file}, line {line}, column {column}: {problem}")
        self.file, self.line, self.column = file, line, column


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One row: what was asked for, and how long it ran. `gpu_fraction` 0 where the source has none."""

    job_id: str
    submit_time_s: float
    duration_s: float
    gpus: int
    gpu_fraction: float = 0.0
    queue: str = ""


class _Row:
    """Typed access to one CSV row that knows where it stands."""

    def __init__(self, file: str, line: int, values: Mapping[str, str]) -> None:
        self._file, self._line, self._values = file, line, values

    def fail(self, column: str, problem: str) -> TraceError:
        return TraceError(self._file, self._line, column, problem)

    def text(self, column: str) -> str:
        value = self._values.get(column, "").strip()
        if not value:
            raise self.fail(column, "is empty")
        return value

    def optional(self, column: str) -> str:
        return self._values.get(column, "").strip()

    def number(self, column: str, least: float, *, is_optional: bool = False) -> float:
        raw = self._values.get(column, "").strip()
        if not raw and is_optional:
            return 0.0
        try:
            value = float(raw)
        except ValueError:
            raise self.fail(column, f"is not a number: {raw!r}") from None
        if not math.isfinite(value) or value < least:
            raise self.fail(column, f"must be a finite number of at least {least:g}, not {raw}")
        return value

    def whole(self, column: str, least: int) -> int:
        value = self.number(column, least)
        if value != int(value):
            raise self.fail(column, f"must be a whole number, not {value:g}")
        return int(value)


def read_trace(path: str | Path) -> list[TraceJob]:
    """Every job of the file, or of a shipped cut ("philly", "ms_itp"), by submission. Raises TraceError, OSError."""
    name = str(path)
    if name in SHIPPED:
        text = resources.files("placewise_training.data").joinpath("open", SHIPPED[name]).read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TraceError(name, 1, "(file)", f"is not UTF-8 text: {error.reason} at byte {error.start}") from None
    return parse_trace(text, name)


def parse_trace(text: str, file: str) -> list[TraceJob]:
    """As read_trace, from text."""
    reader = csv.reader(io.StringIO(text), strict=True)
    jobs: list[TraceJob] = []
    seen: dict[str, int] = {}
    try:
        header = [name.strip().lstrip("\ufeff") for name in next(reader, [])]
        _check_header(header, file)
        for values in reader:
            line = reader.line_num
            if not values:
                continue
            if len(values) != len(header):
                raise TraceError(
                    file,
                    line,
                    header[min(len(values), len(header) - 1)],
                    f"the row has {len(values)} fields, the header {len(header)}",
                )
            job = _trace_job(_Row(file, line, dict(zip(header, values, strict=True))))
            if job.job_id in seen:
                raise TraceError(file, line, "job_id", f"{job.job_id!r} was already used in line {seen[job.job_id]}")
            seen[job.job_id] = line
            jobs.append(job)
    except csv.Error as error:
        raise TraceError(file, reader.line_num, "(row)", str(error)) from None
    return sorted(jobs, key=lambda job: job.submit_time_s)


def _check_header(header: Sequence[str], file: str) -> None:
    for column in REQUIRED_COLUMNS:
        if column not in header:
            raise TraceError(file, 1, column, f"is missing; a trace needs {', '.join(REQUIRED_COLUMNS)}")


def _trace_job(row: _Row) -> TraceJob:
    fraction = row.number("gpu_fraction", 0.0, is_optional=True)
    if fraction > 1:
        raise row.fail("gpu_fraction", f"must be at most 1, not {fraction:g}")
    duration_s = row.number("duration_s", 0.0)
    if duration_s == 0:
        raise row.fail("duration_s", "must be more than 0")
    return TraceJob(
        job_id=row.text("job_id"),
        submit_time_s=row.number("submit_time_s", 0.0),
        duration_s=duration_s,
        gpus=row.whole("num_gpus", 1),
        gpu_fraction=fraction,
        queue=row.optional("vc"),
    )


# (most GPUs, models with their weights): small jobs are mostly convolutional and recurrent, large ones transformers.
MODEL_MIX: Sequence[tuple[float, Mapping[str, float]]] = (
    (1, {"resnet50": 3, "resnet18": 2, "lstm": 2, "vgg16": 1, "seq2seq": 1, "deepspeech2": 1}),
    (8, {"resnet50": 3, "vgg16": 2, "seq2seq": 2, "bert": 2, "deepspeech2": 1}),
    (math.inf, {"bert": 3, "gpt2": 2, "resnet50": 2, "transformer": 1}),
)


@dataclass(frozen=True, slots=True)
class TraceMapping:
    """How a trace job becomes a simulated one: model drawn by GPU count, one all-reduce worker per GPU.

    `duration_s` of the trace is taken as the time alone, as asked for. Each worker asks for `cores_per_gpu` and
    `memory_gib_per_gpu`. `is_elastic` leaves the GPU count to admission, up to what the trace used or 8.
    `has_classes` draws urgent, prior and normal with the deadlines of the QoS paper.
    """

    gpu_model: str = "P100"
    gpus_per_node: int = 8
    cores_per_gpu: float = 4.0
    memory_gib_per_gpu: float = 24.0
    mix: Sequence[tuple[float, Mapping[str, float]]] = MODEL_MIX
    is_elastic: bool = False
    has_classes: bool = False

    def generate(self, jobs: Sequence[TraceJob], truth: ComposedSpeed, seed: int) -> Iterator[SimJob]:
        """The jobs one by one, from time 0 on; nothing is kept of those passed on."""
        rng = np.random.default_rng((seed, 3))
        start_s = jobs[0].submit_time_s if jobs else 0.0
        for number, job in enumerate(jobs):
            yield self._job(job, number, job.submit_time_s - start_s, truth, rng)

    def model(self, gpus: int, rng: np.random.Generator) -> str:
        """A model for a job of that many GPUs."""
        weights = next(table for most, table in self.mix if gpus <= most)
        point = rng.random() * sum(weights.values())
        for name, weight in weights.items():
            point -= weight
            if point < 0:
                return name
        return next(iter(weights))

    def _job(
        self, row: TraceJob, number: int, submit_s: float, truth: ComposedSpeed, rng: np.random.Generator
    ) -> SimJob:
        model = self.model(row.gpus, rng)
        profile = truth.catalogue[model]
        is_fraction = 0 < row.gpu_fraction < 1
        demand = Resources(
            cpu_cores=self.cores_per_gpu,
            gpus=row.gpu_fraction if is_fraction else 1.0,
            memory_gib=self.memory_gib_per_gpu,
        )
        job = Job(
            id=JobId(row.job_id),
            model=model,
            architecture=Architecture.ALL_REDUCE if row.gpus > 1 else Architecture.SINGLE,
            groups=gang(row.gpus, worker_demand=demand),
            batch_size=profile.local_batch * row.gpus,
            queue=row.queue,
            submit_time_s=submit_s,
            params_millions=profile.params_millions,
        )
        made = sized(job, row.duration_s, truth, self.gpu_model, self.gpus_per_node, number)
        return self._extended(made, row, rng) if self.is_elastic or self.has_classes else made

    def _extended(self, made: SimJob, row: TraceJob, rng: np.random.Generator) -> SimJob:
        if self.has_classes:
            priority = draw_priority(rng)
            made.job = replace(made.job, priority=priority)
            made.deadline_s = made.submit_time_s + EXPECTED_LATENCIES[priority] * made.job.single_gpu_s
        if self.is_elastic:
            per_gpu = Resources(cpu_cores=self.cores_per_gpu, memory_gib=self.memory_gib_per_gpu)
            made.job = elastic(made.job, max(8, row.gpus), per_gpu)
            made.signature = demand_signature(made.job)
        return made
