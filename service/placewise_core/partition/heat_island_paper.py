"""The heat-island paper as printed (Cao, Wang): (1)–(6) and Algorithm 3 over CPUs and GPUs alike. Forecasts no
temperature.

Two readings, as the paper leaves them open. (5) is of a node: a CPU unit has the parts of CPU, memory and cache, a GPU
unit those of GPU and GPU memory. Below k = 2 the strongest idle unit works alone (4.2), not "one CPU".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from placewise_core.domain.divisible import DivisibleTask
from placewise_core.partition.candidates import UnitOffer
from placewise_core.partition.capability import node_capabilities
from placewise_core.partition.figures import Figures
from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.thermal import ThermalState
from placewise_core.partition.units import NO_GPU, UnitsCache
from placewise_core.view.view import ClusterView


class HeatIslandPaper(HeatIsland):
    """Shares in proportion to current capability; heat is avoided by balance alone."""

    name = "heat-island-paper"

    def __init__(self, capability: Mapping[str, Any]) -> None:
        super().__init__(capability)
        self._units = UnitsCache(has_every_cpu=True)

    def _work_out(self, view: ClusterView) -> Figures:
        units = self._units.of(view)
        parts = node_capabilities(view, units.gpu_memory_gib, units.has_gpu, self._weights) * view.size
        of_cpus, of_gpus = parts[:3].sum(axis=0), parts[3:].sum(axis=0)
        of_units = np.where(units.gpu == NO_GPU, of_cpus[units.node], of_gpus[units.node])
        unknown = np.full(view.size, np.nan)
        return Figures(
            units=units,
            capability=np.asarray(parts.sum(axis=0)),
            of_units=of_units,
            strongest_first=np.argsort(-of_units, kind="stable"),
            serial=float(of_cpus.mean()),
            thermal=ThermalState(unknown, unknown, unknown, unknown),
            has_temperatures=False,
            allowed_s=np.full(view.size, np.inf),
        )

    def _offer(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> tuple[UnitOffer, list[str]]:
        """C_p is the mean of all units, not of the idle ones."""
        offer, unknown = super()._offer(task, view, context)
        return replace(offer, mean=float(offer.figures.of_units.mean())), unknown
