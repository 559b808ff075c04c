"""Disturbance learned in a run: near the truth's own, and without the option nothing changes."""

import pytest

from placewise_core.speed.learned.disturbance import Disturbance
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import make_node
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload, Lengths
from placewise_training.unseen.losses import PAIRS, error, watched
from placewise_training.unseen.scenarios import scenarios


def simulated(
    flat_loss: float, policy: str = "load-balance", *, is_learning: bool = True, reports: bool = True
) -> Simulation:
    truth = make_truth("judge", 3)
    truth.flat_loss = flat_loss
    workload = HarmonyWorkload(jobs=60, pattern="poisson", per_interval=6.0, most_tasks=6, lengths=Lengths(1500.0))
    nodes = [
        make_node(f"n{i}", gpus=4, cpu_cores=32, memory_gib=128, network_gbps=50.0, gpu_model="V100") for i in range(8)
    ]
    simulation = Simulation(
        nodes,
        workload.generate(truth, 3),
        truth,
        placement_policy(policy),
        options=SimOptions(
            discipline=Discipline(order="fifo"), reports_progress=reports, learns_disturbance=is_learning
        ),
        seed=3,
    )
    simulation.run()
    return simulation


@pytest.mark.parametrize("flat_loss", [0.0, 0.25, 0.5])
def test_a_run_shows_how_much_gangs_lose_beside_each_other(flat_loss: float) -> None:
    found = simulated(flat_loss).view.estimates.disturbance
    assert found.weight > 2.0
    assert found.loss == pytest.approx(flat_loss, abs=0.12)


def test_without_the_option_nothing_is_learned_and_nothing_else_changes() -> None:
    off = simulated(0.5, is_learning=False)
    assert list(off.view.estimates.kinds) == []
    assert off.hash.hexdigest() == simulated(0.5).hash.hexdigest(), "load-balance reads no estimate"


def test_without_reports_the_guess_stays() -> None:
    found = simulated(0.5, reports=False).view.estimates
    assert list(found.kinds) == []
    assert found.disturbance.loss == Disturbance().loss


def test_the_figures_of_the_document_can_be_made() -> None:
    scenario = next(each for each in scenarios(16, 13) if each.flat_loss == 0.5 and each.pattern != "philly")
    found = watched(scenario, "load-balance")
    assert [each.pairs for each in found] == list(PAIRS[: len(found)])
    assert len(found) >= 2
    errors = [error(each.loss, each.true_loss) for each in found]
    assert errors[-1] < errors[0] < error(Disturbance().loss, 0.5)
