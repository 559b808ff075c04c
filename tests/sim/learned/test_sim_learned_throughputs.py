"""Throughput learned in a run: admission reads it, and without the option nothing changes."""

import pytest

from placewise_training.reproduce.learned.throughputs import errors, found_in, run
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import qos_cluster
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload
from placewise_training.throughput.data import measured_groups


def simulated(*, is_learning: bool, policy: str = "tetris-perf") -> Simulation:
    truth = make_truth("judge", 1)
    simulation = Simulation(
        qos_cluster(),
        ElasticWorkload(jobs=40, per_hour=30.0).generate(truth, 1),
        truth,
        placement_policy("consolidate"),
        admission=admission_policy(policy),
        options=SimOptions(discipline=Discipline(every_s=60.0), learns_throughput=is_learning),
        seed=1,
    )
    simulation.run()
    return simulation


def test_a_run_that_learns_admits_otherwise_and_the_same_when_it_is_repeated() -> None:
    off, on = (simulated(is_learning=how) for how in (False, True))
    assert not list(off.view.estimates.throughputs.kinds)
    assert off.reports.counts["reports"] == 0
    assert 0 < on.reports.counts["counted"] < on.reports.counts["reports"]
    assert on.hash.hexdigest() != off.hash.hexdigest()
    assert on.hash.hexdigest() == simulated(is_learning=True).hash.hexdigest()


@pytest.mark.slow
def test_the_figures_of_the_document_can_be_made() -> None:
    groups = [group for group in measured_groups() if group.gpu_model == "A100"]
    rows = errors("network unknown", groups, (1, 2))
    assert [row["reports"] for row in rows] == [0, 1]
    assert rows[-1]["learned"][0] < rows[-1]["shipped"][0]  # type: ignore[index]
    assert all(guess.reports >= 0 for guess in found_in("both known", groups[:1], 1))
    seconds, counts = run("judge", "qos", 95_000, is_learning=True)
    assert seconds > 0
    assert counts["counted"] > 0
