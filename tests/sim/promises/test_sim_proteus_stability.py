"""What Lyapunov theory promises of Proteus: bounded queues inside the capacity region, and V against backlog."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.fakes.proteus_queue import Trace, bundled, run

from placewise_core.admit.policies.proteus import Proteus
from placewise_core.admit.policies.proteus_paper import ProteusPaper
from placewise_core.admit.policies.proteus_qos import ProteusQos, ProteusQosSavable
from placewise_core.admit.policies.tetris import TetrisPerf
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.job import Job
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

SEEDS = (1, 2, 3)
SLOT_S = 60.0


@pytest.fixture(scope="module")
def policy() -> ProteusPaper:
    return ProteusPaper(ThroughputModel(bundled("throughput.json")))


def settings(v: float, epsilon_s: float = 60.0) -> QueueSettings:
    return QueueSettings(v=v, epsilon_s=epsilon_s, tau_s=600.0, slot_s=SLOT_S)


def thirds(values: list[float]) -> tuple[float, float]:
    """Mean of the second and of the last third: the first is the run filling up."""
    n = len(values) // 3
    return float(np.mean(values[n : 2 * n])), float(np.mean(values[2 * n :]))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("v", [1.0, 10.0])
def test_inside_the_capacity_region_both_queues_stay_bounded(policy: ProteusPaper, seed: int, v: float) -> None:
    trace = run(policy, settings(v), arrivals_per_slot=0.4, slots=2400, seed=seed)
    for values in (trace.backlog_s, trace.delay_s):
        middle, late = thirds(values)
        assert late < 1.5 * middle + SLOT_S
    assert len(trace.cost_s) > 0.95 * 0.4 * 2400 - 100  # nearly all that came has started


@pytest.mark.parametrize("seed", SEEDS)
def test_outside_the_capacity_region_both_queues_grow(policy: ProteusPaper, seed: int) -> None:
    """Eight GPUs serve about 0.62 jobs a slot in fours; ε above what that serves makes Z grow with Q."""
    trace = run(policy, settings(1.0, epsilon_s=450.0), arrivals_per_slot=1.0, slots=900, seed=seed)
    for values in (trace.backlog_s, trace.delay_s):
        middle, late = thirds(values)
        assert late > 1.4 * middle
        assert values[-1] > 100 * SLOT_S


def test_raising_v_trades_backlog_for_cost(policy: ProteusPaper) -> None:
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


# -- the work-conserving variant --------------------------------------------------------------------------------------

# A GPU serves a second of Cost(1) in a second, and no job more than that on each of several: this is the capacity.
_GPUS, _LOAD, _LONGEST_S = 8, 0.95, 3600.0


def conserving() -> Proteus:
    return Proteus(ThroughputModel(bundled("throughput.json")))


def work_s(rng: np.random.Generator) -> float:
    """Seconds on one GPU: lengths as skewed as those of traces."""
    return float(np.clip(600.0 * rng.lognormal(0.0, 0.5), 120.0, _LONGEST_S))


_MEAN_S = float(np.clip(600.0 * np.random.default_rng(0).lognormal(0.0, 0.5, 100_000), 120.0, _LONGEST_S).mean())


def loaded(policy: AdmissionPolicy, seed: int) -> Trace:
    """Jobs at 95 % of what eight GPUs can serve, for fifteen times the longest job. A slot is short beside them, since
    a GPU that is given back stands idle until the next slot."""
    slots, per_slot = int(15 * _LONGEST_S / 10.0), _LOAD * _GPUS * 10.0 / _MEAN_S
    settings = QueueSettings(v=1.0, epsilon_s=60.0, slot_s=10.0)
    return run(policy, settings, per_slot, slots, seed, max_gpus=8, work_s=work_s)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", [Proteus, ProteusQos, ProteusQosSavable])
def test_at_95_percent_of_capacity_the_backlog_is_at_most_ten_of_the_longest_job(
    policy: type[Proteus], seed: int
) -> None:
    trace = loaded(policy(ThroughputModel(bundled("throughput.json"))), seed)
    assert max(trace.backlog_s) <= 10 * _LONGEST_S
    middle, late = thirds(trace.backlog_s)
    assert late < 1.5 * middle + _LONGEST_S


def test_what_takes_every_free_gpu_is_not_stable_at_that_load() -> None:
    """The test above can fail."""
    greedy = TetrisPerf(ThroughputModel(bundled("throughput.json")))

    class UnstableError(Exception):
        pass

    class Watched(AdmissionPolicy):
        name = "watched"

        def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
            plan = greedy.admit(jobs, view, queue, context)
            waits = [job for job, a in zip(jobs, plan.admissions, strict=True) if a.verdict is Verdict.WAIT]
            if sum(job.single_gpu_s for job in waits) > 10 * _LONGEST_S:
                raise UnstableError
            return plan

    with pytest.raises(UnstableError):
        loaded(Watched(), SEEDS[0])


def test_raising_v_trades_backlog_for_time_running_in_the_work_conserving_variant() -> None:
    def mean(v: float) -> tuple[float, float]:
        traces = [run(conserving(), QueueSettings(v=v, slot_s=10.0), 0.08, 2500, seed, max_gpus=8) for seed in SEEDS]
        backlog = float(np.mean([np.mean(t.backlog_s[500:]) for t in traces]))
        return backlog, float(np.mean([np.mean(t.cost_s) for t in traces]))

    backlogs, costs = zip(*[mean(v) for v in (1.0, 3.0, 10.0)], strict=True)
    assert list(backlogs) == sorted(backlogs)
    assert list(costs) == sorted(costs, reverse=True)
    assert costs[-1] < 0.9 * costs[0]
