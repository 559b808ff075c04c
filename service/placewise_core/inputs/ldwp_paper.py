"""The state of LDWP's paper for one pipeline task: x_t = (TID, TSize, S_1 … S_M), the task before it, and its node.

Decides nothing. The paper's state is the sequence of all observations and actions, and a net takes so many numbers: of
the past there are the task placed last and its node, both on the view, so that no replica has to remember anything.
How the nodes were when that task came, a view no longer tells: the earlier S is left out.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import Float32, IntArray
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import Job
from placewise_core.inputs.cluster import UTILISATION_COLUMNS, encode_utilisation
from placewise_core.view.view import ClusterView

_SIZE_SCALE = 1.0 / 6000.0  # units of the paper's tasks: frames, pictures


def columns(types: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns for these task types and nodes."""
    task = (*(f"tid_{name}" for name in types), "tsize")
    states = tuple(f"s_{node}_{column.name}" for node in nodes for column in UTILISATION_COLUMNS)
    return (*task, *states, *(f"before_{name}" for name in task), *(f"a_{node}" for node in nodes))


def order_of(view: ClusterView, nodes: Sequence[str]) -> IntArray:
    """(M,) the view's node for each of the net's: by name if the names are the same, else in the view's order."""
    if all(name in view.nodes.index for name in nodes):
        return np.array([view.nodes.index[name] for name in nodes], dtype=np.int64)
    return np.arange(view.nodes.size)


def state_of(job: Job, view: ClusterView, types: Sequence[str], order: IntArray) -> Float32:
    """(columns,) for one pipeline; `order` (M,) as of order_of. Raises ValueError for a task of an unknown type."""
    nodes, task = encode_utilisation(view)[order].ravel(), _task(job, types)
    before, action = np.zeros_like(task), np.zeros(len(order), dtype=np.float32)
    last = _last(job, view)
    if last is not None and last.job.model in types:
        before = _task(last.job, types)
        at = {view.nodes.index.get(assignment.node, -1) for assignment in last.assignments}
        action[np.isin(order, list(at))] = 1.0
    return np.asarray(np.concatenate([task, nodes, before, action]), dtype=np.float32)


def _task(job: Job, types: Sequence[str]) -> Float32:
    """TID as one-hot, and TSize."""
    out = np.zeros(len(types) + 1, dtype=np.float32)
    out[types.index(job.model)] = 1.0
    out[-1] = max((subtask.size for subtask in job.subtasks), default=0.0) * _SIZE_SCALE
    return out


def _last(job: Job, view: ClusterView) -> RunningJob | None:
    """The pipeline that was placed last, of those that are still there."""
    pipelines = [held for held in view.jobs.values() if held.job.subtasks and held.id != job.id]
    return max(pipelines, key=lambda held: (held.start_time_s, held.job.submit_time_s), default=None)
