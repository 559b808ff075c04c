"""How right a short profile is: metrics of a few seconds beside those of a long run of the same loop. Judges nothing.

IAWP's Table 3 reads hardware counters of a GPU. Here the same question goes to figures of any loop: cores in use,
host memory, and steps per CPU second (which leaves out turns on the cores, and with them other work on the machine).
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewise_training.profiling.workers import Reading, Workers

COLUMNS = ("hardware", "model", "metric", "repeat", "short_s", "long_s", "short", "long")


@dataclass(frozen=True, slots=True)
class ShortRow:
    """One metric of one loop, by the short profile and by the long run right after it."""

    model: str
    metric: str
    repeat: int
    short: float
    long: float


def compare(
    names: Sequence[str],
    device: str,
    cores: tuple[int, ...],
    short_s: float,
    long_s: float,
    repeats: int,
    progress: Callable[[str], None] = lambda what: None,
) -> list[ShortRow]:
    """Every loop, `repeats` times: short, then long, each from its own start. Ctrl-C ends it with what there is."""
    rows: list[ShortRow] = []
    try:
        for repeat in range(repeats):
            for name in names:
                progress(f"{name}, {short_s:g} against {long_s:g} s")
                with Workers(1, device, cores) as workers:  # a process of its own: memory is a process' peak
                    short = workers.measure([name], short_s)[0]
                with Workers(1, device, cores) as workers:
                    long = workers.measure([name], long_s)[0]
                rows += rows_of(name, repeat, short, long)
    except KeyboardInterrupt:
        pass
    return rows


def rows_of(name: str, repeat: int, short: Reading, long: Reading) -> Iterator[ShortRow]:
    """One row per metric that both readings have."""
    for metric, a, b in zip(METRICS, _metrics(short), _metrics(long), strict=True):
        if b > 0:
            yield ShortRow(name, metric, repeat, a, b)


METRICS = ("cpu", "host_memory_gib", "steps_per_cpu_s", "gpu_memory")


def _metrics(reading: Reading) -> tuple[float, float, float, float]:
    return (
        reading.cpu_share,
        reading.resident_gib,
        reading.steps_per_s / max(1e-6, reading.cpu_share),
        reading.gpu_memory_share,
    )


def write_short(rows: Sequence[ShortRow], path: Path, hardware: str, short_s: float, long_s: float) -> None:
    """One line per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in rows:
            figures = (f"{row.short:.6g}", f"{row.long:.6g}")
            writer.writerow([hardware, row.model, row.metric, row.repeat, f"{short_s:g}", f"{long_s:g}", *figures])
