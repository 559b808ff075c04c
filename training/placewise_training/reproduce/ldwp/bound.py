"""The most that any scheduler of pipelines reaches on a cluster: a linear programme over cores and GPU resources."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from placewise_core.subtasks.metrics import GPU_METRICS
from placewise_training.reproduce.ldwp.runs import TRUTH
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.pipelines.applications import APPLICATIONS, PipelineTask, SubtaskTruth, subtask_truths
from placewise_training.sim.speed.profiles import gpu_speed


def most_per_min(nodes: Sequence[NodeSpec], tasks: Sequence[PipelineTask]) -> float:
    """Tasks a minute: all of them over the longer of two times that any schedule needs. Noise is left out."""
    work_s = len(tasks) / _rate(nodes, tasks)
    last_s = max(task.submit_time_s + _alone_s(nodes, task) for task in tasks)
    return 60.0 * len(tasks) / max(work_s, last_s - tasks[0].submit_time_s)


def _rate(nodes: Sequence[NodeSpec], tasks: Sequence[PipelineTask]) -> float:
    """Tasks a second of this mix with every unit busy: maximise λ such that cores and GPUs of all nodes together do λ
    times the mean need of each kind, no core does more than one second a second, and no GPU gives more than all of any
    resource."""
    kinds = subtask_truths(TRUTH)
    names = list(kinds)
    need = np.zeros(len(names))
    for task in tasks:
        for subtask in task.job.subtasks:
            need[names.index(subtask.kind)] += task.size / len(tasks)
    wide = 1 + 2 * len(nodes) * len(names)  # λ, then units of size per second by node and kind, on cores and on GPUs
    rows, limits = [], []
    for k, amount in enumerate(need):
        row = np.zeros(wide)
        row[0] = amount
        for m in range(len(nodes)):
            row[1 + 2 * (m * len(names) + k) : 3 + 2 * (m * len(names) + k)] = -1.0
        rows.append(row)
        limits.append(0.0)
    for m, spec in enumerate(nodes):
        at = slice(1 + 2 * m * len(names), 1 + 2 * (m + 1) * len(names), 2)
        row = np.zeros(wide)
        row[at] = [kinds[name].core_s / spec.cpu_speed for name in names]
        rows.append(row)
        limits.append(spec.node.capacity.cpu_cores)
        for resource in range(len(GPU_METRICS)):
            row = np.zeros(wide)
            row[at.start + 1 : at.stop : 2] = [
                _gpu_s(kinds[name], spec) * kinds[name].shares[resource] for name in names
            ]
            rows.append(row)
            limits.append(float(len(spec.node.gpus)))
    can_move = [True] + [is_core or kinds[name].has_gpu_version for _ in nodes for name in names for is_core in (1, 0)]
    found = linprog(
        np.eye(wide)[0] * -1.0,
        A_ub=np.array(rows),
        b_ub=limits,
        bounds=[(0.0, None if is_free else 0.0) for is_free in can_move],
    )
    return float(found.x[0])


def _gpu_s(kind: SubtaskTruth, spec: NodeSpec) -> float:
    """Seconds alone on one of the node's GPUs per unit of size."""
    return kind.core_s / kind.speedup / (gpu_speed(spec.gpu_model) / gpu_speed("K80")) if kind.has_gpu_version else 0.0


def _alone_s(nodes: Sequence[NodeSpec], task: PipelineTask) -> float:
    """The task's critical path, every subtask on the fastest unit there is."""
    kinds = subtask_truths(TRUTH)

    def best(kind: SubtaskTruth) -> float:
        core_s = min(kind.core_s / spec.cpu_speed for spec in nodes)
        return min([core_s, *(_gpu_s(kind, spec) for spec in nodes if kind.has_gpu_version)])

    stages = APPLICATIONS[task.application]
    return task.size * sum(max(best(kinds[name]) for name in stage) for stage in stages)
