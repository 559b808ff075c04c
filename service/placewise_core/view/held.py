"""Resources that the running jobs of a view hold, and when each is expected to give them back."""

import math
from collections.abc import Collection, Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import JobId
from placewise_core.view.heads import expected_ends_s, expected_s
from placewise_core.view.view import ClusterView


@frozen
class HeldAmounts:
    """P parts, one for each job and node."""

    rows: IntArray  # (P,) the node of each
    ends: FloatArray  # (P,) the expected end of its job
    demands: FloatArray  # (P, R)
    gpu_end: FloatArray  # (M, G) when each GPU is expected to be idle; 0 if it is, infinite for those that do not exist


@frozen
class _Known:
    """A job whose resources are in the tables, under its slot."""

    job: RunningJob
    slot: int
    on_gpus: int


_FEW_CHANGES = 16  # between two questions, beyond which the rest is looked at job by job


class _Tables:
    """The resources held, a row for each job and node and one for each job and GPU, and the terms of every job's end.
    Jobs come and go one by one: only their own rows are written."""

    def __init__(self, columns: int) -> None:
        self.jobs: dict[JobId, _Known] = {}
        self.terms: FloatArray = np.zeros((3, 0))  # by slot, as `expected_ends_s` has them
        self.part_slots: IntArray = np.zeros(0, dtype=np.int64)
        self.part_rows: IntArray = np.zeros(0, dtype=np.int64)
        self.demands: FloatArray = np.zeros((0, columns))
        self.gpu_slots: IntArray = np.zeros(0, dtype=np.int64)
        self.gpu_places: IntArray = np.zeros(0, dtype=np.int64)  # in the flat (M, G) array
        self._unused: list[int] = []

    def follow(self, view: ClusterView, before: Sequence[RunningJob], now: Sequence[RunningJob]) -> None:
        """Makes the tables of the jobs that ran `before` those of the jobs that the view has now."""
        gone, come = _changes(before, now)
        known, news = self.jobs, []
        for job in come:
            kept = known.get(job.id)
            if kept is None or kept.job.assignments is not job.assignments:
                news.append((job.id, job))
            elif kept.job is not job:
                self._know(job.id, job, kept.slot, kept.on_gpus)
        left = [job.id for job in gone if job.id not in view.jobs]
        self._drop([*left, *[job_id for job_id, _ in news if job_id in known]])
        if news:
            self._add(news, view)

    def _know(self, job_id: JobId, job: RunningJob, slot: int, on_gpus: int) -> None:
        self.jobs[job_id] = _Known(job, slot, on_gpus)
        self.terms[:, slot] = _terms(job, on_gpus)

    def _drop(self, gone: Collection[JobId]) -> None:
        if not gone:
            return
        slots = [self.jobs.pop(job_id).slot for job_id in gone]
        self._unused += slots
        stays = np.ones(self.terms.shape[1], dtype=np.bool_)
        stays[slots] = False
        parts, gpus = stays[self.part_slots], stays[self.gpu_slots]
        self.part_slots, self.part_rows = self.part_slots[parts], self.part_rows[parts]
        self.demands = self.demands[parts]
        self.gpu_slots, self.gpu_places = self.gpu_slots[gpus], self.gpu_places[gpus]

    def _add(self, news: Sequence[tuple[JobId, RunningJob]], view: ClusterView) -> None:
        short = len(news) - len(self._unused)
        if short > 0:
            slots = self.terms.shape[1]
            self._unused += range(slots, slots + short)
            self.terms = np.concatenate((self.terms, np.zeros((3, short))), axis=1)
        part_slots: list[int] = []
        rows: list[int] = []
        demands: list[FloatArray] = []
        gpu_slots: list[int] = []
        gpus: list[int] = []
        for job_id, job in news:
            slot = self._unused.pop()
            self._know(job_id, job, slot, sum([len(task.gpu_indices) for task in job.assignments]))
            on, places = _parts(job, view)
            rows += on
            demands += on.values()
            part_slots += [slot] * len(on)
            gpus += places
            gpu_slots += [slot] * len(places)
        self.part_slots = np.concatenate((self.part_slots, np.array(part_slots, dtype=np.int64)))
        self.part_rows = np.concatenate((self.part_rows, np.array(rows, dtype=np.int64)))
        self.demands = np.concatenate((self.demands, np.array(demands).reshape(len(rows), -1)))
        self.gpu_slots = np.concatenate((self.gpu_slots, np.array(gpu_slots, dtype=np.int64)))
        self.gpu_places = np.concatenate((self.gpu_places, np.array(gpus, dtype=np.int64)))


class Holdings:
    """The resources held in a view. Kept from question to question: most running jobs are the same at the next one."""

    def __init__(self) -> None:
        self._layout_stamp = -1
        self._tables = _Tables(0)
        self._running: Sequence[RunningJob] = ()
        self._now_s = -1.0
        self._held: HeldAmounts | None = None

    def at(self, view: ClusterView, now_s: float) -> HeldAmounts:
        """The resources held now. Do not write."""
        if self._layout_stamp != view.layout_stamp:
            self._layout_stamp, self._tables, self._held = view.layout_stamp, _Tables(len(view.free)), None
            self._running = ()
        running = tuple(view.jobs.values())
        has_changed = self._held is None or running != self._running
        if has_changed:
            self._tables.follow(view, self._running, running)
            self._running = running
        if self._held is None or has_changed or self._now_s != now_s:
            self._now_s = now_s
            self._held = self._collected(view, now_s)
        return self._held

    def _collected(self, view: ClusterView, now_s: float) -> HeldAmounts:
        tables = self._tables
        starts_s, declared_s, left_s = tables.terms
        ends_s = expected_ends_s(starts_s, declared_s, left_s, now_s)
        gpu_end = np.zeros(view.gpu_exists.shape)
        places, gpu_ends_s = gpu_end.reshape(-1), ends_s[tables.gpu_slots]
        if view.shared_gpus:  # a GPU that several share is idle after the last of them
            np.maximum.at(places, tables.gpu_places, gpu_ends_s)
        else:
            places[tables.gpu_places] = gpu_ends_s
        gpu_end[~view.gpu_exists] = np.inf
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


def _parts(job: RunningJob, view: ClusterView) -> tuple[dict[int, FloatArray], list[int]]:
    """The amounts that the job holds, by node, and its GPUs' places in the flat (M, G) array."""
    on: dict[int, FloatArray] = {}
    gpus: list[int] = []
    width = view.gpu_exists.shape[1]
    for task in job.assignments:
        m, demand = view.index.get(task.node), view.demand_vector(task.demand)
        if m is None or demand is None:
            continue
        on[m] = on[m] + demand if m in on else demand
        gpus += [m * width + g for g in task.gpu_indices]
    return on, gpus
