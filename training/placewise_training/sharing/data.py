"""Measured GPU sharing as rows to complete: jobs on one GPU model, their speeds beside reference models. Completes
nothing.

A row is a job (network, batch) on one GPU model (Gavel: K80 and V100), or one of this project's own training loops on
CPU cores. Its columns are those of speed.sharing_row: own speed beside each reference network, that network's speed,
speed beside another job of the same network, and seconds per step alone (Gavel's single-GPU rates, whose ratios are the
speedups). A partner is named without its batch, as a scheduler knows it: a cell has as many values as batches of the
partner were measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.model_names import canonical, nearest
from placewise_core.speed.interference import MeasuredInterference
from placewise_core.speed.sharing_row import Square
from placewise_training.data.measured import GpuPair, gpu_pairs, isolated_steps, profiled_sets
from placewise_training.data.placement_tables import interference, usable_pairs
from placewise_training.data.site_rows import NO_ROWS, SiteRows

Matrix = NDArray[np.float64]
NO_STEPS: Mapping[tuple[str, str, float], float] = MappingProxyType({})
CPU_CORES = "CPU cores"  # the hardware of the profiler's rows

# A partner, speeds of the job and of the partner, and which of them are bounds.
_Cell = tuple[str, tuple[float, float], tuple[bool, bool]]
_VALUES = (False, False)

# The network that each of the profiler's loops is a small copy of, by character (profiling/workloads.py); the loop
# that waits for its input is like none of them.
LOOPS = {
    "convolutional": "resnet18",
    "recurrent": "lm",
    "transformer": "transformer",
    "embedding": "recommendation",
    "input_bound": "input_bound",
}


@dataclass(frozen=True, slots=True)
class SharedJob:
    """One row: `pairs` (P + 1, K, 2) own speed and the partner's beside each reference network and, last, beside the
    job's own; NaN if no batch of the partner was measured. Where `is_bound` (P + 1, K, 2), the speed is at most this.
    `step_s` alone; NaN if it was not measured."""

    hardware: str
    network: str
    batch: float
    step_s: float
    pairs: Matrix
    is_bound: NDArray[np.bool_]

    @property
    def job(self) -> tuple[str, float]:
        """Network and batch."""
        return self.network, self.batch

    @property
    def batches(self) -> NDArray[np.int64]:
        """(P + 1,) how many batches of each partner were measured."""
        counts: NDArray[np.int64] = (~np.isnan(self.pairs[:, :, 0])).sum(axis=1)
        return counts


def without_networks(pairs: Iterable[GpuPair], networks: set[str]) -> list[GpuPair]:
    """Pairs that none of these networks is part of."""
    return [p for p in pairs if not networks & {canonical(p.model_a), canonical(p.model_b)}]


def without_jobs(pairs: Iterable[GpuPair], jobs: set[tuple[str, float]]) -> list[GpuPair]:
    """Pairs that none of these jobs (network, batch) is part of."""
    return [p for p in pairs if not jobs & {(canonical(p.model_a), p.batch_a), (canonical(p.model_b), p.batch_b)}]


def table_of(pairs: Sequence[GpuPair]) -> MeasuredInterference:
    """The table that a service would have that knows these pairs."""
    return MeasuredInterference.from_table(interference(pairs))


def shared_jobs(
    pairs: Iterable[GpuPair], references: Sequence[str], alone_s: Mapping[tuple[str, str, float], float] = NO_STEPS
) -> list[SharedJob]:
    """Every job that is part of one of these pairs; `alone_s` adds steps alone to the published ones."""
    cells: dict[tuple[str, str, float], list[_Cell]] = {}
    for p in pairs:
        a = (p.gpu_type, canonical(p.model_a), p.batch_a)
        b = (p.gpu_type, canonical(p.model_b), p.batch_b)
        cells.setdefault(a, []).append((b[1], (p.norm_a, p.norm_b), (p.is_bound_a, p.is_bound_b)))
        if a != b:
            cells.setdefault(b, []).append((a[1], (p.norm_b, p.norm_a), (p.is_bound_b, p.is_bound_a)))
    alone = {(row.gpu_type, canonical(row.model), row.local_batch): 1.0 / row.steps_per_s for row in isolated_steps()}
    alone |= alone_s
    nan = float("nan")
    return [
        SharedJob(*job, alone.get(job, nan), *_pairs(job[1], found, references)) for job, found in sorted(cells.items())
    ]


def profiled_jobs(references: Sequence[str]) -> list[SharedJob]:
    """The profiler's loops in pairs. Speeds per CPU second, halved: as though the two had had equal shares of the
    cores, which is what sharing a GPU begins with; by the clock, other work on the machine counts (README.md)."""
    cells: dict[str, list[_Cell]] = {}
    for measured in profiled_sets():
        if len(measured.models) != 2:
            continue
        a, b = (LOOPS[name] for name in measured.models)
        own, other = (min(1.0, 0.5 * norm) for norm in measured.cpu_norms)
        cells.setdefault(a, []).append((b, (own, other), _VALUES))
        cells.setdefault(b, []).append((a, (other, own), _VALUES))
    return [
        SharedJob(CPU_CORES, loop, 0.0, float("nan"), *_pairs(loop, found, references))
        for loop, found in sorted(cells.items())
    ]


def _pairs(network: str, found: Sequence[_Cell], references: Sequence[str]) -> tuple[Matrix, NDArray[np.bool_]]:
    by_partner: list[list[_Cell]] = [[] for _ in range(len(references) + 1)]
    for cell in found:
        if cell[0] in references:
            by_partner[references.index(cell[0])].append(cell)
        if cell[0] == network:
            by_partner[-1].append(cell)
    pairs = np.full((len(by_partner), max(1, *map(len, by_partner)), 2), np.nan)
    is_bound = np.zeros(pairs.shape, dtype=np.bool_)
    for i, several in enumerate(by_partner):
        pairs[i, : len(several)] = np.array([speeds for _, speeds, _ in several]).reshape(-1, 2)
        is_bound[i, : len(several)] = np.array([flags for _, _, flags in several], dtype=np.bool_).reshape(-1, 2)
    return np.minimum(pairs, 1.0), is_bound


def as_row(speeds: Matrix, step_s: Matrix) -> Matrix:
    """(…, C) the columns of speed.sharing_row from (…, P + 1, 2) speeds beside each partner and (…,) steps."""
    return np.concatenate([speeds[..., :-1, 0], speeds[..., :-1, 1], speeds[..., -1:, 0], step_s[..., None]], axis=-1)


def as_speeds(rows: Matrix) -> Matrix:
    """(…, P + 1, 2) the inverse of as_row, but for steps; nobody else's speed stands beside the job's own network."""
    count = (rows.shape[-1] - 2) // 2
    own = np.concatenate([rows[..., :count], rows[..., -2:-1]], axis=-1)
    other = np.concatenate([rows[..., count:-2], np.full_like(rows[..., -1:], np.nan)], axis=-1)
    return np.stack([own, other], axis=-1)


@dataclass(frozen=True, slots=True)
class Examples:
    """Jobs to learn from: `speeds` (R, P + 1, K, 2), at most these where `is_bound`; `batches` (R, P + 1), `step_s`
    (R,), and rows that might be assumed of each, `priors` (R, 4, C): of its network, of a network nobody knows, and
    both from the other GPU model."""

    speeds: Matrix
    is_bound: NDArray[np.bool_]
    batches: NDArray[np.int64]
    step_s: Matrix
    priors: Matrix


def examples(
    history: Sequence[GpuPair], *, has_profiled: bool = True, own: SiteRows = NO_ROWS, is_own_alone: bool = False
) -> Examples:
    """Every job of these pairs, the profiler's loops, and the site's own jobs that ran beside a reference network; the
    last alone if asked for. Raises ValueError if none of them has two co-runs then."""
    references = table_of(history).references
    jobs = [job for job in shared_jobs(own.pairs, references, own.alone_s) if job.batches.any()]
    if not is_own_alone:
        jobs = shared_jobs(history, references) + (profiled_jobs(references) if has_profiled else []) + jobs
    elif not any((job.batches > 0).sum() > 1 for job in jobs):
        raise ValueError("the log has no co-runs of one job beside two networks of the table")
    most = max(job.pairs.shape[1] for job in jobs)
    speeds = np.full((len(jobs), len(references) + 1, most, 2), np.nan)
    is_bound = np.zeros(speeds.shape, dtype=np.bool_)
    for i, job in enumerate(jobs):
        speeds[i, :, : job.pairs.shape[1]], is_bound[i, :, : job.pairs.shape[1]] = job.pairs, job.is_bound
    return Examples(
        speeds,
        is_bound,
        batches=np.stack([job.batches for job in jobs]),
        step_s=np.array([job.step_s for job in jobs]),
        priors=np.stack([_assumable(job, history) for job in jobs]),
    )


def _assumable(job: SharedJob, history: Sequence[GpuPair]) -> Matrix:
    """(4, C) rows that a service might assume of the job, that knows it from none of these pairs."""
    table, others = table_of(history), table_of(without_jobs(history, {(job.network, job.batch)}))
    here = table.gpu_of(job.hardware)
    there = next((gpu for gpu in sorted(table.pairs) if gpu != here), here)
    names = table.references
    i = names.index(job.network) if job.network in names else None
    # Where this job is all that was measured of its network, nobody knows the network without it.
    is_known = i is not None and others.references == names and others.pairs.keys() == table.pairs.keys()
    like = nearest(job.network, [name for name in names if name != job.network]) if i is not None else None
    rows = []
    for gpu in (here, there):
        unknown = Square.of(table, gpu).row(None if like is None else names.index(like), without=i)
        rows += [Square.of(others, gpu).row(i) if is_known else unknown, unknown]
    return np.stack(rows)


def floors() -> dict[str, float]:
    """Error that no prediction can go below: of one measurement of K80 pairs against another; and of the best constant
    for each partner, as nobody says with which batch the partner runs."""
    sets: dict[str, dict[tuple[str, float, str, float], tuple[float, float]]] = {}
    for p in gpu_pairs():
        if p.gpu_type == "K80":
            sets.setdefault(p.source, {})[p.model_a, p.batch_a, p.model_b, p.batch_b] = (p.norm_a, p.norm_b)
    one, other = sets.values()
    gaps = [np.abs(np.subtract(one[pair], other[pair])) for pair in one.keys() & other.keys()]
    spread = []
    pairs = usable_pairs()
    for job in shared_jobs(pairs, table_of(pairs).references):
        for speeds in job.pairs[:-1]:
            measured = speeds[~np.isnan(speeds[:, 0])]
            if len(measured) > 1:
                spread.append(np.abs(measured - np.median(measured, axis=0)).ravel())
    return {"sources": float(np.mean(gaps)), "batches_of_partners": float(np.concatenate(spread).mean())}
