"""Figures computed once per telemetry report for all units. Independent of jobs and tasks."""

from collections.abc import Callable

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.partition.learned.site_heat import heat_stamp
from placewise_core.partition.thermal import ThermalState
from placewise_core.partition.units import Units
from placewise_core.view.view import ClusterView


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


class FiguresCache:
    """The figures of the view last asked about, until its layout, its telemetry or its learned heat changes."""

    def __init__(self, build: Callable[[ClusterView], Figures]) -> None:
        self._build = build
        self._key: tuple[object, ...] | None = None  # lineage, layout, telemetry, and learned heat
        self._figures: Figures | None = None

    def of(self, view: ClusterView) -> Figures:
        """Figures of this view."""
        key = (view.lineage, view.nodes.layout_stamp, view.nodes.telemetry_stamp, heat_stamp(view))
        if self._figures is None or self._key != key:
            self._figures, self._key = self._build(view), key
        return self._figures
