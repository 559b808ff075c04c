"""Thermal constants of a cluster's units: those its nodes have shown if its setting `learn_heat` is on, else the
bundle's. Pure; speed/learned/heat.py estimates."""

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.decision import LearnedHeat
from placewise_core.partition.learned.node_types import TypesCache
from placewise_core.partition.thermal import (
    Readings,
    ThermalModel,
    ThermalState,
    UnitModels,
    readings_of,
    thermal_state,
)
from placewise_core.speed.learned.heat import HeatConstants, HeatGroup
from placewise_core.view.learned.heat import UNITS, USUAL_AMBIENT_CELSIUS
from placewise_core.view.nodes import TelemetryRow
from placewise_core.view.view import ClusterView

_MOST_SHOWN = 32


def heat_stamp(view: ClusterView) -> int:
    """Changes with the learned constants that a forecast on the view reads."""
    return view.estimates.heat.stamp + 1 if view.settings.learn_heat else 0


class SiteHeat:
    """Thermal state of the units of a view, by the bundle's models of a GPU and a CPU."""

    def __init__(self, gpu: ThermalModel, cpu: ThermalModel) -> None:
        self._shipped = {"gpu": gpu, "cpu": cpu}
        self._types = TypesCache()

    def state(self, view: ClusterView) -> ThermalState:
        """(2M,) a GPU of each node, then its CPU."""
        read, size = readings_of(view), view.nodes.size
        halves = zip(UNITS, (slice(size), slice(size, None)), strict=True)
        gpu, cpu = (self._of_unit(view, unit, _part(read, of)) for unit, of in halves)
        return gpu.followed_by(cpu)

    def learned(self, view: ClusterView) -> tuple[LearnedHeat, ...]:
        """The constants of the types of nodes that have reported, by name; the first 32."""
        found = [
            _shown(group, constants, self._shipped[group.unit])
            for unit in UNITS
            for group, _, constants in self._groups(view, unit)
        ]
        return tuple(sorted(found, key=lambda each: (each.node_type, each.unit))[:_MOST_SHOWN])

    def _of_unit(self, view: ClusterView, unit: str, read: Readings) -> ThermalState:
        model, groups = self._shipped[unit], self._groups(view, unit) if view.settings.learn_heat else []
        if not groups:
            return thermal_state(model, read.celsius, read.limit, read.ambient, read.watts)
        shipped = (model.resistance_k_per_w, model.time_constant_s, model.load_watts)
        resistance, constant_s, load = (np.full(view.nodes.size, value) for value in shipped)
        watts, ambient = read.watts.copy(), read.ambient.copy()
        for group, rows, found in groups:
            resistance[rows], constant_s[rows], load[rows] = found.resistance, found.time_constant_s, found.load
            ambient[rows & np.isnan(ambient)] = USUAL_AMBIENT_CELSIUS
            if unit == "cpu" and group.is_power:
                watts[rows] = view.nodes.telemetry[TelemetryRow.POWER_WATTS][rows]
        models = UnitModels(resistance, constant_s, load, model.ambient_celsius)
        return thermal_state(models, read.celsius, read.limit, ambient, watts)

    def _groups(self, view: ClusterView, unit: str) -> list[tuple[HeatGroup, BoolArray, HeatConstants]]:
        """Those with learned constants, and (M,) which nodes are of each."""
        types, model = self._types.of(view), self._shipped[unit]
        rise, constant_s = model.resistance_k_per_w * model.load_watts, model.time_constant_s
        has_power = ~np.isnan(view.nodes.telemetry[TelemetryRow.POWER_WATTS])
        found = []
        for i, name in enumerate(types.names):
            for is_power in (True, False):
                group = HeatGroup(name, unit, is_power)
                constants = view.estimates.heat.constants(group, rise, constant_s)
                rows = (types.of_nodes == i) & (has_power == is_power)
                if constants is not None and rows.any():
                    found.append((group, rows, constants))
        return found


def _part(read: Readings, of: slice) -> Readings:
    return Readings(read.celsius[of], read.limit[of], read.ambient[of], read.watts[of])


def _shown(group: HeatGroup, found: HeatConstants, shipped: ThermalModel) -> LearnedHeat:
    values = (
        *(found.rise, found.low, found.high, shipped.resistance_k_per_w * shipped.load_watts),
        *(found.time_constant_s, found.low_s, found.high_s, shipped.time_constant_s, found.reports),
    )
    return LearnedHeat(group.node_type, group.unit, *(float(f"{value:.3g}") for value in values))
