"""One job as a token (tables.JOB_COLUMNS and LINEAR_SPEED_COLUMNS), and where its tasks are. Knows no nodes.

A job's declaration never changes, and the facts about a running one change only with its reports: both are encoded
once and remembered.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from placewise_core.basics.arrays import Float32
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Architecture, Job, JobId, Priority, Role
from placewise_core.domain.model_names import canonical, nearest
from placewise_core.inputs.tables import (
    JOB_COLUMNS,
    JOB_FEATURES,
    LINEAR_SPEED_COLUMNS,
    MODEL_VOCABULARY,
    STATIC_JOB_FEATURES,
)
from placewise_core.speed.linear_speed import linear_minutes, reported_speed, worker_step_ms, workers_of

_REMEMBERED = 20_000
_MINUTES_SCALE, _STEP_SCALE = LINEAR_SPEED_COLUMNS[1].scale, LINEAR_SPEED_COLUMNS[3].scale
_SCALE = {column.name: column.scale for column in JOB_COLUMNS}
_STATIC_SCALES = np.asarray([column.scale for column in JOB_COLUMNS[:STATIC_JOB_FEATURES]])
_FEW_SCALE, _NODES_SCALE = _SCALE["placed_workers"], _SCALE["nodes_used"]


_encoded_last: Bounded[JobId, tuple[Job, Float32]] = Bounded(64)


def encode_job(job: Job) -> Float32:
    """(STATIC_JOB_FEATURES,) features of a job before it is placed. Do not write: the nets that look at a job one after
    the other share them."""
    found = _encoded_last.get(job.id)
    if found is None or found[0] is not job:
        found = _encoded_last[job.id] = (job, _encoded(job))
    return found[1]


def _encoded(job: Job) -> Float32:
    workers = [g for g in job.groups if g.role is Role.WORKER]
    servers = [g for g in job.groups if g.role is Role.PARAMETER_SERVER]
    worker, server = (groups[0].demand if groups else None for groups in (workers, servers))
    values = [
        *_model_columns(job.model),
        *_ARCHITECTURES[job.architecture],
        *_PRIORITIES[job.priority],
        sum(g.count for g in workers),
        *(
            (worker.cpu_cores, worker.gpus, worker.memory_gib, worker.gpu_memory_gib)
            if worker
            else (0.0, 0.0, 0.0, 0.0)
        ),
        sum(g.count for g in servers),
        *((server.cpu_cores, server.memory_gib) if server else (0.0, 0.0)),
        math.log1p(max(0.0, job.params_millions)),
        math.log1p(max(0, job.batch_size)),
        math.log1p(max(0.0, job.total_epochs)),
        job.gpu_sharing.allowed,
    ]
    return np.asarray(np.array(values, dtype=np.float64) * _STATIC_SCALES, dtype=np.float32)


@lru_cache(maxsize=4096)
def _model_columns(model: str) -> tuple[float, ...]:
    """One-hot of the nearest measured model, and whether `model` is that model."""
    name = nearest(model, MODEL_VOCABULARY) if model else None
    is_known = name is not None and name == canonical(model)
    return (*(float(known == name) for known in MODEL_VOCABULARY), float(is_known))


_ARCHITECTURES = {kind: tuple(float(kind is other) for other in Architecture) for kind in Architecture}
_PRIORITIES = {priority: tuple(float(priority is other) for other in Priority) for priority in Priority}


# A job's tasks of one role on one node: node row, role (0 worker, 1 parameter server), number of tasks.
Cell = tuple[int, int, int]


@frozen
class Held:
    """The nodes of a job's tasks. `summary`: the encoded workers, servers and nodes."""

    assignments: Sequence[Assignment]
    index: Mapping[str, int]
    cells: Sequence[Cell]
    summary: tuple[float, float, float]

    @classmethod
    def of(cls, assignments: Sequence[Assignment], index: Mapping[str, int]) -> "Held":
        """Counts tasks by node and role. `index`: node id → row; tasks on other nodes are skipped."""
        counted: dict[tuple[int, int], int] = {}
        in_role = [0, 0]
        for assignment in assignments:
            m = index.get(assignment.node)
            if m is not None:
                cell = (m, int(assignment.role is not Role.WORKER))
                counted[cell] = counted.get(cell, 0) + 1
                in_role[cell[1]] += 1
        cells = [(m, role, n) for (m, role), n in counted.items()]
        nodes = len(cells) if not in_role[1] else len({m for m, _ in counted})
        summary = (_FEW_SCALE * in_role[0], _FEW_SCALE * in_role[1], _NODES_SCALE * nodes)
        return cls(assignments, index, cells, summary)


NOWHERE = Held((), {}, (), (0.0, 0.0, 0.0))


@frozen
class _LinearSpeed:
    """A job's declared length: minutes at its linear speed, and its encoded step. 0: unknown."""

    minutes: float
    step: float

    @classmethod
    def of(cls, job: Job) -> "_LinearSpeed":
        step_ms = worker_step_ms(job, workers_of(job))
        return cls(linear_minutes(job), math.log1p(step_ms) * _STEP_SCALE)

    def columns(self, left: float, speed: float) -> tuple[float, ...]:
        """LINEAR_SPEED_COLUMNS with `left` of the work to do and a reported speed (0: none)."""
        minutes = math.log1p(self.minutes * left) * _MINUTES_SCALE
        return (self.minutes > 0.0, minutes, self.step > 0.0, self.step, speed > 0.0, speed)


class JobTokens:
    """Makes tokens of new jobs; keeps those of running ones in one block, a row each, until something changes."""

    def __init__(self) -> None:
        self._static: Bounded[JobId, tuple[Job, Float32, _LinearSpeed]] = Bounded(_REMEMBERED)
        self._running = _Block()

    def of_new(self, job: Job, held: Held, *, is_current: bool) -> Float32:
        """(JOB_FEATURES,) token of a job of the batch, of which `held` is tentatively placed. A new array."""
        static, linear_speed = self._static_of(job)
        row = static.copy()
        row[STATIC_JOB_FEATURES:] = (1.0, is_current, *held.summary, 1.0, *linear_speed.columns(1.0, 0.0))
        return row

    def of_running(self, running: Sequence[RunningJob], index: Mapping[str, int]) -> tuple[Float32, Sequence[Held]]:
        """Tokens (n, JOB_FEATURES) of running jobs, and the nodes of each job's tasks. `index`: node id → row."""
        if len(self._running.slots) > _REMEMBERED:  # job ids never come back: without a bound the memory would fill
            self._running = _Block()
        kept, at = self._running, []
        for job in running:
            slot = kept.slots.get(job.id, -1)
            if slot < 0 or kept.seen[slot] is not job or kept.held[slot].index is not index:
                slot = self._renew(job, index)
            at.append(slot)
        return kept.rows[at], [kept.held[slot] for slot in at]

    def _renew(self, running: RunningJob, index: Mapping[str, int]) -> int:
        kept = self._running
        slot = kept.slot_of(running)
        held = kept.held[slot]
        if held.assignments is not running.assignments or held.index is not index:
            held = kept.held[slot] = Held.of(running.assignments, index)
        row = kept.rows[slot]
        row[:], linear_speed = self._static_of(running.job)
        left = 1.0
        if running.job.total_epochs > 0:
            left = min(1.0, max(0.0, 1.0 - running.epochs_done / running.job.total_epochs))
        row[STATIC_JOB_FEATURES:] = (
            0.0,
            0.0,
            *held.summary,
            left,
            *linear_speed.columns(left, reported_speed(running)),
        )
        return slot

    def _static_of(self, job: Job) -> tuple[Float32, _LinearSpeed]:
        """The job's token (JOB_FEATURES,) with 0 beyond the static features, and its declared length. Do not write."""
        found = self._static.get(job.id)
        if found is None or found[0] is not job:
            row = np.zeros(JOB_FEATURES, dtype=np.float32)
            row[:STATIC_JOB_FEATURES] = encode_job(job)
            found = self._static[job.id] = (job, row, _LinearSpeed.of(job))
        return found[1], found[2]


class _Block:
    """Rows by slot. A slot belongs to one job; it keeps the job and its nodes as they were last encoded."""

    def __init__(self) -> None:
        self.slots: dict[JobId, int] = {}
        self.seen: list[RunningJob] = []
        self.held: list[Held] = []
        self.rows: Float32 = np.zeros((64, JOB_FEATURES), dtype=np.float32)

    def slot_of(self, running: RunningJob) -> int:
        """The job's own slot, or a new one."""
        slot = self.slots.setdefault(running.id, len(self.slots))
        if slot == len(self.seen):
            self.seen.append(running)
            self.held.append(NOWHERE)
            if slot == len(self.rows):
                self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
        self.seen[slot] = running
        return slot
