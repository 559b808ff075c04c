"""Temperatures of a running cluster, and the telemetry that reports them. First order, exact (thermal.py)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from placewise_core.domain.cluster import Node
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.speed.base import NodeLoad
from placewise_training.sim.thermal import ThermalState


def busy_share(load: NodeLoad) -> float:
    """Share of a node's GPUs that serve a job; of its cores if it has none."""
    gpus = len(load.spec.node.gpus)
    if gpus:
        return len(load.gpu_jobs) / gpus
    return min(1.0, load.cpu_wanted / max(1e-9, load.spec.node.capacity.cpu_cores))


class HeatMap:
    """One ThermalState per node."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        self._states = {spec.id: ThermalState(spec.thermal) for spec in nodes}
        self._peak_of_removed = 0.0

    def add(self, spec: NodeSpec, now_s: float) -> None:
        state = self._states[spec.id] = ThermalState(spec.thermal)
        state.time_s = now_s

    def remove(self, name: str) -> None:
        self._peak_of_removed = max(self._peak_of_removed, self._states.pop(name).peak_celsius)

    def peak_celsius(self) -> float:
        """The highest of any node, between reports too: a temperature turns only at a change of load."""
        return max([self._peak_of_removed, *(state.peak_celsius for state in self._states.values())])

    def loads_changed(self, now_s: float, names: Iterable[str], nodes: Mapping[str, NodeLoad]) -> None:
        """These nodes run something else from `now_s` on."""
        for name in names:
            self._states[name].set_util(now_s, busy_share(nodes[name]))

    def celsius(self) -> list[float]:
        """As of the last advance."""
        return [state.celsius for state in self._states.values()]

    def report(self, now_s: float, view: ClusterView) -> tuple[Node, ...]:
        """Every node of the view with its temperatures and power observed at `now_s`."""
        return tuple(self._reported(node, now_s) for node in view.nodes.records)

    def _reported(self, node: Node, now_s: float) -> Node:
        state = self._states[node.id]
        celsius = state.advance(now_s)
        telemetry = replace(
            node.telemetry,
            gpu_celsius=celsius,
            cpu_celsius=celsius,
            limit_celsius=state.spec.limit_celsius,
            power_watts=state.power_w,
            ambient_celsius=state.spec.ambient_celsius,
            observe_time_s=max(1e-9, now_s),
        )
        return replace(node, telemetry=telemetry)
