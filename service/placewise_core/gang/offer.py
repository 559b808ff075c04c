"""Offer: every node as the next task of a gang finds it, and as further tasks of its group would.

A policy scores an offer. Nothing here changes or decides anything; gang.py keeps account of tasks that have nodes.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.lazy import lazy
from placewise_core.basics.slices import Slices
from placewise_core.domain.job import Job, TaskGroup
from placewise_core.view.nodes import whole_gpus
from placewise_core.view.slots import whole_tasks
from placewise_core.view.usage import GpuUsage
from placewise_core.view.view import CPU, GPUS, MEMORY, NETWORK, ClusterView

_LOADED = np.array((CPU, MEMORY, NETWORK, GPUS))  # what ClusterView.load counts, in the order in which it adds up


class NodeLeft:
    """One node as the gang leaves it: `free` amounts by resource, `idle` GPUs that serve nobody, the groups of its
    `tasks` there and the GPUs they have `taken`. `usage` (1, G) is kept where GPUs are looked at one by one."""

    __slots__ = ("free", "idle", "taken", "tasks", "usage")

    def __init__(self, view: ClusterView, m: int) -> None:
        self.free: list[float] = view.usage.free[:, m].tolist()
        self.idle: Sequence[int] = view.usage.idle_gpus(m)
        self.tasks: list[TaskGroup] = []
        self.taken: set[int] = set()
        self.usage: GpuUsage | None = None

    def whole(self) -> list[float]:
        """As `free`, but with the number of idle GPUs in the row of GPUs."""
        return [*self.free[:GPUS], float(len(self.idle)), *self.free[GPUS + 1 :]]


NOTHING_LEFT: Mapping[int, NodeLeft] = {}


class Offer:
    """What N nodes offer the tasks of one group. Arrays are (…, J, N): row j is with j more tasks of the group there.

    demand (R,) of one task · mask (N,) nodes open to the next task · placed: (group, node) of the gang's tasks so far ·
    remaining: its tasks still to place · at: where these N nodes stand in the arrays of `view`, as in
    `view.nodes.telemetry[:, offer.at]`. Do not write into any array. An offer does not hold the context, which keeps
    the first offers: that would be a cycle, for the garbage collector to find.
    """

    def __init__(
        self,
        job: Job,
        group: TaskGroup,
        view: ClusterView,
        slices: Slices,
        demand: FloatArray,
        mask: BoolArray,
        depth: int = 1,
        remaining: int = 1,
        placed: Sequence[tuple[TaskGroup, int]] = (),
        left: Mapping[int, NodeLeft] = NOTHING_LEFT,
        nodes: IntArray | None = None,
        whole: "Offer | None" = None,
        slots: FloatArray | None = None,
    ) -> None:
        """`slots`: as the attribute, if the caller has counted them."""
        self.job, self.group, self.view, self.slices = job, group, view, slices
        self.demand, self.mask, self.depth = demand, mask, depth
        self.remaining, self.placed, self._left = remaining, placed, left
        self.nodes = nodes
        self.at: slice | IntArray = slice(None) if nodes is None else nodes
        self._whole = whole  # not itself: that would be a cycle, for the garbage collector to find
        if slots is not None:
            self.slots = slots

    @property
    def whole(self) -> "Offer":
        """All nodes, and the mask that goes with them."""
        return self if self._whole is None else self._whole

    @property
    def last(self) -> int:
        """The node of the gang's last task; -1 before the first."""
        return self.placed[-1][1] if self.placed else -1

    def on(self, nodes: Sequence[int], depth: int = 1) -> "Offer":
        """Some of the nodes, as indices into the view."""
        rows = np.array(nodes, dtype=np.int64)
        return Offer(
            self.job,
            self.group,
            self.view,
            self.slices,
            self.demand,
            self.whole.mask[rows],
            max(2, depth),  # rows of one number would be added up in another order, and round differently
            self.remaining,
            self.placed,
            self._left,
            rows,
            self.whole,
        )

    def with_more(self, depth: int) -> "Offer":
        """All of these nodes, `depth` rows deep; kept for all who ask for as many, so do not write."""
        deeper = self._deeper.get(depth)
        if deeper is None:
            deeper = self._deeper[depth] = Offer(
                self.job,
                self.group,
                self.view,
                self.slices,
                self.demand,
                self.mask,
                depth,
                self.remaining,
                self.placed,
                self._left,
                self.nodes,
                self._whole,
            )
        return deeper

    def after(
        self,
        m: int,
        mask: BoolArray,
        remaining: int,
        placed: Sequence[tuple[TaskGroup, int]],
        left: Mapping[int, NodeLeft],
    ) -> "Offer":
        """This offer of all nodes to a countable group, once the gang has more tasks on node m and nowhere else. Values
        that are known already are counted again on that node alone."""
        other = Offer(
            self.job,
            self.group,
            self.view,
            self.slices,
            self.demand,
            mask,
            remaining=remaining,
            placed=placed,
            left=left,
        )
        if "slots" in self.__dict__:
            other.slots = self.slots.copy()
            other.slots[m] = slots_on(self.view, left[m], self.demand)
        if "tightness" in self.__dict__:
            other.tightness = self.tightness.copy()
            other.tightness[0, m] = self._tightness_on(m, left[m])
        return other

    @lazy
    def _deeper(self) -> dict[int, "Offer"]:
        return {}

    @lazy
    def changed(self) -> list[tuple[int, int]]:
        """Nodes with tasks of the gang: their places in the arrays, and the nodes."""
        if not self._left or self.nodes is None:
            return [(m, m) for m in self._left]
        return [(i, m) for i, m in enumerate(self.nodes.tolist()) if m in self._left]

    def left_on(self, m: int) -> NodeLeft:
        return self._left[m]

    @lazy
    def counts(self) -> IntArray:
        """(J, 1) more tasks of the group."""
        return np.arange(self.depth)[:, None]

    @lazy
    def free(self) -> FloatArray:
        """(R, J, N) of each resource."""
        free = self._now(self.view.usage.free, lambda left: left.free)[:, None]
        return free if self.depth == 1 else free - self.counts * self.demand[:, None, None]

    @lazy
    def whole_free(self) -> FloatArray:
        """As `free`, but with the GPUs that serve nobody in the row of GPUs: a shared one may be promised twice."""
        free = self._now(self.view.usage.countable_free, NodeLeft.whole)[:, None]
        return free if self.depth == 1 else free - self.counts * whole_gpus(self.demand)[:, None, None]

    def _now(self, kept: FloatArray, of: Callable[[NodeLeft], list[float]]) -> FloatArray:
        """(R, N) as they are before the next task."""
        now = kept if self.nodes is None else kept.take(self.nodes, axis=1)
        if not self.changed:
            return now
        now = now.copy() if self.nodes is None else now
        now[:, [i for i, _ in self.changed]] = np.array([of(self._left[m]) for _, m in self.changed]).T
        return now

    @lazy
    def free_gpus(self) -> FloatArray:
        """(J, N) GPUs that serve nobody."""
        gpus: FloatArray = self.whole_free[GPUS]
        return gpus

    def gpu_usage(self) -> GpuUsage:
        """Of every GPU, for gangs that look at GPUs."""
        now = self.view.usage.of_gpus()
        if not self.changed:
            return now
        usage = now.copy()
        for i, m in self.changed:
            mine = self._left[m].usage
            for values, own in zip(usage, mine or (), strict=False):
                values[i] = own[0]
        return usage

    @lazy
    def task_count(self) -> IntArray:
        """(J, N) tasks of any job."""
        now = self.view.usage.task_count[self.at]
        if self.changed:
            now = now.copy()
            for i, m in self.changed:
                now[i] += len(self._left[m].tasks)
        return now[None] if self.depth == 1 else now + self.counts

    @lazy
    def slots(self) -> FloatArray:
        """(N,) tasks of the group that fit at once, by amounts and GPUs; inf for tasks that ask for nothing."""
        return count_slots(self, self.demand, self.group)

    @lazy
    def most_slots(self) -> float:
        """The most `slots` of a node of the mask; 0 without one."""
        return float(self.slots.max(initial=0.0, where=self.mask))

    @lazy
    def load(self) -> FloatArray:
        """(J, N) as ClusterView.load."""
        if self.nodes is not None or self.depth > 1:
            used = self.free.take(_LOADED, axis=0) * self.inverse_capacity.take(_LOADED, axis=0)
            return np.asarray(self.view.nodes.load_base[self.at] - np.add.reduce(used, axis=0))
        return self.patched(self.view.usage.load, self._load_on)

    def _load_on(self, m: int, left: NodeLeft) -> float:
        inverse: list[float] = self.view.nodes.inverse_capacity[:, m].tolist()
        return load_of(float(self.view.nodes.load_base[m]), left.free, inverse)

    @lazy
    def tightness(self) -> FloatArray:
        """(1, N) as ClusterView.tightness, of the next task."""
        values = self.patched(self.view.usage.tightness, self._tightness_on)
        return values if self.nodes is None else values[:, self.nodes]

    def _tightness_on(self, m: int, left: NodeLeft) -> float:
        return 1.0 / (2.0 + len(left.idle) + max(0.0, left.free[CPU]) / (1.0 + float(self.view.nodes.capacity[CPU, m])))

    def patched(self, values: FloatArray, of: Callable[[int, NodeLeft], float]) -> FloatArray:
        """(1, M) `values` (M,) as they are on the view, but `of` nodes that have tasks of the gang."""
        if self._left:
            values = values.copy()
            for m, left in self._left.items():
                values[m] = of(m, left)
        return values[None]

    @lazy
    def capacity(self) -> FloatArray:
        """(R, 1, N)"""
        return np.asarray(self.view.nodes.capacity[:, None, self.at])

    @lazy
    def inverse_capacity(self) -> FloatArray:
        """(R, 1, N) 1 over the capacity; 0 for a capacity of 0."""
        return np.asarray(self.view.nodes.inverse_capacity[:, None, self.at])

    def kept(self, values: FloatArray, anew: "Callable[[Offer], FloatArray]") -> FloatArray:
        """(J, N) of a number kept per node of the view. `values` (M,) are those without the gang; `anew`, which costs
        more, computes them with the gang's tasks."""
        if self.nodes is not None or self.depth > 1:
            return anew(self)
        if not self.changed:
            return values[None]
        now = values[None].copy()
        nodes = [m for _, m in self.changed]
        now[0, nodes] = anew(self.on(nodes))[0]
        return now


def count_slots(offer: Offer, demand: FloatArray, group: TaskGroup, promised: FloatArray | None = None) -> FloatArray:
    """(N,) tasks of `group`, one of the job's, that fit the offered amounts at once; inf for a task without demand.

    `promised` (R, N): amounts that other tasks are to take first; GPUs counted whole. Slowdown limits of shared GPUs
    are not looked at, and a GPU counts for one task of the job, as two never share one. Do not write.
    """
    view, sharing = offer.view, offer.job.gpu_sharing
    if view.slots.is_countable(demand, group, sharing):
        if promised is None and offer.nodes is None:
            kept: FloatArray = offer.patched(
                view.slots.countable_slots(demand), lambda m, left: slots_on(view, left, demand)
            )[0]
            return kept
        free = offer.whole_free[:, 0]
    else:
        free = offer.free[:, 0].copy()
        free[GPUS] = gpu_slots(offer, demand, group)
    return view.slots.count_slots(free if promised is None else free - promised, demand)


def slots_on(view: ClusterView, left: NodeLeft, demand: FloatArray) -> float:
    """As `count_slots`, of one node that has tasks of the gang, for a countable demand."""
    free = left.whole()
    return whole_tasks(free, view.nodes.need(demand).pairs)


def gpu_slots(offer: Offer, demand: FloatArray, group: TaskGroup) -> FloatArray:
    """(N,) GPUs that can each serve one task of the group, or one GPU's part of it."""
    view, sharing = offer.view, offer.job.gpu_sharing
    if view.slots.wants_whole_gpus(demand, group, sharing):
        return np.asarray(offer.free_gpus[0])
    empty, shared = view.slots.gpu_open(demand, group, sharing)
    found = (empty | shared).sum(axis=1)[offer.at].astype(np.float64)
    for i, m in offer.changed:
        found[i] = open_gpus(view, m, offer.left_on(m), demand, group, offer.job)
    return np.asarray(found)


def open_gpus(view: ClusterView, m: int, left: NodeLeft, demand: FloatArray, group: TaskGroup, job: Job) -> int:
    """As `gpu_slots`, of one node that has tasks of the gang."""
    empty, shared = view.slots.gpu_open(demand, group, job.gpu_sharing, slice(m, m + 1), left.usage)
    return int((empty | shared).sum())


def best_fit(offer: Offer) -> FloatArray:
    """(J, N) more for less free GPUs, then for less free CPU."""
    return np.asarray(-offer.free_gpus - offer.free[CPU] / (1.0 + offer.capacity[CPU]))


def load_of(whole: float, free: Sequence[float], inverse: Sequence[float]) -> float:
    """ClusterView.load of a node with so much free, to the last bit. `whole`: when it is full; `free` and `inverse`,
    that of the capacity, by resource row."""
    cpu, memory, network, gpus = inverse[CPU], inverse[MEMORY], inverse[NETWORK], inverse[GPUS]
    return whole - (free[CPU] * cpu + free[MEMORY] * memory + free[NETWORK] * network + free[GPUS] * gpus)
