"""What Lyapunov theory promises of Proteus: bounded queues inside the capacity region, and V against backlog."""

import numpy as np
import pytest
from tests.fakes.proteus_queue import Trace, bundled, run

from placewise_core.admit.policies.proteus import Proteus
from placewise_core.domain.cluster import QueueSettings
from placewise_core.speed.throughput import ThroughputModel

SEEDS = (1, 2, 3)
SLOT_S = 60.0


@pytest.fixture(scope="module")
def policy() -> Proteus:
    return Proteus(ThroughputModel(bundled("throughput.json")))


def settings(v: float, epsilon_s: float = 60.0) -> QueueSettings:
    return QueueSettings(v=v, epsilon_s=epsilon_s, tau_s=600.0, slot_s=SLOT_S)


def thirds(values: list[float]) -> tuple[float, float]:
    """Mean of the second and of the last third: the first is the run filling up."""
    n = len(values) // 3
    return float(np.mean(values[n : 2 * n])), float(np.mean(values[2 * n :]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("v", [1.0, 10.0])
def test_inside_the_capacity_region_both_queues_stay_bounded(policy: Proteus, seed: int, v: float) -> None:
    trace = run(policy, settings(v), arrivals_per_slot=0.4, slots=2400, seed=seed)
    for values in (trace.backlog_s, trace.delay_s):
        middle, late = thirds(values)
        assert late < 1.5 * middle + SLOT_S
    assert len(trace.cost_s) > 0.95 * 0.4 * 2400 - 100  # nearly all that came has started


@pytest.mark.parametrize("seed", SEEDS)
def test_outside_the_capacity_region_both_queues_grow(policy: Proteus, seed: int) -> None:
    """Eight GPUs serve about 0.62 jobs a slot in fours; ε above what that serves makes Z grow with Q."""
    trace = run(policy, settings(1.0, epsilon_s=450.0), arrivals_per_slot=1.0, slots=900, seed=seed)
    for values in (trace.backlog_s, trace.delay_s):
        middle, late = thirds(values)
        assert late > 1.4 * middle
        assert values[-1] > 100 * SLOT_S


def test_raising_v_trades_backlog_for_cost(policy: Proteus) -> None:
    """Jobs of up to three GPUs on nodes of four: the rest costs more, and only a small V takes it."""

    def mean(v: float) -> tuple[float, float]:
        traces: list[Trace] = [run(policy, settings(v), 0.45, 2000, seed, max_gpus=3) for seed in SEEDS]
        backlog = float(np.mean([np.mean(t.backlog_s[500:]) for t in traces]))
        return backlog, float(np.mean([np.mean(t.cost_s) for t in traces]))

    results = [mean(v) for v in (1.0, 3.0, 10.0, 30.0)]
    backlogs, costs = zip(*results, strict=True)
    assert list(backlogs) == sorted(backlogs)
    assert list(costs) == sorted(costs, reverse=True)
    assert backlogs[-1] > 3 * backlogs[0]
    assert costs[-1] < 0.97 * costs[0]
