"""The inputs of LDWP's net for one pipeline task: a row per node, for any number of nodes. Decides nothing.

The paper's state is six utilisations per node and the task's type and size. Utilisations saturate where queues only
begin, so a row also holds the work that waits there, in units of the mean task: the same numbers mean the same on any
cluster, for any unit of size.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job, JobId, Subtask, SubtaskState
from placewise_core.gang.offer import Offer
from placewise_core.inputs.cluster import encode_utilisation, gpu_relative_speed
from placewise_core.subtasks.metrics import CORE_SECONDS, SPEEDUP
from placewise_core.view.view import CPU, ClusterView

_TYPICAL_CORE_S = 0.02  # of a kind without a measurement: all of them cost alike
_UNKNOWN_SPEEDUP = 5.0

COLUMNS = (
    "cpu_util",
    "gpu_util",
    "memory_util",
    "gpu_memory_util",
    "uplink",
    "downlink",
    "cores",  # log(1 + n) / 5
    "gpus",  # / 8
    "gpu_speed",  # of a V100
    "tasks_per_core",
    # log(1 + time / time of the mean task), if the node did nothing else:
    "cpu_wait",  # waiting work that only cores can do, per core
    "gpu_wait",  # waiting work that GPUs can do, per GPU
    "cpu_after",  # with the task
    "gpu_after",
    "own_cpu",  # the task's own, one subtask after the other
    "own_gpu",
)
_AT = {name: i for i, name in enumerate(COLUMNS)}


@frozen
class _Work:
    """Seconds on a core, and on the slowest GPU, of a pipeline from its k-th subtask on, for k = 0 … n; and all."""

    job: Job
    left: list[list[float]]
    total_s: float

    @classmethod
    def of(cls, job: Job, view: ClusterView) -> "_Work":
        left = [[0.0, 0.0]]
        for subtask in reversed(job.subtasks):
            cpu_s, gpu_s = _seconds(subtask, view)
            left.append([left[-1][0] + cpu_s, left[-1][1] + gpu_s])
        left.reverse()
        return cls(job, left, left[0][0] + left[0][1])


def _seconds(subtask: Subtask, view: ClusterView) -> tuple[float, float]:
    known = {**view.subtask_profiles.get(subtask.kind, {}), **subtask.profile}
    seconds = (subtask.size or 1.0) * known.get(CORE_SECONDS, _TYPICAL_CORE_S)
    if subtask.state is SubtaskState.DONE:
        return 0.0, 0.0
    speedup = known.get(SPEEDUP, _UNKNOWN_SPEEDUP)
    return (0.0, seconds / speedup) if subtask.has_gpu_version and speedup >= 1.0 else (seconds, 0.0)


class RowEncoder:
    """Rows of nodes; remembers the work of the jobs that are there. Not for two views at a time from two threads."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[ClusterView, dict[JobId, _Work]] = WeakKeyDictionary()

    def encode(
        self, job: Job, view: ClusterView, nodes: Sequence[int] | IntArray, offer: Offer | None = None
    ) -> Float32:
        """(C, len(COLUMNS)) for one pipeline on each of C nodes. Unknown utilisations are what jobs hold. `offer`: of
        all nodes, if the job has tasks already."""
        rows = np.asarray(nodes, dtype=np.int64)
        work = _Work.of(job, view)
        own = work.left[0]
        waiting, unit_s = self._waiting(view, rows, work.total_s)
        cores = np.maximum(1.0, view.nodes.capacity[CPU, rows])
        gpus = view.nodes.gpu_exists[rows].sum(axis=1)
        speed = _gpu_speeds(view)
        power = gpus * speed[rows] / _slowest(speed)
        out = np.zeros((len(rows), len(COLUMNS)), dtype=np.float32)
        out[:, : _AT["cores"]] = _utilisation(view, offer)[rows]
        out[:, _AT["cores"]] = np.log1p(view.nodes.capacity[CPU, rows]) / 5.0
        out[:, _AT["gpus"]] = gpus / 8.0
        out[:, _AT["gpu_speed"]] = speed[rows]
        out[:, _AT["tasks_per_core"]] = _task_count(view, offer)[rows] / cores
        out[:, _AT["cpu_wait"]] = waiting[:, 0] / cores
        out[:, _AT["gpu_wait"]] = _on_gpus(waiting[:, 1], power, cores)
        out[:, _AT["cpu_after"]] = (waiting[:, 0] + own[0]) / cores
        out[:, _AT["gpu_after"]] = _on_gpus(waiting[:, 1] + own[1], power, cores)
        out[:, _AT["own_cpu"]] = own[0]
        out[:, _AT["own_gpu"]] = _on_gpus(own[1], power / np.maximum(1, gpus), np.ones_like(cores))
        out[:, _AT["cpu_wait"] :] = np.log1p(out[:, _AT["cpu_wait"] :] / max(1e-9, unit_s))
        return out

    def _waiting(self, view: ClusterView, rows: IntArray, own_s: float) -> tuple[FloatArray, float]:
        """(C, 2) seconds of work that is left on each node, and the mean seconds of a task, this one included."""
        kept = self._kept.setdefault(view, {})
        out: list[tuple[float, float]] = []
        total_s, count = own_s, 1
        for m in rows.tolist():
            cpu_s = gpu_s = 0.0
            for job_id in view.usage.jobs_on(m):
                running = view.jobs.get(job_id)
                if running is None or not running.job.subtasks:
                    continue
                work = kept.get(job_id)
                if work is None or work.job is not running.job:
                    work = kept[job_id] = _Work.of(running.job, view)
                epochs, stages = running.job.total_epochs, len(work.left) - 1
                done = round(running.epochs_done / epochs * stages) if epochs > 0 else 0
                left = work.left[min(stages, done)]
                cpu_s, gpu_s = cpu_s + left[0], gpu_s + left[1]
                total_s += work.total_s
                count += 1
            out.append((cpu_s, gpu_s))
        if len(kept) > 2 * len(view.jobs) + 64:
            self._kept[view] = {job_id: work for job_id, work in kept.items() if job_id in view.jobs}
        return np.array(out).reshape(len(rows), 2), total_s / count


def _gpu_speeds(view: ClusterView) -> FloatArray:
    """(M,) of the fastest GPU of each node, relative to a V100; 0 without GPUs."""
    by_model = np.array([*(gpu_relative_speed(name) for name in view.nodes.gpu_model_names()), 0.0])
    speeds = by_model[view.nodes.gpu_model].max(axis=1, initial=0.0)
    unnamed = view.nodes.gpu_exists.any(axis=1) & (speeds <= 0)
    return np.asarray(np.where(unnamed, 1.0, speeds))


def _slowest(speeds: FloatArray) -> float:
    """Speed of the cluster's slowest GPU. Speedups count as measured on it, which is the cautious assumption."""
    return float(speeds[speeds > 0].min()) if (speeds > 0).any() else 1.0


def _on_gpus(seconds: FloatArray | float, power: FloatArray, cores: FloatArray) -> FloatArray:
    """Time on the GPUs; a node without any does it on cores, at the speedup lost."""
    slow = np.asarray(seconds) * _UNKNOWN_SPEEDUP / cores
    return np.asarray(np.where(power > 0, np.asarray(seconds) / np.maximum(power, 1e-9), slow))


def _utilisation(view: ClusterView, offer: Offer | None) -> Float32:
    return encode_utilisation(view) if offer is None else encode_utilisation(view, offer.free[:, 0], offer.free_gpus[0])


def _task_count(view: ClusterView, offer: Offer | None) -> IntArray:
    return view.usage.task_count if offer is None else np.asarray(offer.task_count[0])


def shortlist(view: ClusterView, mask: BoolArray, most: int, offer: Offer | None = None) -> IntArray:
    """At most `most` of the masked nodes: those with least in use and fewest tasks per core."""
    feasible = np.flatnonzero(mask)
    if len(feasible) <= most:
        return feasible
    used = _utilisation(view, offer)[feasible, : _AT["memory_util"]].sum(axis=1)
    crowd = _task_count(view, offer)[feasible] / np.maximum(1.0, view.nodes.capacity[CPU, feasible])
    return np.sort(feasible[np.argpartition(used + crowd, most)[:most]])
