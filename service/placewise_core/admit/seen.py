"""The shapes of jobs as a policy knew them when it decided, for the decision log. Decides nothing.

A policy notes how to work it out. It is worked out once the answer has gone, from the numbers that the policy had.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.decision import DriftPlusPenalty, ShapeScore

MOST_SHAPES: Final = 64  # of a job, in the log
_COLUMNS: Final = 4


@final
@frozen
class ShapeTable:
    """Shapes that jobs of one kind may start with: `rows` are little-endian float64 (K, 4) with nodes, GPUs per node,
    speed over that on one GPU, and computation/expense ratio; fewest GPUs first, K ≤ 64. `few_gpus` and `few_speedups`
    are those of the shapes on the fewest nodes, 64 at most."""

    rows: bytes
    few_gpus: tuple[int, ...]
    few_speedups: tuple[float, ...]


@final
@frozen
class JobShapes:
    """One job in the tables of its record, by index. Table `fitted` has the shapes that fitted when the job had its
    turn. `scores` are S(n) of the shapes on the fewest nodes of table `scored`, for a job that started. `single_s` are
    the expected seconds on one GPU, `startup_s` those of them in which no GPU computes."""

    single_s: float
    startup_s: float
    fitted: int
    scored: int = -1
    scores: tuple[float, ...] = ()


@final
@frozen
class Seen:
    """The known shapes. `scores` are S(n) and C(n) of a policy whose C(n) does not follow from a table."""

    tables: tuple[ShapeTable, ...] = ()
    jobs: Mapping[str, JobShapes] = field(default_factory=dict)
    scores: Mapping[str, tuple[DriftPlusPenalty, ...]] = field(default_factory=dict)


@final
@dataclass(slots=True)
class ShapeNotes:
    """The policy of one decision leaves here a function that works out its shapes."""

    work_out: Callable[[], Seen] = Seen


@final
class Tables:
    """The tables of one record, each once."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self.all: list[ShapeTable] = []

    def index(self, table: ShapeTable) -> int:
        """Its place among them."""
        found = self._index.setdefault(id(table), len(self.all))
        if found == len(self.all):
            self.all.append(table)
        return found


def table_of(
    nodes: IntArray, gpus_per_node: IntArray, speedups: FloatArray, cer: FloatArray, few: tuple[tuple[int, float], ...]
) -> ShapeTable:
    """The table of these shapes (K,); `few` has GPUs and speed of each one on the fewest nodes."""
    columns = [each[:MOST_SHAPES] for each in (nodes, gpus_per_node, speedups, cer)]
    rows = np.column_stack(columns).astype("<f8", copy=False)
    first = few[:MOST_SHAPES]
    return ShapeTable(rows.tobytes(), tuple([gpus for gpus, _ in first]), tuple([speed for _, speed in first]))


def shape_scores(tables: tuple[ShapeTable, ...], job: JobShapes) -> tuple[ShapeScore, ...]:
    """The shapes that fitted the job, with seconds and computation/expense ratio."""
    rows = np.frombuffer(tables[job.fitted].rows, dtype="<f8").reshape(-1, _COLUMNS).tolist()
    return tuple([ShapeScore(int(nodes), int(each), _seconds(job, speed), cer) for nodes, each, speed, cer in rows])


def drift_scores(tables: tuple[ShapeTable, ...], job: JobShapes) -> tuple[DriftPlusPenalty, ...]:
    """S(n) and C(n) of the shapes that were compared for the job, after those of WAIT."""
    if not job.scores:
        return ()
    table = tables[job.scored]
    rows = zip(table.few_gpus, job.scores, table.few_speedups, strict=True)
    found = [DriftPlusPenalty(gpus, value, _seconds(job, speed)) for gpus, value, speed in rows]
    return (DriftPlusPenalty(0, 0.0, 0.0), *found)


def _seconds(job: JobShapes, speedup: float) -> float:
    """Equation (4) of the QoS-aware paper, as ThroughputModel.latency_at."""
    return (job.single_s - job.startup_s) / speedup + job.startup_s
