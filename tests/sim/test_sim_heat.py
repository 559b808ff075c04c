"""Divisible tasks on warming nodes: splits add up, heat is accounted, prediction keeps nodes cooler."""

import json

import numpy as np
import pytest

from placewise_core.partition.policy import PartitionPolicy
from placewise_core.partition.registry import partition_policy
from placewise_models.folder import shipped_bundle
from placewise_training.sim.divisible import (
    DivisibleWorkload,
    EqualSplit,
    HeatResult,
    HeatSimulation,
    WithoutHeat,
    heat_cluster,
)


def service_policy() -> PartitionPolicy:
    text = (shipped_bundle() / "capability.json").read_text("utf-8")
    return partition_policy(json.loads(text))


def run(policy: PartitionPolicy, seed: int = 0, tasks: int = 60) -> HeatResult:
    workload = DivisibleWorkload(tasks=tasks, per_minute=2.0).generate(seed)
    return HeatSimulation(heat_cluster(), workload, policy, seed=seed).run()


def test_every_splitter_finishes_the_stream_and_repeats() -> None:
    for make in (EqualSplit, service_policy, lambda: WithoutHeat(service_policy())):
        result = run(make())
        assert result.finished == 60
        assert result.event_hash == run(make()).event_hash
        assert np.isfinite(result.spread_celsius)


def test_prediction_keeps_nodes_cooler_than_equal_shares_and_than_no_prediction() -> None:
    for seed in range(3):
        equal, blind, predicting = (
            run(EqualSplit(), seed),
            run(WithoutHeat(service_policy()), seed),
            run(service_policy(), seed),
        )
        assert predicting.over_limit_s < 0.25 * min(equal.over_limit_s, blind.over_limit_s)
        assert predicting.spread_celsius < min(equal.spread_celsius, blind.spread_celsius)


def test_hiding_temperatures_leaves_the_view_as_it_was() -> None:
    simulation = HeatSimulation(heat_cluster(), DivisibleWorkload(tasks=5).generate(0), WithoutHeat(service_policy()))
    simulation.run()
    assert not np.isnan(simulation.view.nodes.telemetry[8]).any()


def test_conventional_scheduling_passes_the_limit_on_strong_nodes_only() -> None:
    """The paper's Figure 2: some nodes go over the threshold, the weak ones do not."""
    peaks = run(EqualSplit(), tasks=150).peak_by_node
    assert all(peaks[name] > 62 for name in ("C1", "C2", "C3", "C4", "C5"))
    assert all(peaks[name] < 62 for name in ("C6", "C7"))


def test_a_single_task_takes_as_long_as_its_slowest_share() -> None:
    nodes = heat_cluster()
    ((_, task),) = DivisibleWorkload(tasks=1, serial_share=0.0).generate(0)
    simulation = HeatSimulation(nodes, [(0.0, task)], EqualSplit())
    slowest = min(node.rate("cpu") * simulation._noise[node.spec.id] for node in nodes)
    expected_s = task.parallel_scale / 14 / slowest + task.overhead_s
    assert simulation.run().avg_completion_s == pytest.approx(expected_s)
