"""The heat-island policy: how many units, which, and how much each, so that all finish together and none gets too hot.

Heat-island paper (1)–(6) and Algorithm 3, plus the prediction its authors name as the next step. The strongest idle
units are used; k comes from the threshold alone. Where heat caps what k units may take, further idle units join, and
where all of them cannot take it the task waits.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewise_core.decision import Blocker, Excluded, Outcome, PartitionPlan, Reason, Share
from placewise_core.partition.capability import Weights, node_capabilities
from placewise_core.partition.exclusion import Exclusion, excluded_units
from placewise_core.partition.overhead import overhead_s
from placewise_core.partition.policy import DivisibleTask, PartitionContext, ShareProgress
from placewise_core.partition.reschedule import handed_out, how_far, is_late, rescheduled
from placewise_core.partition.shares import levelled
from placewise_core.partition.thermal import ThermalModel, ThermalState, allowed_s, peak_celsius, thermal_state
from placewise_core.partition.threshold import threshold_scale, unit_count
from placewise_core.partition.units import Units, UnitsCache, selected
from placewise_core.view import ClusterView, FloatArray, IntArray

_COOLED_BY = 20.0  # °C below its limit at which a unit counts as cool, where the question is "could it ever?"


@dataclass(frozen=True, slots=True)
class _Figures:
    """What one telemetry report leaves to be worked out once: (M,) per node, (U,) per unit."""

    capability: FloatArray  # (M,) scale per second of a unit there
    of_units: FloatArray  # (U,)
    strongest_first: IntArray  # (U,) ties in node order
    serial: float  # C_s: mean over the nodes of what their CPU, memory and cache make up
    thermal: ThermalState  # (M,)
    allowed_s: FloatArray  # (M,)


class _FiguresCache:
    """The figures of the view last asked about, until its layout or its telemetry changes."""

    def __init__(self) -> None:
        self._key: tuple[weakref.ref[ClusterView], int, int] | None = None
        self._figures: _Figures | None = None

    def of(self, view: ClusterView, build: Callable[[], _Figures]) -> _Figures:
        key = (weakref.ref(view), view.layout_stamp, view.telemetry_stamp)
        if self._figures is None or self._key != key:  # references compare by what they refer to
            self._figures, self._key = build(), key
        return self._figures


@dataclass(slots=True)
class _Candidates:
    """Usable units, strongest first: (K,) index, capability in scale per second, seconds allowed."""

    rows: IntArray
    capability: FloatArray
    allowed_s: FloatArray

    def led_by(self, i: int) -> "_Candidates":
        """The same with unit i first, where the serial part is done."""
        order = np.concatenate([[i], np.delete(np.arange(len(self.rows)), i)])
        return self.take(order) if i else self

    def take(self, chosen: IntArray | slice) -> "_Candidates":
        return _Candidates(self.rows[chosen], self.capability[chosen], self.allowed_s[chosen])

    def after(self, serial_scale: float) -> "_Candidates":
        """The first unit has worked off the serial part already: that much less may follow."""
        allowed = self.allowed_s.copy()
        allowed[0] = max(allowed[0] - serial_scale / self.capability[0], 0.0)
        return replace(self, allowed_s=allowed)

    @property
    def room(self) -> float:
        """Scale these units may take together before the first limit."""
        return float((self.capability * self.allowed_s).sum())


class HeatIsland:
    """Splits a task over idle units; `capability` is the parsed capability.json.

    Raises ValueError for a file of another schema.
    """

    name = "heat-island"

    def __init__(self, capability: Mapping[str, Any]) -> None:
        if capability.get("schema") != "placewise.capability/1":
            raise ValueError("not a placewise.capability/1 file")
        self._weights = Weights.from_mapping(capability["weights"])
        self._gpu_thermal = ThermalModel.from_mapping(capability["thermal"]["gpu"])
        self._cpu_thermal = ThermalModel.from_mapping(capability["thermal"]["cpu"])
        self._default_overhead_s = float(capability["default_overhead_s"])
        self._units = UnitsCache()
        self._figures = _FiguresCache()

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        q = overhead_s(task, view.overheads, self._default_overhead_s)
        if view.size == 0:
            return _nothing(Outcome.NO_FIT, q, (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),))
        units = self._units.of(view)
        figures = self._figures.of(view, lambda: self._work_out(view, units))
        wanted, unknown = selected(units, view, context.units) if context.units else (None, [])
        own = units.held_by(view, task.id) if task.id else None
        exclusion = excluded_units(units, view, wanted, context.now_s, figures.allowed_s, task.demand, own)
        if not figures.capability.all():
            exclusion.add((figures.capability <= 0)[units.node], Reason.UTILISATION_LIMIT)
        plan = self._plan(task, units, figures, exclusion, q)
        return replace(
            plan,
            excluded=(*_unknown(unknown), *exclusion.named(units, context.is_explaining)),
            blockers=(*plan.blockers, *exclusion.blockers()),
        )

    def reschedule(
        self, task: DivisibleTask, progress: Sequence[ShareProgress], view: ClusterView, context: PartitionContext
    ) -> PartitionPlan:
        """Scheduler step 7: as PartitionPolicy. A unit on a node that is not usable any more leaves as well."""
        q = overhead_s(task, view.overheads, self._default_overhead_s)
        if view.size == 0:
            return _nothing(Outcome.NO_FIT, q, (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),))
        figures = self._figures.of(view, lambda: self._work_out(view, self._units.of(view)))
        usable = view.usable(context.now_s)
        working = [p for p in progress if p.done < 1.0]
        rows = {p.node: view.index.get(p.node, -1) for p in working}
        leaving = {
            (p.node, p.unit)
            for p in working
            if p.is_move_requested or is_late(p, q) or rows[p.node] < 0 or not usable[rows[p.node]]
        }
        allowed = {node: float(figures.allowed_s[m]) if m >= 0 else 0.0 for node, m in rows.items()}
        return rescheduled(handed_out(working, q), leaving, how_far(working, allowed))

    # -- what there is ------------------------------------------------------------------------------------------

    def _work_out(self, view: ClusterView, units: Units) -> _Figures:
        parts = node_capabilities(view, units.gpu_memory_gib, units.has_gpu, self._weights) * view.size
        capability = np.asarray(parts.sum(axis=0))
        of_units = capability[units.node]
        thermal = self._thermal(view, units)
        return _Figures(
            capability=capability,
            of_units=of_units,
            strongest_first=np.argsort(-of_units, kind="stable"),
            serial=float(parts[:3].sum(axis=0).mean()),
            thermal=thermal,
            allowed_s=allowed_s(thermal),
        )

    def _thermal(self, view: ClusterView, units: Units) -> ThermalState:
        """(M,) thermal state of a unit of each node, from what the node reports."""
        cpu_celsius, gpu_celsius, limit, power, ambient = view.telemetry[7:12]
        watts = power / np.maximum(units.per_node, 1)
        gpu = thermal_state(self._gpu_thermal, np.fmax(gpu_celsius, cpu_celsius), limit, ambient, watts)
        if units.has_gpu.all():
            return gpu
        cpu = thermal_state(self._cpu_thermal, cpu_celsius, limit, ambient, watts)
        return ThermalState(
            np.where(units.has_gpu, gpu.now, cpu.now),
            np.where(units.has_gpu, gpu.steady, cpu.steady),
            gpu.limit,
            np.where(units.has_gpu, gpu.time_constant_s, cpu.time_constant_s),
        )

    # -- how it is split ----------------------------------------------------------------------------------------

    def _plan(
        self,
        task: DivisibleTask,
        units: Units,
        figures: _Figures,
        exclusion: Exclusion,
        q: float,
    ) -> PartitionPlan:
        order = figures.strongest_first
        rows = order[exclusion.codes[order] == 0]
        if len(rows) == 0:
            is_hopeless = not (exclusion.codes > 0).any()
            return _nothing(Outcome.NO_FIT if is_hopeless else Outcome.WAIT, q, ())
        candidates = _Candidates(rows, figures.of_units[rows], figures.allowed_s[units.node[rows]])
        mean = float(candidates.capability.mean())
        k = unit_count(len(rows), task.parallel_scale, mean, figures.serial, q)
        chosen = _chosen(candidates, k, task)
        if chosen is None:
            return _too_hot(task, units, figures, exclusion, candidates, q)
        if len(chosen.rows) < len(rows):
            exclusion.keep_only(chosen.rows, Reason.SHARE_BELOW_THRESHOLD)
        shares = _shares(task, chosen, units, figures.thermal)
        threshold = threshold_scale(max(len(shares), 2), mean, figures.serial, q)
        return PartitionPlan(
            Outcome.PLACED,
            shares,
            threshold_scale=threshold if np.isfinite(threshold) else 0.0,
            predicted_s=_finish_s(task, shares, float(chosen.capability[0]), q),
            overhead_s=q,
        )


def _finish_s(task: DivisibleTask, shares: tuple[Share, ...], strongest: float, q: float) -> float:
    """The serial part on the strongest unit, then the slowest share, then the overhead of having split."""
    serial_s = task.serial_scale / strongest
    return serial_s + max(share.predicted_s for share in shares) + (q if len(shares) > 1 else 0.0)


def _too_hot(
    task: DivisibleTask,
    units: Units,
    figures: _Figures,
    exclusion: Exclusion,
    candidates: _Candidates,
    q: float,
) -> PartitionPlan:
    """All idle units together may not take it. WAIT if cool ones could, or busy ones once free; else NO_FIT."""
    most_serial = float((candidates.capability * candidates.allowed_s).max())
    short = max(task.parallel_scale - candidates.after(task.serial_scale).room, task.serial_scale - most_serial)
    exclusion.add(exclusion.codes == 0, Reason.THERMAL_LIMIT)
    considered = np.flatnonzero(exclusion.codes >= 0)
    thermal = figures.thermal
    cool = replace(thermal, now=np.fmin(thermal.now, np.fmin(thermal.limit, thermal.steady) - _COOLED_BY))
    rooms = figures.of_units[considered] * allowed_s(cool)[units.node[considered]]
    message = f"a computing scale of {short:.4g} more than the idle units may take below their limits"
    blocker = Blocker(Reason.THERMAL_LIMIT, len(candidates.rows), short, "scale", message)
    is_enough = rooms.sum() >= task.parallel_scale + task.serial_scale and rooms.max() >= task.serial_scale
    outcome = Outcome.WAIT if is_enough else Outcome.NO_FIT
    return _nothing(outcome, q, (blocker,))


def _chosen(candidates: _Candidates, k: int, task: DivisibleTask) -> _Candidates | None:
    """The k strongest, and more where heat asks for it; None where even all are too few."""
    scale, serial = task.parallel_scale, task.serial_scale
    able = np.flatnonzero(candidates.capability * candidates.allowed_s >= serial)
    if not len(able):
        return None  # the serial part alone would overheat any of them
    candidates = candidates.led_by(int(able[0]))
    if k < 2:
        alone = np.flatnonzero(candidates.capability * candidates.allowed_s >= scale + serial)
        if len(alone):
            return candidates.take(alone[:1])
    chosen = candidates.take(slice(k))
    if np.isinf(chosen.allowed_s).all():
        return chosen
    after = candidates.after(serial)
    room = np.cumsum(after.capability * after.allowed_s)
    enough = np.flatnonzero(room >= scale)
    return _without_idle(candidates.take(slice(max(int(enough[0]) + 1, k))), serial) if len(enough) else None


def _without_idle(chosen: _Candidates, serial_scale: float) -> _Candidates:
    """Without units that heat leaves nothing to do. The first stays: it does the serial part."""
    useful = chosen.after(serial_scale).allowed_s > 0
    useful[0] = useful[0] or serial_scale > 0
    return chosen.take(np.flatnonzero(useful))


def _shares(task: DivisibleTask, chosen: _Candidates, units: Units, thermal: ThermalState) -> tuple[Share, ...]:
    node = units.node[chosen.rows]
    if len(chosen.rows) == 1:
        scales = np.array([task.parallel_scale])
    else:
        allowed = chosen.after(task.serial_scale).allowed_s
        scales = levelled(task.parallel_scale, chosen.capability, np.zeros(len(node)), allowed)
    seconds = scales / chosen.capability
    working = seconds.copy()
    working[0] += task.serial_scale / chosen.capability[0]
    peaks = np.nan_to_num(peak_celsius(thermal.rows(node), working))
    columns = (chosen.rows, scales, seconds, peaks, chosen.capability)
    rows = zip(*[column.tolist() for column in columns], strict=True)
    node_ids, names = units.node_ids, units.names
    return tuple([Share(node_ids[u], names[u], t, s, peak, c) for u, t, s, peak, c in rows])


def _nothing(outcome: Outcome, q: float, blockers: tuple[Blocker, ...]) -> PartitionPlan:
    return PartitionPlan(outcome, overhead_s=q, blockers=blockers)


def _unknown(names: list[str]) -> tuple[Excluded, ...]:
    found = []
    for name in names:
        node, _, unit = name.rpartition("/")
        message = "no such unit; a unit is node/gpu0, or node/cpu on a node without GPUs"
        found.append(Excluded(node or name, unit if node else "", Reason.SELECTOR_MISMATCH, message))
    return tuple(found)
