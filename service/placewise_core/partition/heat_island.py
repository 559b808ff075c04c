"""The heat-island policy: how many units, which, and how much each, so that all finish together and none gets too hot.

Heat-island paper (1)–(6) and Algorithm 3, plus the prediction its authors name as the next step. The strongest idle
units are used; k comes from the threshold alone. If heat caps the shares of k units, further idle units join, and
if all of them cannot take the task, it waits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.slices import Slices, spaced
from placewise_core.domain.decision import (
    Blocker,
    Excluded,
    LearnedCapability,
    LearnedHeat,
    Outcome,
    PartitionPlan,
    Reason,
    Share,
)
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.partition.candidates import StandingOffer, UnitCandidates, UnitOffer
from placewise_core.partition.capability import Weights, node_capabilities
from placewise_core.partition.exclusion import NOTHING, Exclusion, excluded_units
from placewise_core.partition.figures import Figures, FiguresCache
from placewise_core.partition.learned.site_capability import SiteCapability
from placewise_core.partition.learned.site_heat import SiteHeat
from placewise_core.partition.overhead import overhead_s
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.reschedule import handed_out, how_far, is_late, rescheduled
from placewise_core.partition.shares import levelled, proportional
from placewise_core.partition.thermal import (
    ThermalModel,
    ThermalState,
    allowed_s,
    peak_celsius,
)
from placewise_core.partition.threshold import threshold_scale, unit_count
from placewise_core.partition.units import CPU_UNIT, NO_GPU, UnitsCache, selected
from placewise_core.view.view import ClusterView

_COOLED_BY = 20.0  # °C below its limit at which a unit counts as cool, to decide whether a task could ever fit


class HeatIsland:
    """Splits a task over idle units; `capability` is the parsed capability.json.

    Raises ValueError for a file of another schema.
    """

    name = "heat-island"

    def __init__(self, capability: Mapping[str, Any]) -> None:
        if capability.get("schema") != "placewise.capability/1":
            raise ValueError("not a placewise.capability/1 file")
        self._weights = Weights.from_mapping(capability["weights"])
        gpu, cpu = (ThermalModel.from_mapping(capability["thermal"][unit]) for unit in ("gpu", "cpu"))
        self._site = SiteHeat(gpu, cpu)
        self._capabilities = SiteCapability(self._weights)
        self._default_overhead_s = float(capability["default_overhead_s"])
        self._units = UnitsCache()
        self._figures = FiguresCache(self._work_out)
        self._standing = StandingOffer()

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        q = overhead_s(task, view.overheads, self._default_overhead_s)
        if view.nodes.size == 0:
            return _nothing(Outcome.NO_FIT, q, (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),))
        offer, unknown = self._offer(task, view, context)
        context.slices.pause()
        plan, exclusion = _plan(task, offer, q, context.slices)
        context.slices.pause()
        excluded = exclusion.named(offer.figures.units, context.is_explaining, context.slices)
        blockers = exclusion.blockers()
        if unknown:
            excluded = (*_unknown(unknown), *excluded)
        return plan.leaving_out(excluded, (*plan.blockers, *blockers))

    def reschedule(
        self, task: DivisibleTask, progress: Sequence[ShareProgress], view: ClusterView, context: PartitionContext
    ) -> PartitionPlan:
        """Scheduler step 7: as PartitionPolicy. A unit on a node that is not usable any more leaves as well."""
        q = overhead_s(task, view.overheads, self._default_overhead_s)
        if view.nodes.size == 0:
            return _nothing(Outcome.NO_FIT, q, (Blocker(Reason.EMPTY_CLUSTER, message="no node was reported"),))
        figures = self._looked_up(view, context.slices)
        usable = view.usable(context.now_s)
        working = [p for p in progress if p.done < 1.0]
        slices = context.slices
        rows = {p.node: view.nodes.index.get(p.node, -1) for p in spaced(working, slices)}
        leaving = {
            (p.node, p.unit)
            for p in spaced(working, slices)
            if p.is_move_requested or is_late(p, q) or rows[p.node] < 0 or not usable[rows[p.node]]
        }
        of_gpus, of_cpus = figures.allowed_s[: view.nodes.size], figures.allowed_s[view.nodes.size :]
        allowed = {
            (p.node, p.unit): float((of_cpus if p.unit == CPU_UNIT else of_gpus)[rows[p.node]])
            for p in spaced(working, slices)
        }
        return rescheduled(
            handed_out(spaced(working, slices), q), leaving, how_far(spaced(working, slices), allowed), slices
        )

    def _work_out(self, view: ClusterView) -> Figures:
        units = self._units.of(view)
        parts = node_capabilities(view, units.gpu_memory_gib, units.has_gpu, self._weights) * view.nodes.size
        of_cpus, of_gpus = parts[:3].sum(axis=0), parts[3:].sum(axis=0)
        of_units = np.where(units.gpu == NO_GPU, of_cpus[units.node], of_gpus[units.node])
        thermal = self._thermal(view)
        return Figures(
            units=units,
            of_units=of_units,
            strongest_first=np.argsort(-of_units, kind="stable"),
            serial=float(of_cpus.mean()),
            thermal=thermal,
            has_temperatures=not np.isnan(thermal.now).all(),
            allowed_s=allowed_s(thermal),
        )

    def learned(self, view: ClusterView) -> tuple[LearnedHeat, ...]:
        """As PartitionPolicy."""
        return self._site.learned(view) if view.settings.learn_heat else ()

    def capabilities(self, view: ClusterView, task_kind: str | None) -> tuple[LearnedCapability, ...]:
        """As PartitionPolicy."""
        if not view.settings.learn_capability or view.nodes.size == 0:
            return ()
        return self._capabilities.learned(view, self._units.of(view), task_kind)

    def _for_kind(self, figures: Figures, view: ClusterView, task_kind: str) -> Figures:
        """The figures for a kind of task."""
        if not view.settings.learn_capability:
            return figures
        of_nodes = self._capabilities.of_nodes(view, figures.units, task_kind)
        return figures if of_nodes is None else self._figures.by(of_nodes)

    def _thermal(self, view: ClusterView) -> ThermalState:
        """(2M,) thermal state of a GPU of each node, then of its CPU, from the node's report."""
        return self._site.state(view)

    def _looked_up(self, view: ClusterView, slices: Slices) -> Figures:
        """The figures of this view; computed if needed, after the units."""
        slices.pause()
        self._units.of(view)
        slices.pause()
        return self._figures.of(view)

    def _offer(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> tuple[UnitOffer, list[str]]:
        """Candidates and excluded, and those of the units asked for that are none."""
        if context.units or task.id in view.jobs or task.demand != NOTHING:
            figures = self._for_kind(self._looked_up(view, context.slices), view, task.kind)
            units = figures.units
            names = spaced(context.units, context.slices)
            wanted, unknown = selected(units, view, names) if context.units else (None, [])
            context.slices.pause()
            own = units.held_by(view, task.id)
            context.slices.pause()
            exclusion = excluded_units(units, view, wanted, context.now_s, figures.allowed_s, task.demand, own)
            context.slices.pause()
            return _offered(figures, exclusion), unknown
        learned = (task.kind, view.estimates.capabilities.stamp) if view.settings.learn_capability else None
        offer = self._standing.of(view, context.now_s, learned)
        if offer is None:
            figures = self._for_kind(self._looked_up(view, context.slices), view, task.kind)
            context.slices.pause()
            exclusion = excluded_units(figures.units, view, None, context.now_s, figures.allowed_s, NOTHING)
            offer = _offered(figures, exclusion)
            self._standing.keep(view, context.now_s, offer, learned)
        return offer, []


def _offered(figures: Figures, exclusion: Exclusion) -> UnitOffer:
    """The usable units, the strongest first."""
    if not figures.of_units.all():
        exclusion.add(figures.of_units <= 0, Reason.UTILISATION_LIMIT)
    order = figures.strongest_first
    rows = order[exclusion.codes[order] == 0]
    capability, allowed = figures.of_units[rows], figures.allowed_s[figures.units.heat[rows]]
    candidates = UnitCandidates(rows, capability, allowed, is_limited=not np.isinf(allowed).all())
    return UnitOffer(figures, candidates, exclusion, mean=float(capability.mean()) if len(rows) else 0.0)


def _plan(task: DivisibleTask, offer: UnitOffer, q: float, slices: Slices) -> tuple[PartitionPlan, Exclusion]:
    """The split, and who has no part in it."""
    figures, candidates, exclusion = offer.figures, offer.candidates, offer.exclusion
    count = len(candidates.rows)
    if count == 0:
        is_hopeless = not (exclusion.codes > 0).any()
        return _nothing(Outcome.NO_FIT if is_hopeless else Outcome.WAIT, q, ()), exclusion
    k = unit_count(count, task.parallel_scale, offer.mean, figures.serial, q)
    chosen = _chosen(candidates, k, task)
    if chosen is None:
        return _too_hot(task, offer, q)
    if len(chosen.rows) < count:
        exclusion = exclusion.leaving(chosen.rows, Reason.SHARE_BELOW_THRESHOLD)
    scales = _scales(task, chosen)
    seconds = scales / chosen.capability
    threshold = threshold_scale(max(len(seconds), 2), offer.mean, figures.serial, q)
    plan = PartitionPlan(
        Outcome.PLACED,
        _shares(task, chosen, scales, seconds, figures, slices),
        threshold_scale=threshold if math.isfinite(threshold) else 0.0,
        predicted_s=_finish_s(task, seconds, float(chosen.capability[0]), q),
        overhead_s=q,
    )
    return plan, exclusion


def _finish_s(task: DivisibleTask, seconds: FloatArray, strongest: float, q: float) -> float:
    """The serial part on the strongest unit, then the slowest share, then the overhead of having split."""
    serial_s = task.serial_scale / strongest
    return serial_s + float(seconds.max()) + (q if len(seconds) > 1 else 0.0)


def _too_hot(task: DivisibleTask, offer: UnitOffer, q: float) -> tuple[PartitionPlan, Exclusion]:
    """All idle units together may not take it. WAIT if cool ones could, or busy ones once free; else NO_FIT."""
    figures, candidates = offer.figures, offer.candidates
    most_serial = float((candidates.capability * candidates.allowed_s).max())
    short = max(task.parallel_scale - candidates.after(task.serial_scale).room, task.serial_scale - most_serial)
    exclusion = offer.exclusion.leaving(candidates.rows[:0], Reason.THERMAL_LIMIT)
    considered = np.flatnonzero((exclusion.codes >= 0) & (figures.of_units > 0))
    thermal = figures.thermal
    cool = replace(thermal, now=np.fmin(thermal.now, np.fmin(thermal.limit, thermal.steady) - _COOLED_BY))
    most = figures.of_units[considered] * allowed_s(cool)[figures.units.heat[considered]]
    message = f"a computing scale of {short:.4g} more than the idle units may take below their limits"
    blocker = Blocker(Reason.THERMAL_LIMIT, len(candidates.rows), short, "scale", message)
    is_enough = most.sum() >= task.parallel_scale + task.serial_scale and most.max() >= task.serial_scale
    outcome = Outcome.WAIT if is_enough else Outcome.NO_FIT
    return _nothing(outcome, q, (blocker,)), exclusion


def _chosen(candidates: UnitCandidates, k: int, task: DivisibleTask) -> UnitCandidates | None:
    """The k strongest, and more where heat asks for it; None where even all are too few."""
    if not candidates.is_limited:
        return candidates.first(k)
    scale, serial = task.parallel_scale, task.serial_scale
    able = np.flatnonzero(candidates.capability * candidates.allowed_s >= serial)
    if not len(able):
        return None  # the serial part alone would overheat any of them
    candidates = candidates.led_by(int(able[0]))
    if k < 2:
        alone = np.flatnonzero(candidates.capability * candidates.allowed_s >= scale + serial)
        if len(alone):
            return candidates.take(alone[:1])
    chosen = candidates.first(k)
    if np.isinf(chosen.allowed_s).all():
        return chosen
    after = candidates.after(serial)
    room = np.cumsum(after.capability * after.allowed_s)
    enough = np.flatnonzero(room >= scale)
    return _without_idle(candidates.take(slice(max(int(enough[0]) + 1, k))), serial) if len(enough) else None


def _without_idle(chosen: UnitCandidates, serial_scale: float) -> UnitCandidates:
    """Without units that heat leaves nothing to do. The first stays: it does the serial part."""
    useful = chosen.after(serial_scale).allowed_s > 0
    useful[0] = useful[0] or serial_scale > 0
    return chosen.take(np.flatnonzero(useful))


def _scales(task: DivisibleTask, chosen: UnitCandidates) -> FloatArray:
    """(K,) each unit's part of the parallel scale."""
    if len(chosen.rows) == 1:
        return np.array([task.parallel_scale])
    if not chosen.is_limited:
        return proportional(task.parallel_scale, chosen.capability)
    allowed = chosen.after(task.serial_scale).allowed_s
    return levelled(task.parallel_scale, chosen.capability, np.zeros(len(allowed)), allowed)


def _shares(
    task: DivisibleTask,
    chosen: UnitCandidates,
    scales: FloatArray,
    seconds: FloatArray,
    figures: Figures,
    slices: Slices,
) -> tuple[Share, ...]:
    node_ids, names = figures.units.node_ids, figures.units.names
    slices.pause()
    peaks = _peaks(task, chosen, seconds, figures) if figures.has_temperatures else [0.0] * len(seconds)
    slices.pause()
    columns = (chosen.rows.tolist(), scales.tolist(), seconds.tolist(), peaks, chosen.capability.tolist())
    rows = spaced(zip(*columns, strict=True), slices)
    return tuple([Share(node_ids[u], names[u], t, s, peak, c) for u, t, s, peak, c in rows])


def _peaks(task: DivisibleTask, chosen: UnitCandidates, seconds: FloatArray, figures: Figures) -> list[float]:
    """°C that each of them reaches; 0 if unknown."""
    working = seconds.copy()
    working[0] += task.serial_scale / chosen.capability[0]
    peaks = peak_celsius(figures.thermal.rows(figures.units.heat[chosen.rows]), working)
    shown: list[float] = np.where(np.isnan(peaks), 0.0, peaks).tolist()
    return shown


def _nothing(outcome: Outcome, q: float, blockers: tuple[Blocker, ...]) -> PartitionPlan:
    return PartitionPlan(outcome, overhead_s=q, blockers=blockers)


def _unknown(names: list[str]) -> tuple[Excluded, ...]:
    found = []
    for name in names:
        node, _, unit = name.rpartition("/")
        message = "no such unit; a unit is node/gpu0 or node/cpu"
        found.append(Excluded(node or name, unit if node else "", Reason.SELECTOR_MISMATCH, message))
    return tuple(found)
