"""How hot a unit gets over its share, and how long it may work: first-order RC prediction. Never measures anything.

dT/dt = (P·R − (T − T_amb))/(R·C): under constant power the temperature moves towards T_amb + P·R with time constant
R·C. R, R·C and P come from capability.json (fitted or stated there), ambient, temperature, limit and power from the
node if it reports them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.frozen import frozen
from placewise_core.view.nodes import TelemetryRow
from placewise_core.view.view import ClusterView

_HEAT = slice(TelemetryRow.CPU_CELSIUS, TelemetryRow.AMBIENT_CELSIUS + 1)


@frozen
class ThermalModel:
    """R in K/W, R·C in seconds, P in watts under load, and the ambient °C of nodes that report none."""

    resistance_k_per_w: float
    time_constant_s: float
    load_watts: float
    ambient_celsius: float

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> "ThermalModel":
        names = ("resistance_k_per_w", "time_constant_s", "load_watts", "ambient_celsius")
        return cls(**{name: float(data[name]) for name in names})


@frozen
class UnitModels:
    """The same of each unit, (K,) arrays, with one ambient. A load may be of another unit than watts."""

    resistance_k_per_w: FloatArray
    time_constant_s: FloatArray
    load_watts: FloatArray
    ambient_celsius: float


@frozen
class ThermalState:
    """(K,) arrays: °C now, °C at the end of the load (T_amb + P·R), and the limit, NaN if unknown; R·C in seconds."""

    now: FloatArray
    steady: FloatArray
    limit: FloatArray
    time_constant_s: FloatArray

    def followed_by(self, other: "ThermalState") -> "ThermalState":
        """These units, then the others."""
        mine, theirs = ((s.now, s.steady, s.limit, s.time_constant_s) for s in (self, other))
        return ThermalState(*(np.concatenate(both) for both in zip(mine, theirs, strict=True)))

    def rows(self, index: IntArray) -> "ThermalState":
        """The state of some of the units."""
        return ThermalState(self.now[index], self.steady[index], self.limit[index], self.time_constant_s[index])


@frozen
class Readings:
    """(2M,) arrays as nodes report them, a GPU of every node, then its CPU: °C, limit, ambient °C, and watts; NaN where
    unreported. A node's power counts for its GPUs if it has any: nobody reports how much of it the CPU takes."""

    celsius: FloatArray
    limit: FloatArray
    ambient: FloatArray
    watts: FloatArray


def readings_of(view: ClusterView) -> Readings:
    """Of every node."""
    cpu_celsius, gpu_celsius, limit, power, ambient = view.nodes.telemetry[_HEAT]
    gpus = view.nodes.gpu_exists.sum(axis=1)
    of_gpus, of_cpu = power / np.maximum(gpus, 1), np.where(gpus > 0, np.nan, power)
    return Readings(
        np.concatenate([np.fmax(gpu_celsius, cpu_celsius), cpu_celsius]),
        np.concatenate([limit, limit]),
        np.concatenate([ambient, ambient]),
        np.concatenate([of_gpus, of_cpu]),
    )


def thermal_state(
    model: ThermalModel | UnitModels, celsius: FloatArray, limit: FloatArray, ambient: FloatArray, watts: FloatArray
) -> ThermalState:
    """State of units from what their nodes report; all (K,), NaN where unreported, a limit of 0 means none.

    `watts` is the power of the unit now. Working never takes less than that, nor less than the model's load.
    """
    ambient = np.where(np.isnan(ambient), model.ambient_celsius, ambient)
    power = np.fmax(watts, model.load_watts)
    steady = ambient + power * model.resistance_k_per_w
    constant = np.full(len(celsius), 1.0) * model.time_constant_s
    return ThermalState(celsius, steady, np.where(limit > 0, limit, np.nan), constant)


def allowed_s(state: ThermalState) -> FloatArray:
    """(K,) seconds of work until the limit is reached: 0 at or over it, infinite if it never is or is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        until = state.time_constant_s * np.log((state.steady - state.now) / (state.steady - state.limit))
    never = np.isnan(state.now) | np.isnan(state.limit) | (state.steady <= state.limit)
    return np.asarray(np.where(state.now >= state.limit, 0.0, np.where(never, np.inf, until)))


def peak_celsius(state: ThermalState, seconds: FloatArray) -> FloatArray:
    """(K,) highest temperature over a share of that length; NaN if the temperature now is unknown.

    The prediction is monotone, so the peak is at the start or at the end.
    """
    end = state.steady + (state.now - state.steady) * np.exp(-seconds / state.time_constant_s)
    return np.asarray(np.maximum(state.now, end))
