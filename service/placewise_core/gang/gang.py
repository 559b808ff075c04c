"""Gang: one placement in the making. It keeps account of its own nodes and never writes the view.

The caller asks for an `offer` of one of the gang's groups, chooses a node, and calls `take`; the next offer has that
node as the gang leaves it. Decides nothing but which GPUs of a node a task gets.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, NodeId, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gpus import pick_gpus, takers, tolerant_gpus
from placewise_core.gang.offer import NodeLeft, Offer, best_fit, open_gpus, slots_on
from placewise_core.view.domains import Domains, domains_of
from placewise_core.view.nodes import whole_gpus
from placewise_core.view.slots import may_share, tasks_on_gpus, whole_tasks
from placewise_core.view.usage import tenant_of
from placewise_core.view.view import CPU, GPUS, ClusterView

_WALKED = 256  # tasks placed to see whether domains hold a gang that counting says nothing of: bounds the time
_COUNTED_SINGLY = 6  # nodes with room up to which asking one by one is faster than counting all
_ROLE_NAMES = {Role.WORKER: "worker", Role.PARAMETER_SERVER: "ps"}


@frozen
class Wanted:
    """The demand of one task of a group: `demand` (R,), `gpus` counted whole, the demand again as `amounts` by resource
    row, and as `whole` with GPUs counted whole. `is_countable`: amounts and idle GPUs alone decide how many tasks
    fit."""

    demand: FloatArray
    gpus: int
    amounts: tuple[tuple[int, float], ...]
    whole: tuple[tuple[int, float], ...]
    is_countable: bool


class Gang:
    """`placed`: (group, node) of each task so far · `left`: the nodes that have its tasks, as these leave them ·
    usable (M,): the nodes that may have tasks; do not write · `domains`: those that the gang may still choose among, by
    its first task; None once it has, and if all nodes will do."""

    def __init__(self, job: Job, view: ClusterView, context: PlaceContext, *, looks_at_gpus: bool = False) -> None:
        """`looks_at_gpus`: the caller will ask for each GPU's tenants; else they are counted only if the gang needs
        them."""
        self.job, self.view, self.context = job, view, context
        self.placed: list[tuple[TaskGroup, int]] = []
        self.left: dict[int, NodeLeft] = {}
        self.tasks: list[Assignment] = []  # in the order they were placed
        self._at_once: tuple[Assignment, ...] = ()  # instead of these, of a gang that got its nodes in one call
        self._counts: dict[tuple[int, int], int] = {}  # (group's id, node) → tasks, where their number is limited
        self._begun: dict[int, int] = {}  # by group's id, tasks placed
        self._first = first = _first_of(job, view, context)
        self._names, self._wanted, self.remaining = first.names, first.wanted, first.task_count
        self.usable, self.domains = first.usable, first.domains
        self.kept = -1  # a node of the domain that the gang is kept to
        self._looks_at_gpus = looks_at_gpus or first.looks_at_gpus

    def wanted(self, group: TaskGroup) -> Wanted | None:
        """None if the group asks for a resource that no node has."""
        return self._wanted[id(group)]

    def is_countable(self, group: TaskGroup) -> bool:
        """As Wanted.is_countable; False if the group asks for a resource that no node has."""
        wanted = self._wanted[id(group)]
        return wanted is not None and wanted.is_countable

    def groups(self) -> Sequence[TaskGroup]:
        """Those with the largest dominant share first: large tasks are the hard ones to fit."""
        groups = self.job.groups
        if len(groups) < 2:
            return groups
        return sorted(groups, key=lambda group: -self.view.nodes.dominant_share(group.demand))

    def count(self, group: TaskGroup, m: int) -> int:
        """Tasks of the group on node m."""
        return self._counts.get((id(group), m), 0)

    def remaining_of(self, group: TaskGroup) -> int:
        """Tasks of the group still to place."""
        return group.count - self._begun.get(id(group), 0)

    def next_name(self, group: TaskGroup) -> str:
        """The name of the group's next task. Raises IndexError if none is left."""
        return self._names[id(group)][self._begun.get(id(group), 0)]

    def keep_to(self, m: int) -> "Gang":
        """Keeps a gang of which nothing is placed to the domain of node m. The gang."""
        if self.domains is not None:
            self.usable = self.usable & self.domains.around(m)
            self.domains, self.kept = None, m
        return self

    def alike(self) -> "Gang":
        """The same gang with nothing placed, kept to the same domain."""
        other = Gang(self.job, self.view, self.context)
        return other if self.kept < 0 else other.keep_to(self.kept)

    @property
    def most_together(self) -> int:
        """The most tasks that any domain holds, group by group; those of the gang if all nodes will do."""
        return self._first.most_together

    # -- what nodes offer ---------------------------------------------------------------------------------------

    def open(self, group: TaskGroup) -> BoolArray:
        """(M,) nodes that are usable and carry the labels the group asks for. Do not write."""
        return self.usable & self.view.nodes.selected(group) if group.node_selector else self.usable

    def offer(self, group: TaskGroup, mask: BoolArray | None = None) -> Offer | None:
        """Every node's offer to the group's next task; None if the group asks for a resource that no node has.
        `mask`: the nodes open to that task, if the caller knows them."""
        wanted = self.wanted(group)
        if wanted is None:
            return None
        if self.placed or self.kept >= 0:
            mask = self.mask_of(group, wanted) if mask is None else mask
            return Offer(
                self.job,
                group,
                self.view,
                self.context.slices,
                wanted.demand,
                mask,
                remaining=self.remaining,
                placed=self.placed,
                left=self.left,
            )
        found = None if mask is not None else self._first.offers.get(id(group))
        if found is None:
            slots = self.view.slots.countable_slots(wanted.demand) if wanted.is_countable else None
            first = self.mask_of(group, wanted, slots) if mask is None else mask
            slices = self.context.slices
            found = Offer(
                self.job, group, self.view, slices, wanted.demand, first, remaining=self.remaining, slots=slots
            )
            if mask is None:
                self._first.offers[id(group)] = found
        return found

    def offer_after(self, before: Offer, m: int) -> Offer:
        """`offer` of a countable group that has taken node m since the offer before, and no other."""
        mask = before.mask.copy()
        mask[m] = mask[m] and self.fits_on(before.group, m)
        return before.after(m, mask, self.remaining, self.placed, self.left)

    def mask_of(self, group: TaskGroup, wanted: Wanted, slots: FloatArray | None = None) -> BoolArray:
        """(M,) nodes that the group's next task may go to. `slots`: the view's, of a countable group, if counted."""
        if wanted.is_countable:
            mask = (self.view.slots.countable_slots(wanted.demand) if slots is None else slots) >= 1.0
            mask &= self.usable
            if group.node_selector:
                mask &= self.view.nodes.selected(group)
        else:
            mask = self.view.slots.feasible(wanted.demand, group, self.job.gpu_sharing, self.usable)
        for m in self.left:
            mask[m] = mask[m] and self.fits_on(group, m)
        return mask

    def fits_on(self, group: TaskGroup, m: int) -> bool:
        """Whether another task of the group fits node m, which has tasks of the gang; usability and labels aside."""
        wanted, left = self._wanted[id(group)], self.left[m]
        if wanted is None or (group.max_per_node and self.count(group, m) >= group.max_per_node):
            return False
        free = left.whole() if wanted.is_countable else left.free
        for row, amount in wanted.whole:
            if free[row] < amount and (row != GPUS or wanted.is_countable):
                return False
        if wanted.is_countable:
            return True
        return open_gpus(self.view, m, left, wanted.demand, group, self.job) >= wanted.gpus

    def slots_on(self, group: TaskGroup, m: int) -> float:
        """Tasks of the group that node m takes at once, counted; inf for tasks that ask for nothing. A group that
        is not countable has counts only for the nodes of the gang's tasks."""
        wanted, left = self._wanted[id(group)], self.left.get(m)
        assert wanted is not None
        if left is None:
            return float(self.view.slots.countable_slots(wanted.demand)[m])
        if wanted.is_countable:
            return slots_on(self.view, left, wanted.demand)
        free = left.whole()
        free[GPUS] = open_gpus(self.view, m, left, wanted.demand, group, self.job)
        return whole_tasks(free, wanted.whole)

    def lacks_slots(self, group: TaskGroup) -> bool:
        """True if counting says that the group fits in no way."""
        is_first = not self.placed and self.kept < 0
        known = self._first.lacks_slots.get(id(group)) if is_first else None
        if known is None:
            known = self._counts_too_few(group)
            if is_first:
                self._first.lacks_slots[id(group)] = known
        return known

    def _counts_too_few(self, group: TaskGroup) -> bool:
        wanted, offer = self.wanted(group), self.offer(group)
        if wanted is None or offer is None:
            return True
        if group.count == 1 or not wanted.is_countable:
            return False
        nodes = np.count_nonzero(offer.mask)
        if nodes >= group.count:
            return False
        if nodes > _COUNTED_SINGLY:
            return bool(offer.slots.sum(where=offer.mask) < group.count)
        return sum([self.slots_on(group, m) for m in offer.mask.nonzero()[0].tolist()]) < group.count

    def takers(self, group: TaskGroup, mask: BoolArray) -> BoolArray:
        """(M,) the nodes of `mask` that really take the group's next task, slowdown limits of shared GPUs included."""
        wanted = self._wanted[id(group)]
        assert wanted is not None
        return takers(self.view, mask, self.job, group, wanted.demand, self.context.interference, self.left)

    def slots_each(self, group: TaskGroup) -> FloatArray:
        """(M,) tasks of the group, of which none is placed, that each node takes at once, slowdown limits included."""
        wanted, offer = self.wanted(group), self.offer(group)
        if wanted is None or offer is None:
            return np.zeros(self.view.nodes.size)
        slots = np.minimum(offer.slots, float(min(group.count, group.max_per_node or group.count)))
        if may_share(wanted.demand, self.job.gpu_sharing):
            given = (self.job, group, wanted.demand, self.context.interference)
            slots = np.minimum(slots, tasks_on_gpus(tolerant_gpus(self.view, offer.mask, *given), wanted.gpus))
        return np.asarray(slots * offer.mask)

    # -- placing ------------------------------------------------------------------------------------------------

    def take(self, group: TaskGroup, m: int, count: int = 1) -> bool:
        """Places the group's next `count` tasks on node m, which has the room; several only of a countable group.
        False, and nothing is placed, where GPUs there turn out too slow to share."""
        key = id(group)
        wanted, names, begun = self._wanted[key], self._names[key], self._begun.get(key, 0)
        assert wanted is not None
        left = self.left.get(m)
        each = wanted.gpus
        gpus: tuple[int, ...] = ()
        if not wanted.is_countable:
            picked = pick_gpus(self.view, m, self.job, group, wanted.demand, self.context.interference, left)
            if picked is None:
                return False
            gpus = picked
        if self.domains is not None:
            self.keep_to(m)
        if left is None:
            left = self.left[m] = NodeLeft(self.view, m)
        if wanted.is_countable and each:
            gpus, left.idle = tuple(left.idle[: each * count]), left.idle[each * count :]
        for row, amount in wanted.amounts:
            left.free[row] -= amount * count
        node = self.view.nodes.records[m].id
        if count == 1:
            left.tasks.append(group)
            self.placed.append((group, m))
            self.tasks.append(Assignment(names[begun], group.role, node, gpus, group.demand))
        else:
            left.tasks += [group] * count
            self.placed += [(group, m)] * count
            for i in range(count):
                mine = gpus[i * each : (i + 1) * each]
                self.tasks.append(Assignment(names[begun + i], group.role, node, mine, group.demand))
        self._begun[key] = begun + count
        if gpus and self._looks_at_gpus:
            self._occupy(left, m, gpus)
        self.remaining -= count
        if group.max_per_node:
            self._counts[key, m] = self.count(group, m) + count
        return True

    def take_all(self, group: TaskGroup, nodes: Sequence[int]) -> None:
        """Places the next tasks of a countable group on these nodes, one after the other."""
        if self._looks_at_gpus or self.left or self.remaining > len(nodes) or self.domains is not None:
            for m in nodes:
                self.take(group, m)
            return
        begun = self._begun.get(id(group), 0)
        if self.placed:
            self.tasks += self._assigned(group, nodes, begun)
        else:
            key = id(group), *nodes
            kept = self._first.assigned.get(key)
            if kept is None:
                kept = self._first.assigned[key] = self._assigned(group, nodes, begun)
            self._at_once = kept
        self._begun[id(group)] = begun + len(nodes)
        self.placed += [(group, m) for m in nodes]
        self.remaining = 0

    def finish(self) -> list[int] | None:
        """Places the rest by best fit. The nodes of its tasks in their order; None if that leads into a dead end."""
        found: list[int] = []
        for group in self.groups():
            while self.remaining_of(group):
                wanted = self._wanted[id(group)]
                if wanted is None:
                    return None
                mask = self.takers(group, self.mask_of(group, wanted))
                offer = self.offer(group, mask)
                if offer is None or not mask.any():
                    return None
                m = int(np.where(mask, best_fit(offer)[0], -np.inf).argmax())
                if not self.take(group, m):
                    return None
                found.append(m)
                self.context.slices.pause()
        return found

    def _assigned(self, group: TaskGroup, nodes: Sequence[int], begun: int) -> tuple[Assignment, ...]:
        """The group's tasks from the one numbered `begun` on, one on each of these nodes, which have none yet."""
        wanted, idle = self._wanted[id(group)], self._first.idle
        assert wanted is not None
        each, role, demand = wanted.gpus, group.role, group.demand
        names = self._names[id(group)][begun:]
        taken: dict[int, int] = {}
        tasks: list[Assignment] = []
        for name, m in zip(names, nodes, strict=False):  # the rest of these nodes is not needed
            if m not in taken:
                taken[m] = 0
                if m not in idle:
                    idle[m] = self.view.nodes.records[m].id, tuple(self.view.usage.idle_gpus(m))
            (node, gpus), before = idle[m], taken[m]
            taken[m] = before + each
            tasks.append(Assignment(name, role, node, gpus[before : before + each], demand))
        return tuple(tasks)

    def _occupy(self, left: NodeLeft, m: int, gpus: tuple[int, ...]) -> None:
        """Another task, the last one placed, has these GPUs: as ClusterView counts it."""
        left.taken.update(gpus)
        left.idle = [g for g in left.idle if g not in left.taken]
        if left.usage is None:
            left.usage = self.view.usage.of_gpus(slice(m, m + 1)).copy()
        tenant, usage, at = tenant_of(self.job, self.tasks[-1]), left.usage, (0, list(gpus))
        usage.tenant_count[at] += 1
        usage.is_exclusive[at] |= not tenant.is_sharing
        usage.fraction_free[at] -= tenant.fraction
        usage.memory_free[at] -= tenant.memory_gib

    def assignments(self) -> tuple[Assignment, ...]:
        """The placement in the order of the request. Raises ValueError before the gang is complete."""
        if self.remaining:
            raise ValueError(f"job {self.job.id}: {self.remaining} tasks are not placed yet")
        if len(self.job.groups) == 1:
            return self._at_once or tuple(self.tasks)
        order = {name: i for i, (_, name) in enumerate(task_names(self.job))}
        return tuple(sorted(self.tasks, key=lambda task: order[task.task]))


class _First:
    """A gang before anything of it is placed, and what nodes offer it: those who propose for one job ask for the same.
    `wanted` and `names` by the group's id."""

    def __init__(self, job: Job, view: ClusterView, now_s: float, barred: BoolArray | None) -> None:
        self.job, self.view, self.now_s, self.barred = job, view, now_s, barred
        self.usage_stamp, self.layout_stamp, self.telemetry_stamp = (
            view.usage.stamp,
            view.nodes.layout_stamp,
            view.nodes.telemetry_stamp,
        )
        self.usable = view.usable(now_s)
        self.task_count = job.task_count
        if barred is not None:
            self.usable &= ~barred
        self.domains: Domains | None = None
        self.most_together = self.task_count
        self.offers: dict[int, Offer] = {}
        self.lacks_slots: dict[int, bool] = {}  # by the group's id
        self.idle: dict[int, tuple[NodeId, tuple[int, ...]]] = {}  # by node, its id and its idle GPUs
        self.assigned: dict[tuple[int, ...], tuple[Assignment, ...]] = {}  # by the group's id and nodes
        self.names = _names_of(job)
        self.wanted = {id(group): _wanted(job, group, view) for group in job.groups}
        self.looks_at_gpus = any(wanted is not None and not wanted.is_countable for wanted in self.wanted.values())


def _first_of(job: Job, view: ClusterView, context: PlaceContext) -> _First:
    kept: _First | None = context.first_offers
    if (
        kept is not None
        and kept.job is job
        and kept.view is view
        and kept.now_s == context.now_s
        and kept.barred is context.barred
        and kept.usage_stamp == view.usage.stamp
        and kept.layout_stamp == view.nodes.layout_stamp
        and kept.telemetry_stamp == view.nodes.telemetry_stamp
    ):
        return kept
    context.first_offers = kept = _First(job, view, context.now_s, context.barred)
    if job.has_wish or view.exclusive:
        kept.domains = domains_of(job, view, context.heeds_together, context.heeds_network)
    if kept.domains is not None:
        usable, kept.most_together = _open_domains(Gang(job, view, context), kept.domains)
        kept.usable = usable
        kept.offers.clear()
        kept.lacks_slots.clear()
    return kept


def _open_domains(gang: Gang, domains: Domains) -> tuple[BoolArray, int]:
    """(M,) the usable nodes of the domains that hold the whole gang, and the most tasks that any of them holds.

    Counting decides for one group; several compete for what a node has."""
    groups = gang.job.groups
    held = [np.minimum(domains.totals(gang.slots_each(group)), float(group.count)) for group in groups]
    is_open = np.logical_and.reduce([most >= group.count for most, group in zip(held, groups, strict=True)])
    most = int(np.add.reduce(held).max(initial=0.0))
    if len(groups) > 1 and is_open.any():
        on_gpus = [gang.is_countable(group) for group in groups if group.demand.gpus]
        is_counted = all(on_gpus) or (len(on_gpus) == 1 and len(groups) == 2)
        is_open &= _filled(gang, domains) if is_counted else _finished(gang, domains, is_open)
    return np.asarray(gang.usable & is_open[domains.of]), most


def _filled(gang: Gang, domains: Domains) -> BoolArray:
    """(D,) the domains in which best fit places a gang, of which no two groups look at GPUs one by one. All at once: it
    fills node after node in the order of its scores, as a node with one more task is a better fit than before."""
    view, fits = gang.view, np.ones(domains.count, dtype=np.bool_)
    free, cpu = view.usage.countable_free.copy(), 1.0 + view.nodes.capacity[CPU]
    for group in gang.groups():
        wanted = gang.wanted(group)
        assert wanted is not None
        at_once = None if wanted.is_countable else np.full(view.nodes.size, group.count * wanted.gpus)
        slots = np.minimum(view.slots.count_slots(free, wanted.demand, at_once), gang.slots_each(group))
        order = np.lexsort((free[GPUS] + free[CPU] / cpu, domains.of))
        before = slots[order].cumsum() - slots[order]
        first = np.diff(domains.of[order], prepend=-1) != 0  # node of its domain
        before -= np.maximum.accumulate(np.where(first, before, 0.0))
        taken = np.zeros(view.nodes.size)
        taken[order] = np.clip(group.count - before, 0.0, slots[order])
        fits &= domains.totals(taken) >= group.count
        free -= whole_gpus(wanted.demand)[:, None] * taken
    return fits


def _finished(gang: Gang, domains: Domains, is_open: BoolArray) -> BoolArray:
    """(D,) the domains in which best fit was seen to place the gang, task by task: of the open ones as many as the time
    allows, those of the most nodes first."""
    found, nodes = np.zeros(domains.count, dtype=np.bool_), domains.totals(gang.usable.astype(np.float64))
    candidates = is_open.nonzero()[0]
    for d in candidates[(-nodes[candidates]).argsort(kind="stable")][: max(1, _WALKED // gang.remaining)].tolist():
        m = int((gang.usable & (domains.of == d)).argmax())
        found[d] = gang.alike().keep_to(m).finish() is not None
        gang.context.slices.pause()
    return found


def _wanted(job: Job, group: TaskGroup, view: ClusterView) -> Wanted | None:
    demand = view.nodes.demand_vector(group.demand)
    if demand is None:
        return None
    need = view.nodes.need(demand)
    is_countable = view.slots.is_countable(demand, group, job.gpu_sharing)
    return Wanted(demand, math.ceil(demand.item(GPUS)), need.exact, need.pairs, is_countable)


def _names_of(job: Job) -> dict[int, Sequence[str]]:
    """The names of each group's tasks, by the group's id."""
    if len(job.groups) == 1:
        group = job.groups[0]
        return {id(group): _names(group.role, 0, group.count)}
    names: dict[int, list[str]] = {}
    for group, name in task_names(job):
        names.setdefault(id(group), []).append(name)
    return {key: tuple(found) for key, found in names.items()}


def task_names(job: Job) -> list[tuple[TaskGroup, str]]:
    """Every task of the gang with its group, named "worker-0", "ps-1", … in the order of the request. Names count on
    per role, so that two groups of workers share one numbering."""
    counts: dict[Role, int] = {}
    named: list[tuple[TaskGroup, str]] = []
    for group in job.groups:
        first = counts.get(group.role, 0)
        counts[group.role] = first + group.count
        named += [(group, name) for name in _names(group.role, first, group.count)]
    return named


@lru_cache(maxsize=1024)  # gangs of a few sizes come again and again
def _names(role: Role, first: int, count: int) -> Sequence[str]:
    stem = _ROLE_NAMES[role]
    return tuple([f"{stem}-{i}" for i in range(first, first + count)])
