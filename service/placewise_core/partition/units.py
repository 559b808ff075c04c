"""The computing units of a cluster, as arrays.

A unit is one GPU of a node ("node/gpu0") or its CPU ("node/cpu"). Idle means that it serves no job: on a GPU node, the
CPU serves the tasks without a GPU.
"""

from collections.abc import Iterable
from dataclasses import field

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.decision import Excluded
from placewise_core.domain.job import JobId
from placewise_core.view.view import ClusterView

NO_GPU = -1
CPU_UNIT = "cpu"


@frozen
class Units:
    """All units in node order: (U,) node index and GPU index (NO_GPU for a CPU), and names; (M,) facts of their nodes.

    `entries` caches the entries of excluded units, by unit and reason code: the busy ones are the same in most answers.
    """

    node: IntArray
    gpu: IntArray
    has_gpu: BoolArray
    gpu_memory_gib: FloatArray
    per_node: IntArray
    flat: IntArray  # where each GPU is in the view's (M, G) arrays, unrolled
    node_ids: list[str]
    names: list[str]  # the part after the node
    heat: IntArray  # where each is in the (2M,) thermal figures: the GPUs of every node, then the CPUs
    entries: dict[tuple[int, int], Excluded] = field(default_factory=dict)

    def is_idle(self, view: ClusterView) -> BoolArray:
        """(U,) units that serve no job."""
        return np.asarray(self._served(view) == 0)

    def _served(self, view: ClusterView) -> IntArray:
        """(U,) how many each serves: a GPU jobs, a CPU tasks."""
        if not self.has_gpu.any():
            return np.asarray(view.usage.task_count[self.node])
        jobs = view.usage.gpu_tenant_count.ravel()[self.flat]
        tasks = np.where(self.has_gpu, view.usage.cpu_task_count, view.usage.task_count)
        return np.where(self.gpu == NO_GPU, tasks[self.node], jobs)

    def held_by(self, view: ClusterView, job_id: str) -> BoolArray | None:
        """(U,) units that serve this job and no other, which may split its own work over them; None without such."""
        running = view.jobs.get(JobId(job_id))
        if running is None:
            return None
        held = {
            (view.nodes.index.get(a.node), index) for a in running.assignments for index in a.gpu_indices or (NO_GPU,)
        }
        mine = [(m, g) in held for m, g in zip(self.node.tolist(), self.gpu.tolist(), strict=True)]
        return np.asarray(mine, dtype=np.bool_) & (self._served(view) <= 1)


def units_of(view: ClusterView) -> Units:
    """Units of the view: of each node its GPUs, then its CPU."""
    has_gpu: BoolArray = np.asarray(view.nodes.gpu_exists.any(axis=1))
    gpu_node, gpu_index = np.nonzero(view.nodes.gpu_exists)
    cpu_node = np.arange(view.nodes.size)
    node = np.concatenate([gpu_node, cpu_node])
    gpu = np.concatenate([gpu_index, np.full(len(cpu_node), NO_GPU)])
    order = np.argsort(node, kind="stable")
    per_node = np.bincount(node, minlength=view.nodes.size)
    memory: FloatArray = view.nodes.gpu_memory.max(axis=1, initial=0.0)
    node, gpu = node[order], gpu[order]
    flat = node * view.nodes.gpu_exists.shape[1] + np.maximum(gpu, 0)
    unit_names = {NO_GPU: CPU_UNIT} | {g: f"gpu{g}" for g in range(view.nodes.gpu_exists.shape[1])}
    ids = [listed.id for listed in view.nodes.records]
    node_ids: list[str] = [ids[m] for m in node.tolist()]
    names = [unit_names[g] for g in gpu.tolist()]
    heat = node + view.nodes.size * (gpu == NO_GPU)
    return Units(node, gpu, has_gpu, memory, per_node, flat, node_ids, names, heat)


class UnitsCache:
    """The units of the view last asked about, or a fork of it; built again when its layout changed."""

    def __init__(self) -> None:
        self._of: tuple[object, int] | None = None  # lineage and layout
        self._units: Units | None = None

    def of(self, view: ClusterView) -> Units:
        """Units of this view."""
        if self._units is None or self._of != (view.lineage, view.nodes.layout_stamp):
            self._units = units_of(view)
            self._of = (view.lineage, view.nodes.layout_stamp)
        return self._units


def selected(units: Units, view: ClusterView, names: Iterable[str]) -> tuple[BoolArray, list[str]]:
    """(U,) mask of the named units ("node" means all of that node's), and the names that are none."""
    mask = np.zeros(len(units.node), dtype=np.bool_)
    unknown = []
    first = np.searchsorted(units.node, np.arange(view.nodes.size))
    for name in names:
        m, tail = view.nodes.index.get(name), ""
        if m is None:  # node ids may hold slashes themselves: only the last part can be a unit
            head, _, tail = name.rpartition("/")
            m = view.nodes.index.get(head)
        rows = range(int(first[m]), int(first[m] + units.per_node[m])) if m is not None else range(0)
        hits = [u for u in rows if tail in ("", units.names[u])]
        if not hits:
            unknown.append(name)
        mask[hits] = True
    return mask, unknown
