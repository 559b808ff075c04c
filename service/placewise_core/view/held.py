"""Resources that the running jobs of a view hold, and when each is expected to give them back."""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import JobId
from placewise_core.view.heads import expected_end_s
from placewise_core.view.view import ClusterView


@frozen
class HeldAmounts:
    """P parts, one for each job and node, the first to be given back first."""

    rows: IntArray  # (P,) the node of each
    ends: FloatArray  # (P,) the expected end of its job
    demands: FloatArray  # (P, R)
    gpu_end: FloatArray  # (M, G) when each GPU is expected to be idle; infinite for those that do not exist


@frozen
class _Parts:
    """The resources that one job holds."""

    assignments: tuple[Assignment, ...]
    rows: tuple[int, ...]
    demands: tuple[FloatArray, ...]
    gpus: IntArray  # places in the flat (M, G) array
    on_gpus: int


class Holdings:
    """The resources held in a view. Kept from question to question: most running jobs are the same at the next one."""

    def __init__(self) -> None:
        self._layout_stamp = -1
        self._parts: dict[JobId, _Parts] = {}
        self._running: Sequence[RunningJob] = ()
        self._now_s = -1.0
        self._held: HeldAmounts | None = None

    def at(self, view: ClusterView, now_s: float) -> HeldAmounts:
        """The resources held now. Do not write."""
        if self._layout_stamp != view.layout_stamp:
            self._layout_stamp, self._parts, self._held = view.layout_stamp, {}, None
        running = tuple(view.jobs.values())
        if self._held is None or self._now_s != now_s or running != self._running:
            self._parts = {job.id: self._part(job, view) for job in running}
            self._running, self._now_s = running, now_s
            self._held = self._collected(view, now_s)
        return self._held

    def _part(self, job: RunningJob, view: ClusterView) -> _Parts:
        kept = self._parts.get(job.id)
        return kept if kept is not None and kept.assignments is job.assignments else _parts(job, view)

    def _collected(self, view: ClusterView, now_s: float) -> HeldAmounts:
        parts = list(self._parts.values())
        ends_s = [expected_end_s(job, part.on_gpus, now_s) for job, part in zip(self._running, parts, strict=True)]
        order = sorted(range(len(ends_s)), key=ends_s.__getitem__)
        rows: list[int] = []
        ends: list[float] = []
        demands: list[FloatArray] = []
        gpu_end = np.where(view.gpu_exists, 0.0, np.inf)
        flat = gpu_end.reshape(-1)
        for i in order:  # a GPU that several share is idle after the last of them
            part = parts[i]
            rows += part.rows
            ends += [ends_s[i]] * len(part.rows)
            demands += part.demands
            flat[part.gpus] = ends_s[i]
        amounts = np.array(demands) if demands else np.zeros((0, len(view.free)))
        return HeldAmounts(np.array(rows, dtype=np.int64), np.array(ends), amounts, gpu_end)


def _parts(job: RunningJob, view: ClusterView) -> _Parts:
    on: dict[int, FloatArray] = {}
    gpus: list[int] = []
    on_gpus = sum([len(task.gpu_indices) for task in job.assignments])
    width = view.gpu_exists.shape[1]
    for task in job.assignments:
        m, demand = view.index.get(task.node), view.demand_vector(task.demand)
        if m is None or demand is None:
            continue
        on[m] = on[m] + demand if m in on else demand
        gpus += [m * width + g for g in task.gpu_indices]
    return _Parts(job.assignments, tuple(on), tuple(on.values()), np.array(gpus, dtype=np.int64), on_gpus)
