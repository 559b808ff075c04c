"""First-order heat: temperature of a node follows its power with one time constant. Exact between power changes.

dT/dt = (P·R − (T − T_amb)) / (R·C), PAPERS notation: R in K/W, C in J/K. Never decides anything.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThermalSpec:
    """Heat of one node. Defaults: GPU at full load some 45 K over the air (Acme's and Longhorn's medians), minutes."""

    ambient_celsius: float = 25.0
    resistance_k_per_w: float = 0.16
    capacity_j_per_k: float = 900.0
    idle_w: float = 60.0
    busy_w: float = 300.0
    limit_celsius: float = 85.0

    @property
    def time_constant_s(self) -> float:
        return self.resistance_k_per_w * self.capacity_j_per_k

    def power_w(self, util: float) -> float:
        """Watts at utilisation `util` of 1: linear between idle and busy."""
        return self.idle_w + (self.busy_w - self.idle_w) * min(1.0, max(0.0, util))

    def steady_celsius(self, power_w: float) -> float:
        return self.ambient_celsius + power_w * self.resistance_k_per_w


class ThermalState:
    """Temperature of one node through time; `advance` is exact while power is constant."""

    def __init__(self, spec: ThermalSpec, util: float = 0.0) -> None:
        self.spec = spec
        self.power_w = spec.power_w(util)
        self.celsius = spec.steady_celsius(self.power_w)
        self.peak_celsius = self.celsius
        self.time_s = 0.0

    def advance(self, now_s: float) -> float:
        """Temperature at `now_s`, under the power set so far."""
        steady = self.spec.steady_celsius(self.power_w)
        decay = math.exp(-(now_s - self.time_s) / self.spec.time_constant_s)
        self.celsius = steady + (self.celsius - steady) * decay
        self.peak_celsius = max(self.peak_celsius, self.celsius)
        self.time_s = now_s
        return self.celsius

    def set_util(self, now_s: float, util: float) -> None:
        """From `now_s` on the node runs at `util`."""
        self.advance(now_s)
        self.power_w = self.spec.power_w(util)
