"""The heat-island paper as printed (Cao, Wang): (1)–(6) and Algorithm 3 over CPUs and GPUs alike. Forecasts no
temperature.

Two readings, as the paper leaves them open. (5) is of a node: a CPU unit has the parts of CPU, memory and cache, a GPU
unit those of GPU and GPU memory. Below k = 2 the strongest idle unit works alone (4.2), not "one CPU".
"""

from dataclasses import replace

import numpy as np

from placewise_core.domain.decision import LearnedCapability, LearnedHeat
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.partition.candidates import UnitOffer
from placewise_core.partition.figures import Figures
from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.thermal import ThermalState
from placewise_core.view.view import ClusterView


class HeatIslandPaper(HeatIsland):
    """Shares in proportion to current capability; heat is avoided by balance alone."""

    name = "heat-island-paper"

    def learned(self, view: ClusterView) -> tuple[LearnedHeat, ...]:
        """Nothing: it forecasts no temperature."""
        return ()

    def capabilities(self, view: ClusterView, task_kind: str | None) -> tuple[LearnedCapability, ...]:
        """Nothing: (5) is as printed."""
        return ()

    def _for_kind(self, figures: Figures, view: ClusterView, task_kind: str) -> Figures:
        return figures

    def _thermal(self, view: ClusterView) -> ThermalState:
        """(2M,), all unknown."""
        unknown = np.full(2 * view.nodes.size, np.nan)
        return ThermalState(unknown, unknown, unknown, unknown)

    def _offer(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> tuple[UnitOffer, list[str]]:
        """C_p is the mean of all units, not of the idle ones."""
        offer, unknown = super()._offer(task, view, context)
        return replace(offer, mean=float(offer.figures.of_units.mean())), unknown
