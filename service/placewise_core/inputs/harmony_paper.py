"""Net inputs of the Harmony paper: per job x, r, w, p, v, d, u (section V), no others. Decides nothing.

A row is as long as the cluster has nodes, in the order of the view: a net for it knows one number of nodes.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.job import Job, Resources, Role
from placewise_core.domain.model_names import nearest
from placewise_core.gang.gang import Gang
from placewise_core.inputs.jobs import NOWHERE, Held
from placewise_core.inputs.tables import MODEL_VOCABULARY
from placewise_core.view.view import CPU, MEMORY, NETWORK, ClusterView

KINDS = ("cpu", "memory", "network", "gpus")  # the K kinds of resources
# Values of a server of the paper, and four tasks, become 1.
_OF_KINDS = np.array([1 / 8, 1 / 48, 1 / 50, 1 / 2])
_OF_TASKS = 0.25
_DEMANDS = len(MODEL_VOCABULARY)  # where r begins
_PLACED = _DEMANDS + 2 * (1 + len(KINDS))  # where w and p stand
_FREE = _PLACED + 2
_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


def columns(nodes: int) -> tuple[str, ...]:
    """Names of the columns for that many nodes."""
    return (
        *(f"x_{model}" for model in MODEL_VOCABULARY),
        *(f"r_{role}_{value}" for role in ("worker", "server") for value in ("count", *KINDS)),
        "w",
        "p",
        *(f"v_{m}_{kind}" for m in range(nodes) for kind in KINDS),
        *(f"d_{m}_{role}" for m in range(nodes) for role in ("worker", "server")),
        "u",
    )


def decision_columns(nodes: int) -> tuple[slice, slice]:
    """Where w and p stand, and where d and u: a job's decision so far."""
    return slice(_PLACED, _FREE), slice(_FREE + len(KINDS) * nodes, len(columns(nodes)))


@frozen
class ListedJob:
    """A job of the state, with the tasks it has on nodes; `is_new`: it came with the batch that is placed now."""

    job: Job
    held: Held
    is_new: bool

    @classmethod
    def running(cls, running: RunningJob, view: ClusterView, *, is_new: bool) -> "ListedJob":
        """A job of the view."""
        return cls(running.job, Held.of(running.assignments, view.nodes.index), is_new)


class PaperRows:
    """`rows` (J, len(columns(M))): the gang's job first, then `others`; kept up task by task."""

    def __init__(self, gang: Gang, others: Sequence[ListedJob]) -> None:
        self._gang = gang
        self._nodes = gang.view.nodes.size
        self.rows: Float32 = np.zeros((1 + len(others), len(columns(self._nodes))), dtype=np.float32)
        for row, listed in zip(self.rows, (ListedJob(gang.job, NOWHERE, is_new=True), *others), strict=True):
            self._write(row, listed)
        self.rows[:, _FREE : _FREE + len(KINDS) * self._nodes] = _free(gang.view).ravel()

    def update(self) -> None:
        """After a task of the gang was placed."""
        group, m = self._gang.placed[-1]
        role = _ROLES.index(group.role)
        self.rows[0, _PLACED + role] += _OF_TASKS
        self.rows[0, self._tasks_at(m) + role] += _OF_TASKS
        left, at = self._gang.left[m], _FREE + len(KINDS) * m
        now = np.array([left.free[CPU], left.free[MEMORY], left.free[NETWORK], len(left.idle)])
        self.rows[:, at : at + len(KINDS)] = now * _OF_KINDS

    def _tasks_at(self, m: int) -> int:
        return _FREE + len(KINDS) * self._nodes + 2 * m

    def _write(self, row: Float32, listed: ListedJob) -> None:
        job = listed.job
        known = nearest(job.model, MODEL_VOCABULARY) if job.model else None
        if known is not None:
            row[MODEL_VOCABULARY.index(known)] = 1.0
        for i, role in enumerate(_ROLES):
            groups = [group for group in job.groups if group.role is role]
            if groups:
                at = _DEMANDS + i * (1 + len(KINDS))
                row[at] = sum(group.count for group in groups) * _OF_TASKS
                row[at + 1 : at + 1 + len(KINDS)] = _amounts(groups[0].demand)
        for m, i, count in listed.held.cells:
            row[_PLACED + i] += count * _OF_TASKS
            row[self._tasks_at(m) + i] = count * _OF_TASKS
        row[-1] = listed.is_new


def _amounts(demand: Resources) -> FloatArray:
    amounts = (demand.cpu_cores, demand.memory_gib, demand.network_gbps, demand.gpus)
    return np.asarray(np.array(amounts, dtype=np.float64) * _OF_KINDS)


def _free(view: ClusterView) -> FloatArray:
    """(M, K)."""
    free = np.stack(
        [view.usage.free[CPU], view.usage.free[MEMORY], view.usage.free[NETWORK], view.usage.free_gpus], axis=1
    )
    return np.asarray(free * _OF_KINDS)
