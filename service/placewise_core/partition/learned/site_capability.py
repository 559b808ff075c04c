"""Capabilities of a cluster's units for a kind of task: those its shares have shown if its setting `learn_capability`
is on, else the bundle's. Pure; speed/learned/capability.py estimates.

The utilisation of a unit does not count for a kind with a report: reports are of units that were idle, as
those are to which a share goes, and a utilisation may be that of the share before, or of other GPUs of the node.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.domain.decision import LearnedCapability
from placewise_core.partition.capability import Weights, node_capabilities
from placewise_core.partition.learned.node_types import TypesCache
from placewise_core.partition.units import Units
from placewise_core.speed.learned.capability import UnitType
from placewise_core.speed.learned.normal import Estimate
from placewise_core.view.view import ClusterView

_UNITS = ("gpu", "cpu")
_MOST_SHOWN = 32
_KEPT = 64  # kinds of tasks whose capabilities are at hand


@frozen
class _Group:
    """Units of a type of node: which nodes have them (M,), and the mean capability by the weights, when idle."""

    of: UnitType
    rows: BoolArray
    shipped: float


class SiteCapability:
    """Capabilities of the units of a view for kinds of tasks, by the bundle's weights."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._types = TypesCache()
        self._key: tuple[object, ...] | None = None
        self._groups: Sequence[_Group] = ()
        self._idle = np.zeros((2, 0))  # (2, M) capability of a GPU of each node, and of its CPU, when idle
        self._stamps: tuple[object, ...] | None = None
        self._kept: Bounded[str, FloatArray | None] = Bounded(_KEPT)

    def of_nodes(self, view: ClusterView, units: Units, task_kind: str) -> FloatArray | None:
        """(2, M) of a GPU of each node and of its CPU for a kind of task; None before a report of it. The same array as
        long as nothing changes."""
        groups = self._groups_of(view, units)
        stamps = (self._key, view.estimates.capabilities.stamp)
        if self._stamps != stamps:
            self._stamps = stamps
            self._kept.clear()
        if task_kind not in self._kept:
            self._kept[task_kind] = self._worked_out(view, groups, task_kind)
        return self._kept[task_kind]

    def learned(self, view: ClusterView, units: Units, task_kind: str | None) -> tuple[LearnedCapability, ...]:
        """Those that reports of a kind of task have shown, None for all kinds, by name; the first 32."""
        known, groups = view.estimates.capabilities, self._groups_of(view, units)
        found: list[LearnedCapability] = []
        for name in sorted(known.task_kinds if task_kind is None else known.task_kinds & {task_kind}):
            estimates = known.estimates(name, {group.of: group.shipped for group in groups})
            found += [
                _shown(name, group, estimates[group.of])
                for group in sorted(groups, key=lambda group: group.of)
                if known.has(name, group.of)
            ]
            if len(found) >= _MOST_SHOWN:
                break
        return tuple(found[:_MOST_SHOWN])

    def _worked_out(self, view: ClusterView, groups: Sequence[_Group], task_kind: str) -> FloatArray | None:
        estimates = view.estimates.capabilities.estimates(task_kind, {group.of: group.shipped for group in groups})
        if not estimates:
            return None
        found: FloatArray = self._idle.copy()
        for group in groups:
            found[_UNITS.index(group.of[1])][group.rows] *= np.exp(estimates[group.of].log_factor)
        return found

    def _groups_of(self, view: ClusterView, units: Units) -> Sequence[_Group]:
        key = (view.lineage, view.nodes.layout_stamp, view.nodes.telemetry_stamp)
        if self._key != key:
            idle = node_capabilities(view, units.gpu_memory_gib, units.has_gpu, self._weights, is_idle=True)
            parts, types = idle * view.nodes.size, self._types.of(view)
            self._idle = np.stack([parts[3:].sum(axis=0), parts[:3].sum(axis=0)])
            found = []
            for unit, own in zip(_UNITS, self._idle, strict=True):
                for i, name in enumerate(types.names):
                    rows = (types.of_nodes == i) & (own > 0)
                    if rows.any():
                        found.append(_Group((name, unit), rows, float(np.exp(np.log(own[rows]).mean()))))
            self._groups, self._key = found, key
        return self._groups


def _shown(task_kind: str, group: _Group, found: Estimate) -> LearnedCapability:
    mean, spread = group.shipped * np.exp(found.log_factor), np.exp(found.spread)
    values = (mean, mean / spread, mean * spread, group.shipped, found.reports)
    return LearnedCapability(task_kind, *group.of, *(float(f"{value:.3g}") for value in values))
