"""Figures computed once per telemetry report for all units. Independent of jobs and tasks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.partition.learned.site_heat import heat_stamp
from placewise_core.partition.thermal import ThermalState
from placewise_core.partition.units import NO_GPU, Units
from placewise_core.view.view import ClusterView

_KEPT = 64  # kinds of tasks whose figures are at hand


@frozen
class Figures:
    """How strong and how warm the units are."""

    units: Units
    of_units: FloatArray  # (U,) scale per second
    strongest_first: IntArray  # (U,) ties in node order
    serial: float  # C_s: mean over the CPUs
    thermal: ThermalState  # (2M,) a GPU of every node, then its CPU, as Units.heat counts them
    has_temperatures: bool  # of any node
    allowed_s: FloatArray  # (2M,)

    def by(self, of_nodes: FloatArray) -> "Figures":
        """The same with other capabilities, (2, M) of a GPU of each node and of its CPU. A unit that (5) leaves
        nothing, as it is used in full, has nothing still."""
        is_cpu = self.units.gpu == NO_GPU
        of_units = np.where(self.of_units > 0, of_nodes[is_cpu.astype(np.int64), self.units.node], 0.0)
        order = np.argsort(-of_units, kind="stable")
        return replace(self, of_units=of_units, strongest_first=order, serial=float(of_nodes[1].mean()))


class FiguresCache:
    """The figures of the view last asked about, until its layout, its telemetry or its learned heat changes."""

    def __init__(self, build: Callable[[ClusterView], Figures]) -> None:
        self._build = build
        self._key: tuple[object, ...] | None = None  # lineage, layout, telemetry, and learned heat
        self._figures: Figures | None = None
        self._others: Bounded[int, tuple[FloatArray, Figures]] = Bounded(_KEPT)

    def of(self, view: ClusterView) -> Figures:
        """Figures of this view."""
        key = (view.lineage, view.nodes.layout_stamp, view.nodes.telemetry_stamp, heat_stamp(view))
        if self._figures is None or self._key != key:
            self._figures, self._key = self._build(view), key
            self._others.clear()
        return self._figures

    def by(self, of_nodes: FloatArray) -> Figures:
        """The figures last asked about with these capabilities; to be asked with the same array as long as it stays."""
        assert self._figures is not None
        kept = self._others.get(id(of_nodes))
        if kept is None or kept[0] is not of_nodes:
            kept = self._others[id(of_nodes)] = of_nodes, self._figures.by(of_nodes)
        return kept[1]
