"""Reads a site's own measurements, which join the data that models are trained on. Fits nothing and guesses nothing.

A folder holds one of these files or several, each with a header. Further columns are ignored.

* `pairs.csv`: two jobs on one GPU, as `placewise profile --device cuda` writes it. Needs gpu_type, model_a, batch_a,
  model_b, batch_b, norm_a, norm_b (speed beside the other over speed alone, above 0 and at most 1.2); optional are
  tput_a_alone and tput_b_alone (steps per second).
* `steps.csv`: steps of data-parallel jobs. Needs gpu_type, model, placement (GPUs per node, a digit for each node),
  local_batch, step_time_s; optional is params_millions.
* `subtasks.csv`: metrics of kinds of subtasks. Needs kind, and one column of METRICS or more; an empty cell is unknown.
"""

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.model_names import canonical
from placewise_core.domain.traces import TraceError
from placewise_core.subtasks.metrics import METRICS, SPEEDUP
from placewise_core.subtasks.scale import to_unit
from placewise_training.data.measured import GpuPair

PAIRS, STEPS, SUBTASKS, PROVENANCE = "pairs.csv", "steps.csv", "subtasks.csv", "provenance.json"
_PAIR_COLUMNS = ("gpu_type", "model_a", "batch_a", "model_b", "batch_b", "norm_a", "norm_b")
_STEP_COLUMNS = ("gpu_type", "model", "placement", "local_batch", "step_time_s")
_MOST_NORM = 1.2  # a job beside another may seem a little faster than alone, by the noise of short runs
_SOURCE = "site"

# GPU model, canonical model and batch.
Alone = tuple[str, str, float]


@dataclass(frozen=True, slots=True)
class SiteStep:
    """One measured step; `params_millions` is 0 if the file does not say. With `is_bound` it takes at least so long."""

    gpu_type: str
    model: str
    placement: str
    local_batch: float
    step_s: float
    params_millions: float
    is_bound: bool = False


@dataclass(frozen=True, slots=True)
class SiteRows:
    """A site's rows. `alone_s` seconds per step alone of the jobs in `pairs`; `subtasks` metrics by name, of each kind
    the means of its rows; `sha256` by name of file."""

    pairs: tuple[GpuPair, ...] = ()
    steps: tuple[SiteStep, ...] = ()
    alone_s: Mapping[Alone, float] = field(default_factory=dict)
    subtasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)

    def data(self, file: str) -> dict[str, str]:
        """The hash of a file for a report, and by it for the manifest of a bundle; empty if the folder lacks it."""
        return {f"measured/{name}": found for name, found in self.sha256.items() if name in (file, PROVENANCE)}

    def subtask_matrix(self) -> FloatArray:
        """(kinds, METRICS) in [0, 1], NaN where unknown."""
        return np.array([to_unit(metrics) for metrics in self.subtasks.values()]).reshape(-1, len(METRICS))


NO_ROWS = SiteRows()


def read_site_rows(folder: Path | None) -> SiteRows:
    """Every row of the folder; none without a folder.

    Raises TraceError, which names file, line and column, also for a folder that holds none of the files, and for pairs
    that were profiled on CPU cores; OSError.
    """
    if folder is None:
        return NO_ROWS
    files = [name for name in (PAIRS, STEPS, SUBTASKS) if (folder / name).is_file()]
    if not files:
        raise TraceError(str(folder), 1, 1, "", f"holds none of {PAIRS}, {STEPS}, {SUBTASKS}")
    pairs: list[GpuPair] = []
    steps: list[SiteStep] = []
    alone_s: dict[Alone, float] = {}
    if PAIRS in files:
        _check_device(folder)
        for row in _rows(folder / PAIRS, _PAIR_COLUMNS):
            pairs.append(_pair(row))
            alone_s |= _alone(row, pairs[-1])
    if STEPS in files:
        steps = [_step(row) for row in _rows(folder / STEPS, _STEP_COLUMNS)]
    subtasks = _subtasks(folder / SUBTASKS) if SUBTASKS in files else {}
    kept = [*files, *([PROVENANCE] if (folder / PROVENANCE).is_file() else [])]
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in kept}
    return SiteRows(tuple(pairs), tuple(steps), alone_s, subtasks, hashes)


@dataclass(frozen=True, slots=True)
class _CsvRow:
    file: str
    line: int
    columns: Sequence[str]
    values: Mapping[str, str]

    def error(self, column: str, problem: str) -> TraceError:
        return TraceError(self.file, self.line, 1 + self.columns.index(column), column, problem)

    def text(self, column: str) -> str:
        """Raises TraceError if it is empty."""
        if not self.values[column].strip():
            raise self.error(column, "is empty")
        return self.values[column].strip()

    def number(self, column: str, most: float = math.inf, *, may_be_zero: bool = False) -> float:
        """Above 0, or 0 if it may be; at most `most`. Raises TraceError."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a number") from None
        if not 0.0 <= value <= most or (value == 0.0 and not may_be_zero) or not math.isfinite(value):
            least, limit = (
                "from 0 on" if may_be_zero else "above 0",
                "" if most == math.inf else f" and at most {most:g}",
            )
            raise self.error(column, f"{text} is not a finite number {least}{limit}")
        return value

    def optional(self, column: str) -> float:
        """0 if the file has no such column, or no value in it."""
        return self.number(column) if self.values.get(column, "").strip() else 0.0


def _rows(path: Path, needed: Sequence[str]) -> Iterator[_CsvRow]:
    """Raises TraceError for another header, a row of another length, or no rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(str(path), 1, 1, "", f"is not UTF-8 text: {error.reason}") from None
    reader = csv.reader(io.StringIO(text))
    columns = [name.strip() for name in next(reader, [])]
    for name in needed:
        if name not in columns:
            raise TraceError(str(path), 1, 1, name, f"no such column in the header; needed: {', '.join(needed)}")
    count = 0
    for values in reader:
        if not values:
            continue
        if len(values) != len(columns):
            problem = f"the row has {len(values)} fields, the header {len(columns)}"
            raise TraceError(str(path), reader.line_num, 1, "", problem)
        count += 1
        yield _CsvRow(str(path), reader.line_num, columns, dict(zip(columns, values, strict=True)))
    if not count:
        raise TraceError(str(path), 1, 1, "", "no rows")


def _pair(row: _CsvRow) -> GpuPair:
    return GpuPair(
        source=_SOURCE,
        gpu_type=row.text("gpu_type"),
        model_a=row.text("model_a"),
        batch_a=row.number("batch_a"),
        model_b=row.text("model_b"),
        batch_b=row.number("batch_b"),
        norm_a=row.number("norm_a", _MOST_NORM),
        norm_b=row.number("norm_b", _MOST_NORM),
    )


def _alone(row: _CsvRow, pair: GpuPair) -> dict[Alone, float]:
    found = {}
    for side, model, batch in (("a", pair.model_a, pair.batch_a), ("b", pair.model_b, pair.batch_b)):
        rate = row.optional(f"tput_{side}_alone")
        if rate:
            found[pair.gpu_type, canonical(model), batch] = 1.0 / rate
    return found


def _step(row: _CsvRow) -> SiteStep:
    placement = row.text("placement")
    if not (placement.isdecimal() and "0" not in placement):
        raise row.error("placement", f"{placement!r} is not a digit from 1 to 9 for each node")
    return SiteStep(
        gpu_type=row.text("gpu_type"),
        model=row.text("model"),
        placement="".join(sorted(placement)),
        local_batch=row.number("local_batch"),
        step_s=row.number("step_time_s"),
        params_millions=row.optional("params_millions"),
    )


def _subtasks(path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in _rows(path, ("kind",)):
        if not set(METRICS) & set(row.columns):
            raise row.error("kind", f"the header has no metric; known: {', '.join(METRICS)}")
        of_kind = found.setdefault(row.text("kind"), {})
        for name in METRICS:
            if row.values.get(name, "").strip():
                most = math.inf if name == SPEEDUP else 1.0
                of_kind.setdefault(name, []).append(row.number(name, most, may_be_zero=True))
    return {kind: {name: sum(v) / len(v) for name, v in metrics.items()} for kind, metrics in found.items()}


def _check_device(folder: Path) -> None:
    """Pairs of training loops on CPU cores say nothing about a GPU."""
    path = folder / PROVENANCE
    if not path.is_file():
        return
    try:
        device = json.loads(path.read_text("utf-8"))["settings"]["device"]
    except (ValueError, KeyError, TypeError):
        return  # a file written by hand need not name the device
    if device == "cpu":
        raise TraceError(str(path), 1, 1, "device", "these pairs were profiled on CPU cores: use --device cuda")
