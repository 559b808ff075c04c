"""The laboratory of the heat-island experiments: seven nodes, a stream of divisible tasks, readings of the paper."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.domain.divisible import DivisibleTask
from placewise_training.reproduce.design import Metric, TrialOutcome
from placewise_training.reproduce.heat.splitters import (
    OneAtATime,
    OneNode,
    Patient,
    Reactive,
    TrueShares,
    printed_policy,
    served_policy,
)
from placewise_training.sim.divisible import (
    DivisibleWorkload,
    EqualSplit,
    HeatNode,
    HeatResult,
    HeatSimulation,
    Splitter,
    WithoutHeat,
    heat_cluster,
)

EQUAL, ONE_NODE, SMALLEST, SCHEME, THERMOSTAT, PREDICTION, ORACLE = (
    "conventional (equal shares)",
    "consolidate (one node a task)",
    "scheme, shortest first",
    "paper's scheme (no prediction)",
    "scheme + thermostat",
    "scheme + prediction",
    "true speeds (oracle)",
)
METHODS: Mapping[str, Callable[[Sequence[HeatNode]], Splitter]] = {
    EQUAL: lambda nodes: EqualSplit(),
    ONE_NODE: lambda nodes: OneNode(WithoutHeat(served_policy())),
    SMALLEST: lambda nodes: printed_policy(),
    SCHEME: lambda nodes: printed_policy(),
    THERMOSTAT: lambda nodes: Reactive(served_policy()),
    PREDICTION: lambda nodes: served_policy(),
    ORACLE: TrueShares,
}
_LIMIT_CELSIUS = 62.0
_STRONG = 5
# A weak node that is as hot under lasting full load as a strong one (69 °C): 115 W · 0.38 K/W + 25 °C; R·C as it was.
_HOT_WEAK_K_PER_W, _HOT_WEAK_J_PER_K = 0.38, 395.0
_HISTORY_TASKS, _HISTORY_SCALE = 3, 220.0  # "larger, but it does not take long": some minutes of work at once
_STREAM_FROM_S = 900.0
_LOADED_FROM_S = _STREAM_FROM_S + 600.0  # temperatures have settled: four time constants and more
_OVERHEAD_S = 1.0

METRICS = (
    Metric("spread", "mean spread, hottest − coolest", "°C"),
    Metric("peak", "peak temperature", "°C"),
    Metric("over_s", "node-seconds over the limit", "s"),
    Metric("completion", "mean completion", "s"),
)
DETAIL = (
    *METRICS,
    Metric("nodes_over", "nodes that passed the limit", is_plotted=False),
    Metric("history_spread", "spread in the first phase", "°C", is_plotted=False),
    Metric("makespan", "makespan", "min", scale=1 / 60, is_plotted=False),
)


@dataclass(frozen=True, slots=True)
class Lab:
    """One reading of the paper's open points: the hot nodes, whether tasks overlap, the rate of the stream."""

    per_minute: float = 1.0
    is_overlapping: bool = False
    is_weak_hot: bool = True
    limit_celsius: float = _LIMIT_CELSIUS
    weak_capability: float = 0.4

    def nodes(self) -> list[HeatNode]:
        made = heat_cluster(self.limit_celsius)
        hot = replace(made[-1].spec.thermal, resistance_k_per_w=_HOT_WEAK_K_PER_W, capacity_j_per_k=_HOT_WEAK_J_PER_K)
        for i, node in enumerate(made):
            if i >= _STRONG:
                spec = replace(node.spec, thermal=hot) if self.is_weak_hot else node.spec
                made[i] = replace(node, spec=spec, capability=self.weak_capability)
        return made

    def tasks(self, count: int, seed: int) -> list[tuple[float, DivisibleTask]]:
        """The paper's data: historical records first, all there at once, then an endless stream from a generator."""
        part = (_HISTORY_SCALE * 0.95, _HISTORY_SCALE * 0.05)
        history = [(1.0 + i, DivisibleTask(f"h{i}", *part, overhead_s=_OVERHEAD_S)) for i in range(_HISTORY_TASKS)]
        stream = DivisibleWorkload(tasks=count, per_minute=self.per_minute).generate(seed)
        return history + [(_STREAM_FROM_S + time_s, task) for time_s, task in stream]

    def run(self, method: str, count: int, seed: int) -> TrialOutcome:
        nodes = self.nodes()
        splitter = METHODS[method](nodes)
        is_alone = self.is_overlapping or method == ONE_NODE  # which leaves the other nodes to other tasks
        policy = Patient(splitter if is_alone else OneAtATime(splitter))
        tasks, is_shortest = self.tasks(count, seed), method == SMALLEST
        result = HeatSimulation(nodes, tasks, policy, is_shortest_first=is_shortest, seed=seed).run()
        return _outcome(result, self.limit_celsius)


def _outcome(result: HeatResult, limit_celsius: float) -> TrialOutcome:
    times = np.array([time_s for time_s, _ in result.curves])
    celsius = np.array([row for _, row in result.curves])
    spread = celsius.max(axis=1) - celsius.min(axis=1)
    loaded, early = times >= _LOADED_FROM_S, times < _STREAM_FROM_S
    minutes = (times / 60.0).tolist()
    names = list(result.peak_by_node)
    curves = {name: (minutes, celsius[:, i].tolist()) for i, name in enumerate(names)}
    curves["limit"] = (minutes, [limit_celsius] * len(minutes))
    return TrialOutcome(
        {
            "spread": float(spread[loaded].mean() if loaded.any() else spread.mean()),
            "history_spread": float(spread[early].max(initial=0.0)),
            "peak": result.peak_celsius,
            "over_s": result.over_limit_s,
            "nodes_over": float(sum(peak > limit_celsius + 1e-9 for peak in result.peak_by_node.values())),
            "completion": result.avg_completion_s,
            "makespan": result.makespan_s,
        },
        curves,
    )


READINGS: Mapping[str, Lab] = {
    "A": Lab(),
    "B": Lab(is_weak_hot=False),
    "C": Lab(per_minute=2.0, is_overlapping=True),
    "D": Lab(per_minute=2.0, is_overlapping=True, is_weak_hot=False),
}
