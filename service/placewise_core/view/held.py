"""Resources that the running jobs of a view hold, and when each is expected to give them back."""

import math
from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import JobId
from placewise_core.view.heads import expected_ends_s, expected_s
from placewise_core.view.view import ClusterView


@frozen
class HeldAmounts:
    """P rows: a part for each job and node, and some that are none, which never end."""

    rows: IntArray  # (P,) the node of each
    ends: FloatArray  # (P,) the expected end of its job
    demands: FloatArray  # (P, R)
    gpu_end: FloatArray  # (M, G) when each GPU is expected to be idle; 0 if it is, infinite for those that do not exist


@frozen
class _Holder:
    """A job whose resources are in the tables, under its slot: its parts, and its GPUs in the flat (M, G) array."""

    job: RunningJob
    slot: int
    parts: Sequence[int]
    gpus: IntArray


_FEW_CHANGES = 16  # between two questions, beyond which the rest is looked at job by job
_NOBODY, _NEVER = 0, 1  # slots that no job has: of idle GPUs, and of rows that are no part
_MORE = 256  # slots and parts that are made at a time


class _Tables:
    """The resources held, a row for each job and node and the job of each GPU, and the terms of every job's end. Jobs
    come and go one by one: only their own rows are written."""

    def __init__(self, view: ClusterView) -> None:
        self.jobs: dict[JobId, _Holder] = {}
        self.terms: FloatArray = np.zeros((3, 2))  # by slot, as `expected_ends_s` has them
        self.part_slots: IntArray = np.zeros(0, dtype=np.int64)
        self.part_rows: IntArray = np.zeros(0, dtype=np.int64)
        self.demands: FloatArray = np.zeros((0, len(view.usage.free)))
        # (M · G,) of the last job that came; those of GPUs that several shared are not to be relied upon.
        self._gpu_slots: IntArray = np.full(view.nodes.gpu_exists.size, _NOBODY)
        self._is_shared = False
        self._unused_slots: list[int] = []
        self._unused_parts: list[int] = []

    def follow(self, view: ClusterView, before: Sequence[RunningJob], now: Sequence[RunningJob]) -> None:
        """Makes the tables of the jobs that ran `before` those of the jobs that the view has now."""
        gone, come = _changes(before, now)
        known, news = self.jobs, []
        for job in come:
            kept = known.get(job.id)
            if kept is None or kept.job.assignments is not job.assignments:
                news.append((job.id, job))
            elif kept.job is not job:
                self._know(job.id, job, kept.slot, kept.parts, kept.gpus)
        for job_id in [job.id for job in gone if job.id not in view.jobs]:
            self._drop(job_id)
        for job_id, _ in news:
            if job_id in known:
                self._drop(job_id)
        for job_id, job in news:
            self._add(job_id, job, view)

    def _know(self, job_id: JobId, job: RunningJob, slot: int, parts: Sequence[int], gpus: IntArray) -> None:
        self.jobs[job_id] = _Holder(job, slot, parts, gpus)
        self.terms[:, slot] = _terms(job, sum([len(task.gpu_indices) for task in job.assignments]))

    def _drop(self, job_id: JobId) -> None:
        gone = self.jobs.pop(job_id)
        self._unused_slots.append(gone.slot)
        self._unused_parts += gone.parts
        self.part_slots[gone.parts] = _NEVER
        self._gpu_slots[gone.gpus] = _NOBODY

    def _add(self, job_id: JobId, job: RunningJob, view: ClusterView) -> None:
        on, places = _parts(job, view)
        if not self._unused_slots:
            slots = self.terms.shape[1]
            self._unused_slots += range(slots, slots + _MORE)
            self.terms = np.concatenate((self.terms, np.zeros((3, _MORE))), axis=1)
        if len(self._unused_parts) < len(on):
            self._make_parts(max(_MORE, len(on)))
        slot, parts = self._unused_slots.pop(), [self._unused_parts.pop() for _ in on]
        for part, (m, demand) in zip(parts, on.items(), strict=True):
            self.part_slots[part], self.part_rows[part], self.demands[part] = slot, m, demand
        gpus = np.array(places, dtype=np.int64)
        self._gpu_slots[gpus] = slot
        self._know(job_id, job, slot, parts, gpus)

    def ends_s(self, now_s: float) -> FloatArray:
        """(S,) the expected end of each job, by slot."""
        starts_s, declared_s, left_s = self.terms
        ends_s = expected_ends_s(starts_s, declared_s, left_s, now_s)
        ends_s[_NOBODY], ends_s[_NEVER] = 0.0, np.inf
        return ends_s

    def gpu_ends_s(self, view: ClusterView, ends_s: FloatArray) -> FloatArray:
        """(M · G,) when each GPU is expected to be idle: if several share it, after the last of them."""
        if view.usage.shared_gpus:
            self._is_shared = True
            found = np.zeros(view.nodes.gpu_exists.size)
            for known in self.jobs.values():
                np.maximum.at(found, known.gpus, ends_s[known.slot])
            return found
        if self._is_shared:
            self._is_shared = False
            self._gpu_slots[:] = _NOBODY
            for known in self.jobs.values():
                self._gpu_slots[known.gpus] = known.slot
        return ends_s[self._gpu_slots]

    def _make_parts(self, more: int) -> None:
        parts = len(self.part_slots)
        self._unused_parts += range(parts, parts + more)
        self.part_slots = np.concatenate((self.part_slots, np.full(more, _NEVER)))
        self.part_rows = np.concatenate((self.part_rows, np.zeros(more, dtype=np.int64)))
        self.demands = np.concatenate((self.demands, np.zeros((more, self.demands.shape[1]))))


class Holdings:
    """The resources held in a view. Kept from question to question: most running jobs are the same at the next one."""

    def __init__(self) -> None:
        self._layout_stamp = -1
        self._tables: _Tables | None = None
        self._running: Sequence[RunningJob] = ()
        self._now_s = -1.0
        self._held: HeldAmounts | None = None

    def at(self, view: ClusterView, now_s: float) -> HeldAmounts:
        """The resources held now. Do not write."""
        if self._tables is None or self._layout_stamp != view.nodes.layout_stamp:
            self._layout_stamp, self._tables, self._held = view.nodes.layout_stamp, _Tables(view), None
            self._running = ()
        running = tuple(view.jobs.values())
        has_changed = self._held is None or running != self._running
        if has_changed:
            self._tables.follow(view, self._running, running)
            self._running = running
        if self._held is None or has_changed or self._now_s != now_s:
            self._now_s = now_s
            self._held = _collected(self._tables, view, now_s)
        return self._held


def _collected(tables: _Tables, view: ClusterView, now_s: float) -> HeldAmounts:
    ends_s = tables.ends_s(now_s)
    gpu_end = tables.gpu_ends_s(view, ends_s).reshape(view.nodes.gpu_exists.shape)
    gpu_end[~view.nodes.gpu_exists] = np.inf
    return HeldAmounts(tables.part_rows, ends_s[tables.part_slots], tables.demands, gpu_end)


def _changes(
    before: Sequence[RunningJob], now: Sequence[RunningJob]
) -> tuple[Sequence[RunningJob], Sequence[RunningJob]]:
    """The jobs of `before` that are not in `now`, or are others there, and those of `now` that are not in `before`.
    Most jobs follow each other in both as they did: what lies between changes is compared at once."""
    gone: list[RunningJob] = []
    come: list[RunningJob] = []
    i = j = 0
    while i < len(before) and len(gone) <= _FEW_CHANGES:
        same = _alike(before, i, now, j)
        i, j = i + same, j + same
        if i == len(before):
            break
        gone.append(before[i])
        if j < len(now) and now[j].id == before[i].id:
            come.append(now[j])
            j += 1
        i += 1
    return [*gone, *before[i:]], [*come, *now[j:]]


def _alike(before: Sequence[RunningJob], i: int, now: Sequence[RunningJob], j: int) -> int:
    """How many of `before` from i on are those of `now` from j on."""
    least, most = 0, min(len(before) - i, len(now) - j)
    while least < most:
        middle = (least + most + 1) // 2
        if before[i + least : i + middle] == now[j + least : j + middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _terms(running: RunningJob, on_gpus: int) -> tuple[float, float, float]:
    job = running.job
    start_s = running.start_time_s if running.start_time_s > 0 else math.nan
    has_progress = running.speed > 0 and job.total_epochs > running.epochs_done
    left_s = (job.total_epochs - running.epochs_done) / running.speed if has_progress else math.nan
    return start_s, expected_s(job, on_gpus), left_s


def expected_end_s(running: RunningJob, now_s: float) -> float:
    """The expected end of a job, as HeldAmounts has it."""
    terms = np.array(_terms(running, sum([len(task.gpu_indices) for task in running.assignments])))
    return float(expected_ends_s(terms[:1], terms[1:2], terms[2:], now_s)[0])


def _parts(job: RunningJob, view: ClusterView) -> tuple[dict[int, FloatArray], list[int]]:
    """The amounts that the job holds, by node, and its GPUs' places in the flat (M, G) array."""
    on: dict[int, FloatArray] = {}
    gpus: list[int] = []
    width = view.nodes.gpu_exists.shape[1]
    for task in job.assignments:
        m, demand = view.nodes.index.get(task.node), view.nodes.demand_vector(task.demand)
        if m is None or demand is None:
            continue
        on[m] = on[m] + demand if m in on else demand
        gpus += [m * width + g for g in task.gpu_indices]
    return on, gpus
