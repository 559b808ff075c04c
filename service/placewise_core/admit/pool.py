"""Free resources while the jobs of one request are decided one after the other, and the shapes that fit into them.

Works on copies of the view's arrays: the view itself is never touched. Symmetric shapes (nodes × GPUs per node) for
jobs whose shape admission chooses; for rigid jobs their own tasks, packed onto as few nodes as will take them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from placewise_core.admit.needs import DEFAULT_MAX_GPUS, Kind, elastic_range, is_bare_pipeline
from placewise_core.admit.shapes import NO_OPTIONS, Options, Take, alone, at_least, at_least_within, shapes_of
from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.slices import ONE_SLICE, Slices, spaced
from placewise_core.domain.job import Job, KeepTogether, Shape, TaskGroup
from placewise_core.view.domains import Domains, divided, nodes_of
from placewise_core.view.held import expected_end_s
from placewise_core.view.slots import may_share, tasks_on_gpus, whole_tasks
from placewise_core.view.view import GPU_MEMORY, GPUS, ClusterView

_KEPT_SHAPES = 1024  # kinds of jobs whose shapes a pool remembers
_MOST_TRIED = 16  # domains in which a gang of unequal groups is packed
_COUNTED_SINGLY = 8  # nodes up to which counting one by one is faster than all at once


class _PoolCache:
    """The stamps, idle GPUs and shapes that the pools of one view share until the view changes or something is taken.
    `shapes` goes by kind of job. Jobs that wait are asked about again and again, and queues that are asked at one event
    ask alike."""

    def __init__(self, stamps: tuple[object, ...], gpus: IntArray) -> None:
        self.stamps = stamps
        self.gpus = gpus
        self.total_gpus = int(np.add.reduce(gpus))
        self.shapes: Bounded[object, Options] = Bounded(_KEPT_SHAPES)


class _Key:
    """The key under which a view keeps its `_PoolCache`."""


_CACHE = _Key()


class Pool:
    """Free resources per node. `Pool.free` is for a start now, `Pool.whole` for the empty cluster."""

    def __init__(
        self,
        view: ClusterView,
        usable: BoolArray,
        gpus: IntArray,
        free: FloatArray,
        is_whole: bool,
        gpu_open: BoolArray | None = None,
        shapes: Bounded[object, Options] | None = None,
        time_s: tuple[float, float] | None = None,
    ) -> None:
        """`gpus` (M,): idle ones of the usable nodes, 0 on others. `gpu_open` (M, G): the GPUs of a pool that is not as
        the view is now; all that exist by default. `shapes` found before. `time_s`: of the pool, and now; jobs of the
        view that are expected to end after the first use their network there. None: none does."""
        self.view = view
        self._usable = usable
        self._gpu_open = view.nodes.gpu_exists if gpu_open is None else gpu_open
        self._free_source: FloatArray = free
        self._free: FloatArray | None = None  # copied when first written: most requests never need it
        self._is_whole = is_whole
        self._owns_gpus = False
        self._time_s = time_s
        # Nodes of each job taken here on several, and if it wants their network for itself; whether any does.
        self._spans: list[tuple[IntArray, bool]] = []
        self._owns_networks = False
        self.stamp = 0  # how many times something was taken
        self._is_as_viewed = not is_whole  # nothing was taken yet
        self.gpus = gpus  # copied when first written, as `_free`
        self._total_gpus: int | None = None
        self._idle_nodes: frozenset[str] | None = None
        self._at_least: IntArray | None = None
        self._last_slots: tuple[Job | None, int, tuple[IntArray, int]] = (None, 0, (self.gpus, 1))
        # Of jobs that ask alike, until something is taken.
        self._shapes: Bounded[object, Options] = Bounded(_KEPT_SHAPES) if shapes is None else shapes
        # By demand, with the stamp when they were counted; and the nodes that each take since the first took from.
        self._slots_of: Bounded[bytes, tuple[int, FloatArray]] = Bounded(_KEPT_SHAPES)
        self._taken_from: list[IntArray] = []

    @classmethod
    def free(cls, view: ClusterView, now_s: float) -> "Pool":
        """Free GPUs and resources of the nodes that may be used now."""
        usable = view.usable(now_s)
        stamps = (usable.tobytes(), view.usage.stamp, view.nodes.layout_stamp, view.nodes.telemetry_stamp)
        cache: _PoolCache | None = view.notes.get(_CACHE)
        if cache is None or cache.stamps != stamps:
            cache = view.notes[_CACHE] = _PoolCache(stamps, view.usage.free_gpus * usable)
        pool = cls(
            view, usable, cache.gpus, view.usage.free, is_whole=False, shapes=cache.shapes, time_s=(-math.inf, now_s)
        )
        pool._total_gpus = cache.total_gpus
        return pool

    @classmethod
    def whole(cls, view: ClusterView) -> "Pool":
        """Every node, empty and ready: a job that does not fit here never fits."""
        everything = np.ones(view.nodes.size, dtype=np.bool_)
        return cls(view, everything, view.nodes.gpu_exists.sum(axis=1), view.nodes.capacity, is_whole=True)

    def of(self, view: ClusterView) -> "Pool":
        """This pool, from which nothing was taken, for a view of the same nodes and telemetry."""
        return Pool(view, self._usable, self.gpus, self._free_source, self._is_whole, shapes=self._shapes)

    @property
    def usable(self) -> BoolArray:
        """(M,) do not write."""
        return self._usable

    def without(self, barred: BoolArray) -> "Pool":
        """This pool as it is now, without some of its nodes (M,). Take from the pool itself, by `takes`."""
        return self._copy(self._usable & ~barred)

    def without_networks(self) -> "Pool":
        """This pool as it is now, if no job used its network."""
        other = self._copy(self._usable)
        other._time_s, other._spans, other._owns_networks = None, [], False
        return other

    def _copy(self, usable: BoolArray) -> "Pool":
        """This pool as it is now, on these nodes alone."""
        other = Pool(self.view, usable, self.gpus * usable, self._current(), self._is_whole, self._gpu_open)
        other._time_s, other._spans = self._time_s, list(self._spans)
        other._owns_networks = self._owns_networks
        other._is_as_viewed = self._is_as_viewed
        for key, (stamp, slots) in self._slots_of.items():
            if stamp == self.stamp:
                other._slots_of[key] = 0, slots
        return other

    @property
    def total_gpus(self) -> int:
        if self._total_gpus is None:
            self._total_gpus = int(np.add.reduce(self.gpus))
        return self._total_gpus

    @property
    def idle_nodes(self) -> frozenset[str]:
        """Nodes of which at least one GPU is idle."""
        if self._idle_nodes is None:
            records = self.view.nodes.records
            self._idle_nodes = frozenset([records[m].id for m in self.gpus.nonzero()[0].tolist()])
        return self._idle_nodes

    def resources(self) -> FloatArray:
        """(R, M) free amounts of each resource; 0 on nodes that may not be used."""
        return np.where(self._usable, self._current(), 0.0)

    def domains(self, job: Job) -> Domains | None:
        """The domains of which one must hold the job's nodes; None if all nodes will do."""
        is_crossed = (
            job.exclusive_network or (self._time_s is not None and bool(self.view.exclusive)) or self._owns_networks
        )
        if job.keep_together is KeepTogether.NONE and not is_crossed:
            return None
        if job.is_rigid and job.task_count < 2:
            return None
        return divided(self.view, job.keep_together, self._crossed(job) if is_crossed else ())

    def _crossed(self, job: Job) -> Sequence[int]:
        """Nodes with a part of another job on several nodes, if this job or that one wants its network for itself."""
        found = {m for rows, owns in self._spans if owns or job.exclusive_network for m in rows.tolist()}
        if self._time_s is not None:
            (time_s, now_s), jobs = self._time_s, self.view.jobs
            others = list(jobs.values()) if job.exclusive_network else [jobs[other] for other in self.view.exclusive]
            found.update(nodes_of([r for r in others if expected_end_s(r, now_s) > time_s], job, self.view))
        return sorted(found)

    def options(self, job: Job) -> Options:
        """Every shape that the job may take and that fits now; may be empty."""
        kind = self._kind_of(job)
        found = self._shapes.get(kind)
        if found is None:
            found = self._shapes[kind] = NO_OPTIONS if kind.own_gpus > self.total_gpus else self._options(job)
        return found

    def lacks_gpus(self, job: Job, taken: int = 0) -> bool:
        """True if the job needs more GPUs than are idle once `taken` of them are taken: it has no options then."""
        return self._kind_of(job).own_gpus > self.total_gpus - taken

    def is_on_idle(self, job: Job) -> bool:
        """True if each task of the job takes GPUs that are idle: only `idle_nodes` matter to it."""
        return self._kind_of(job).is_on_idle

    def _kind_of(self, job: Job) -> Kind:
        kept = self.view.nodes.kinds.get(job.id)
        if kept is None or kept[0] is not job:
            kept = self.view.nodes.kinds[job.id] = job, self._found_kind(job)
        kind: Kind = kept[1]
        return kind

    def _found_kind(self, job: Job) -> Kind:
        key = self._key(job)
        kind: Kind | None = self.view.nodes.kind_marks.get(key)
        if kind is None:  # a tuple of its own would be hashed again at every question
            kind = self.view.nodes.kind_marks[key] = Kind.of(job)
        return kind

    def fitting(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Those of the jobs that have a shape that fits, as the pool is when each is reached."""
        kinds = self.view.nodes.kinds
        for job in jobs:
            kept = kinds.get(job.id)
            if kept is not None and kept[0] is job and self._shapes.get(kept[1]) is NO_OPTIONS:
                continue  # as most do, of the many that wait
            if self.options(job) is not NO_OPTIONS:
                yield job

    def _options(self, job: Job) -> Options:
        if job.is_rigid:
            return self._rigid(job)
        if is_bare_pipeline(job):
            return Options(np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        slots, unit = self._slots(job)
        domains = self.domains(job)
        if domains is not None:
            with_at_least = at_least_within(slots, domains)
        else:
            with_at_least = at_least(slots) if job.groups else self._nodes_with()
        return shapes_of(with_at_least, unit, elastic_range(job), job.shape)

    def _key(self, job: Job) -> tuple[object, ...]:
        """Equal for jobs with the same options."""
        key = self._unbound_key(job)
        return (*key, job.keep_together, job.exclusive_network) if job.has_wish else key

    def _unbound_key(self, job: Job) -> tuple[object, ...]:
        if job.is_rigid:
            return (job.gpus, *[(group.count, self._kind(job, group)) for group in job.groups])
        if is_bare_pipeline(job):
            return ()
        wanted = elastic_range(job)
        kind = self._kind(job, job.groups[0]) if job.groups else ()
        return (wanted.min_gpus, wanted.max_gpus, job.shape, kind)

    def _kind(self, job: Job, group: TaskGroup) -> tuple[object, ...]:
        """Equal for jobs whose tasks find equally many places."""
        demand = self.view.nodes.demand_vector(group.demand)
        asked = None if demand is None else demand.tobytes()
        selector = tuple(sorted(group.node_selector.items())) if group.node_selector else ()
        sharing = (job.gpu_sharing.allowed, job.gpu_sharing.max_slowdown)
        return (asked, group.max_per_node, group.gpu_model, selector, sharing, job.architecture)

    def _slots(self, job: Job) -> tuple[IntArray, int]:
        """(M,) GPUs each node can give this job, and the GPUs one task of it takes. Do not write."""
        if not job.groups:
            return self.gpus, 1
        of, stamp, found = self._last_slots  # a shape is found, then taken
        if of is not job or stamp != self.stamp:
            group = job.groups[0]
            unit = max(1, math.ceil(group.demand.gpus))
            found = self._task_counts(job, group) * unit, unit
            self._last_slots = job, self.stamp, found
        return found

    def _nodes_with(self) -> IntArray:
        """(G + 1,) how many nodes have at least g GPUs free."""
        if self._at_least is None:
            self._at_least = at_least(self.gpus)
        return self._at_least

    def _rigid(self, job: Job) -> Options:
        """The job's own gang, within a domain if one must hold it: the one with most room on a node."""
        domains = self.domains(job)
        if domains is None:
            return self._packed(job)
        counts = [self._task_counts(job, group) for group in job.groups]
        slots = [domains.totals(count.astype(np.float64)) for count in counts]
        holds = np.logical_and.reduce([r >= g.count for r, g in zip(slots, job.groups, strict=True)]).nonzero()[0]
        most = np.zeros(domains.count)
        np.maximum.at(most, domains.of, counts[0])
        for d in holds[np.lexsort((slots[0][holds], -most[holds]))][:_MOST_TRIED].tolist():
            found = self._copy(self._usable & (domains.of == d))._packed(job)
            if found is not NO_OPTIONS:
                return found
        return NO_OPTIONS

    def most_together(self, job: Job) -> int:
        """The most tasks of a rigid job that any domain holds, group by group."""
        domains = self.domains(job)
        if domains is None:
            return job.task_count
        slots = [domains.totals(self._task_counts(job, group).astype(np.float64)) for group in job.groups]
        counts = [np.minimum(room, group.count) for room, group in zip(slots, job.groups, strict=True)]
        return int(np.add.reduce(counts).max(initial=0.0))

    def _packed(self, job: Job) -> Options:
        """The job's own gang: each group packed onto the nodes that take most of it, the largest tasks first."""
        if len(job.groups) == 1:
            take = self._pack(job, job.groups[0])
            return (
                NO_OPTIONS if take is None else alone(take, math.ceil(job.groups[0].count * job.groups[0].demand.gpus))
            )
        trial = self._copy(self._usable)
        takes: list[Take] = []
        for group in sorted(job.groups, key=lambda g: (-g.demand.gpus, -g.demand.cpu_cores)):
            take = trial._pack(job, group)
            if take is None:
                return NO_OPTIONS
            trial._apply(take)
            takes.append(take)
        per_node = np.zeros(self.view.nodes.size, dtype=np.int64)
        used = np.zeros(self.view.nodes.size, dtype=np.bool_)
        for take in takes:
            per_node[take.rows] += take.counts * take.gpus
            used[take.rows] = True
        gpus = int(np.ceil(job.gpus))
        on = int((per_node > 0).sum()) or int(used.sum())
        most = int(per_node.max(initial=0)) if gpus else 0
        return Options(np.array([on]), np.array([most]), np.array([gpus]), tuple(takes))

    def _pack(self, job: Job, group: TaskGroup) -> Take | None:
        counts = self._task_counts(job, group)
        if np.add.reduce(counts) < group.count:
            return None
        rows = counts.nonzero()[0]
        order = rows[(-counts[rows]).argsort(kind="stable")[: group.count]]  # each takes a task at least
        left, taken = group.count, []
        for room in counts[order].tolist():
            if not left:
                break
            taken.append(room if room < left else left)
            left -= taken[-1]
        demand = self.view.nodes.demand_vector(group.demand)
        gpus = math.ceil(group.demand.gpus)
        return Take(order[: len(taken)], np.array(taken), demand, gpus, job.exclusive_network)

    def _task_counts(self, job: Job, group: TaskGroup) -> IntArray:
        """(M,) number of tasks of the group that fit each node, beside those taken before."""
        demand = self.view.nodes.demand_vector(group.demand)
        if demand is None:
            return np.zeros(self.view.nodes.size, dtype=np.int64)
        most = float(group.count if job.is_rigid else DEFAULT_MAX_GPUS)
        if group.max_per_node:
            most = min(most, group.max_per_node)
        if not self._wants_whole_gpus(job, group, demand):
            slots = self.view.slots.count_slots(self._current(), demand, self._open_gpus(job, group, demand))
        else:
            slots = self._whole_slots(demand)
        mask = self._usable & self.view.nodes.selected(group) if group.node_selector else self._usable
        return (np.minimum(slots, most) * mask).astype(np.int64)

    def _whole_slots(self, demand: FloatArray) -> FloatArray:
        """(M,) tasks on whole exclusive GPUs that fit each node. Do not write: it is kept, and only nodes from which
        something was taken since are counted again."""
        key = demand.tobytes()
        kept = self._slots_of.get(key)
        if kept is not None and kept[0] == self.stamp:
            return kept[1]
        if self._is_as_viewed:
            slots = self.view.slots.countable_slots(demand)
            self._slots_of[key] = self.stamp, slots
            return slots
        rows: Sequence[int]
        if kept is not None:
            rows = [m for taken in self._taken_from[kept[0] :] for m in taken.tolist()]
        elif demand.item(GPUS) >= 1.0:  # other nodes have no slots
            rows = self.gpus.nonzero()[0].tolist()
        else:
            rows = range(self.view.nodes.size)
        if len(rows) > _COUNTED_SINGLY:
            slots = self.view.slots.count_slots(self._current(), demand, self.gpus)
        else:
            slots = np.zeros(self.view.nodes.size) if kept is None else kept[1].copy()
            pairs = self.view.nodes.need(demand).pairs
            for m in rows:
                free: list[float] = self._current()[:, m].tolist()
                free[GPUS] = float(self.gpus[m])
                slots[m] = whole_tasks(free, pairs)
        self._slots_of[key] = self.stamp, slots
        return slots

    def _wants_whole_gpus(self, job: Job, group: TaskGroup, demand: FloatArray) -> bool:
        """True for whole exclusive GPUs of any model."""
        return not group.gpu_model and demand[GPU_MEMORY] == 0 and not may_share(demand, job.gpu_sharing)

    def _open_gpus(self, job: Job, group: TaskGroup, demand: FloatArray) -> IntArray:
        """(M,) GPUs that could take a task of a group that wants other than whole exclusive GPUs of any model."""
        if self._is_whole:
            taken = self._gpu_open.sum(axis=1) - self.gpus
            return np.asarray(np.maximum(self._existing_gpus(group, demand) - taken, 0))
        empty, shared = self.view.slots.gpu_open(demand, group, job.gpu_sharing)
        taken = self.view.usage.free_gpus - self.gpus  # by the jobs admitted before in this request
        return np.asarray(np.maximum((empty | shared).sum(axis=1) - np.maximum(taken, 0), 0))

    def _existing_gpus(self, group: TaskGroup, demand: FloatArray) -> IntArray:
        memory = demand[GPU_MEMORY] / max(1.0, float(np.ceil(demand[GPUS])))
        fits = self._gpu_open & (self.view.nodes.gpu_memory >= memory)
        if group.gpu_model:
            fits = fits & (self.view.nodes.gpu_model == self.view.nodes.gpu_model_id(group.gpu_model))
        return np.asarray(fits.sum(axis=1))

    def take(self, job: Job, options: Options, i: int) -> None:
        """Takes option i for the job, so that the next job sees the rest."""
        self.apply(self.takes(job, options, i))

    def takes(self, job: Job, options: Options, i: int) -> tuple[Take, ...]:
        """Where option i of this pool would go."""
        if options.takes or options.gpus[i] <= 0:
            return options.takes
        return (self._shape_take(job, options.shape(i)),)

    def apply(self, takes: Sequence[Take]) -> None:
        """Takes them from this pool, for one job."""
        for take in takes:
            self._apply(take)
        if not takes:
            return
        rows = takes[0].rows if len(takes) == 1 else np.unique([m for take in takes for m in take.rows.tolist()])
        if len(rows) > 1:
            self._spans.append((rows, takes[0].is_exclusive))
            self._owns_networks |= takes[0].is_exclusive

    def take_shape(self, job: Job, shape: Shape) -> None:
        """Takes a symmetric shape from the nodes with the least left over; as much of it as there is."""
        self.apply((self._shape_take(job, shape),))

    def _shape_take(self, job: Job, shape: Shape) -> Take:
        slots, unit = self._slots(job)
        fitting = np.flatnonzero(slots >= shape.gpus_per_node)
        if shape.nodes > 1 and (domains := self.domains(job)) is not None:
            fitting = _in_one(fitting, slots, domains, shape.nodes)
        left = slots[fitting]
        order = [int(left.argmin())] if shape.nodes == 1 and len(left) else left.argsort(kind="stable")[: shape.nodes]
        rows = fitting[order]
        tasks = np.full(len(rows), tasks_on_gpus(shape.gpus_per_node, unit))
        demand = self.view.nodes.demand_vector(job.groups[0].demand) if job.groups else None
        return Take(rows, tasks, demand, unit, job.exclusive_network)

    def _apply(self, take: Take) -> None:
        if take.demand is not None:
            if self._free is None:
                self._free = self._free_source.copy()
            self._free[:, take.rows] -= take.demand[:, None] * take.counts
        if take.gpus:
            if not self._owns_gpus:
                self.gpus, self._owns_gpus = self.gpus.copy(), True
            self.gpus[take.rows] = np.maximum(self.gpus[take.rows] - take.counts * take.gpus, 0)
            self._at_least = self._total_gpus = self._idle_nodes = None
        self._is_as_viewed = False
        self.stamp += 1
        self._taken_from.append(take.rows)
        known = self._shapes  # not cleared: other pools of the view may have the same ones
        self._shapes = Bounded(_KEPT_SHAPES)  # nothing fits that did not before
        if self.total_gpus:  # else most jobs are known not to fit by the number of their GPUs
            self._shapes.update([(kind, options) for kind, options in known.items() if options is NO_OPTIONS])

    def _current(self) -> FloatArray:
        return self._free_source if self._free is None else self._free


def _in_one(fitting: IntArray, slots: IntArray, domains: Domains, nodes: int) -> IntArray:
    """Those of the nodes `fitting` in the domain that has so many of them, and least `slots` (M,) there; all if none
    has."""
    of = domains.of[fitting]
    holds = (np.bincount(of, minlength=domains.count) >= nodes).nonzero()[0]
    if not len(holds):
        return fitting
    left = np.bincount(of, slots[fitting], domains.count)
    return np.asarray(fitting[of == holds[left[holds].argmin()]])


def take_promised(jobs: Sequence[Job], pool: Pool, shapes: dict[str, Shape], slices: Slices = ONE_SLICE) -> None:
    """Takes the shapes promised to jobs that have not started yet from the pool."""
    for job in spaced(jobs, slices, 1):
        shape = shapes.get(job.id)
        if shape is None:
            continue
        if job.is_rigid:
            options = pool.options(job)
            if len(options):
                pool.take(job, options, 0)
        elif shape.gpus:
            pool.take_shape(job, shape)
