"""Names the units that may not take a share now, with reasons. Decides nothing about the others."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import BoolArray, FloatArray, IntArray
from placewise_core.basics.slices import ONE_SLICE, Slices, spaced
from placewise_core.domain.cluster import NodeState
from placewise_core.domain.decision import Blocker, Excluded, Reason
from placewise_core.domain.job import Resources
from placewise_core.partition.units import NO_GPU, Units
from placewise_core.view.view import CPU, MEMORY, ClusterView

# In the order of the answer: first those that an operator can solve.
REASONS = (
    Reason.NODE_DOWN,
    Reason.NODE_DRAINING,
    Reason.STALE_TELEMETRY,
    Reason.THERMAL_LIMIT,
    Reason.UTILISATION_LIMIT,
    Reason.INSUFFICIENT_CPU,
    Reason.INSUFFICIENT_MEMORY,
    Reason.INSUFFICIENT_GPU,
    Reason.INSUFFICIENT_GPU_MEMORY,
    Reason.UNIT_BUSY,
    Reason.SHARE_BELOW_THRESHOLD,
)
CODES = {reason: i + 1 for i, reason in enumerate(REASONS)}
MESSAGES = {
    Reason.NODE_DOWN: "the node is down",
    Reason.NODE_DRAINING: "the node is draining",
    Reason.STALE_TELEMETRY: "the node has not reported for too long",
    Reason.THERMAL_LIMIT: "at its temperature limit, or no work fits below it",
    Reason.UTILISATION_LIMIT: "nothing of its capability is left",
    Reason.INSUFFICIENT_CPU: "its node has too few cores free for a share",
    Reason.INSUFFICIENT_MEMORY: "its node has too little memory free for a share",
    Reason.INSUFFICIENT_GPU: "a share asks for a GPU, or for more than one",
    Reason.INSUFFICIENT_GPU_MEMORY: "a share asks for more GPU memory than it has",
    Reason.UNIT_BUSY: "it serves a job",
    Reason.SHARE_BELOW_THRESHOLD: "its share would be too small to be worth the overhead",
}
NOTHING = Resources()  # demand of a share that names none
_KEPT = 4096  # longest answer kept for repeats; usual ones are well below
_NAMED = 256  # a task split over part of 10 000 nodes has tens of thousands left: named one by one only when explained


@dataclass(slots=True)
class Exclusion:
    """(U,) reason code of every unit considered: 0 = may be used, −1 = not asked for, else CODES.

    Its answers are kept: the same exclusion serves request after request while nothing happens in the cluster.
    """

    codes: NDArray[np.int8]
    _named: dict[bool, tuple[Excluded, ...]] = field(default_factory=dict)
    _blockers: tuple[Blocker, ...] | None = None

    def add(self, mask: BoolArray, reason: Reason) -> None:
        """Excludes units that were usable so far; the first reason found stays. Only before the first answer."""
        self.codes[mask & (self.codes == 0)] = CODES[reason]

    def leaving(self, rows: IntArray, reason: Reason) -> "Exclusion":
        """Another that also excludes every usable unit that is not among `rows`."""
        codes = self.codes.copy()
        codes[codes == 0] = CODES[reason]
        codes[rows] = 0
        return Exclusion(codes)

    def named(self, units: Units, is_explaining: bool, slices: Slices = ONE_SLICE) -> tuple[Excluded, ...]:
        """Excluded units one by one, in the order of REASONS; the first 256 unless explained."""
        if (named := self._named.get(is_explaining)) is not None:
            return named
        limit = len(self.codes) if is_explaining else _NAMED
        found: list[Excluded] = []
        for reason in self.counts():
            code = CODES[reason]
            rows = np.flatnonzero(self.codes == code)[: limit - len(found)].tolist()
            found += [units.entries.get((u, code)) or _entry(units, u, reason) for u in spaced(rows, slices)]
        named = self._named[is_explaining] = tuple(found)
        return named

    def blockers(self) -> tuple[Blocker, ...]:
        """How many units each reason keeps out."""
        if self._blockers is None:
            counts = self.counts().items()
            self._blockers = tuple([Blocker(r, nodes=count, message=MESSAGES[r]) for r, count in counts])
        return self._blockers

    def counts(self) -> dict[Reason, int]:
        """How many units each reason keeps out, in the order of REASONS, without those that keep out none."""
        counts: list[int] = np.bincount(np.maximum(self.codes, 0), minlength=len(REASONS) + 1).tolist()
        return {reason: count for reason, count in zip(REASONS, counts[1:], strict=True) if count}


def _entry(units: Units, u: int, reason: Reason) -> Excluded:
    excluded = Excluded(units.node_ids[u], units.names[u], reason, MESSAGES[reason])
    if len(units.entries) < _KEPT:
        units.entries[u, CODES[reason]] = excluded
    return excluded


def excluded_units(
    units: Units,
    view: ClusterView,
    wanted: BoolArray | None,
    now_s: float,
    allowed_s: FloatArray,
    demand: Resources,
    own: BoolArray | None = None,
) -> Exclusion:
    """Who may not be used, for every reason but the threshold. `allowed_s` (2M,) is 0 for units at their limit; `own`
    (U,) are busy units that the task's own job holds."""
    codes = np.zeros(len(units.node), dtype=np.int8)
    if wanted is not None:
        codes[~wanted] = -1
    exclusion = Exclusion(codes)
    for mask, reason in _node_masks(view, now_s):
        if mask.any():
            exclusion.add(mask[units.node], reason)
    too_hot = allowed_s <= 0
    if too_hot.any():
        exclusion.add(too_hot[units.heat], Reason.THERMAL_LIMIT)
    idle = units.is_idle(view)
    if own is not None:
        idle = idle | own
    if not idle.all():
        exclusion.add(~idle, Reason.UNIT_BUSY)
    if demand != NOTHING:
        _exclude_small(exclusion, units, view, demand)
    return exclusion


def _node_masks(view: ClusterView, now_s: float) -> list[tuple[BoolArray, Reason]]:
    masks = []
    if not view.nodes.is_ready.all():
        draining = np.zeros(view.nodes.size, dtype=np.bool_)
        for m in np.flatnonzero(~view.nodes.is_ready):
            draining[m] = view.nodes.records[m].state is NodeState.DRAINING
        masks += [(~view.nodes.is_ready & ~draining, Reason.NODE_DOWN), (draining, Reason.NODE_DRAINING)]
    masks.append((view.is_stale(now_s), Reason.STALE_TELEMETRY))
    return masks


def _exclude_small(exclusion: Exclusion, units: Units, view: ClusterView, demand: Resources) -> None:
    """Excludes units that cannot hold a share's demand. A node with room for some of its units keeps so many."""
    if demand.gpus > 0:
        exclusion.add((units.gpu == NO_GPU) | np.full(len(units.gpu), demand.gpus > 1), Reason.INSUFFICIENT_GPU)
    if demand.gpu_memory_gib > 0:
        memory = np.where(units.gpu == NO_GPU, 0.0, units.gpu_memory_gib[units.node])
        exclusion.add(memory < demand.gpu_memory_gib, Reason.INSUFFICIENT_GPU_MEMORY)
    vector = view.nodes.demand_vector(demand)
    rows = ((CPU, Reason.INSUFFICIENT_CPU), (MEMORY, Reason.INSUFFICIENT_MEMORY))
    for row, reason in rows:
        if vector is not None and vector[row] > 0:
            slots = view.slots.count_slots(view.usage.free, np.where(np.arange(len(vector)) == row, vector, 0.0))
            open_units = exclusion.codes == 0
            rank = _rank_on_node(units.node, open_units)
            exclusion.add(open_units & (rank >= slots[units.node]), reason)


def _rank_on_node(node: IntArray, is_open: BoolArray) -> IntArray:
    """(U,) how many open units of the same node come before each unit; `node` is sorted."""
    before: IntArray = np.cumsum(is_open) - is_open
    starts = np.searchsorted(node, np.arange(int(node.max(initial=-1)) + 1))
    return np.asarray(before - before[starts][node]) if len(node) else before
