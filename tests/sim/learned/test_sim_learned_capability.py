"""Capabilities learned in a run: Partition reads them, and without the setting nothing changes."""

from placewise_core.domain.cluster import ClusterSettings
from placewise_training.reproduce.heat.lab import Lab
from placewise_training.reproduce.heat.splitters import served_policy
from placewise_training.reproduce.learned.capability import (
    CHOOSE_ERROR_SEEDS,
    CHOSEN_ON,
    DRAWN,
    ERROR_SEEDS,
    REPORTS,
    SEEDS,
    as_shipped,
    guesses,
    of_node,
    stream,
)
from placewise_training.reproduce.learned.capability import _run as run_lab
from placewise_training.sim.divisible import UNITS, DivisibleWorkload, HeatResult, HeatSimulation, heat_cluster


def run(*, is_learning: bool) -> HeatResult:
    tasks = DivisibleWorkload(tasks=20).generate(1)
    settings = ClusterSettings(learn_capability=is_learning)
    return HeatSimulation(heat_cluster(), tasks, served_policy(), settings=settings, seed=1).run()


def test_a_run_that_learns_splits_otherwise_and_the_same_when_it_is_repeated() -> None:
    off, on = (run(is_learning=how) for how in (False, True))
    assert off.event_hash != on.event_hash
    assert on.event_hash == run(is_learning=True).event_hash


def test_forecasts_become_better_with_reports_and_judged_seeds_are_others() -> None:
    assert not {*CHOSEN_ON, *CHOOSE_ERROR_SEEDS} & {*SEEDS, *ERROR_SEEDS}
    found = [each for seed in range(61_000, 61_020) for each in guesses(seed)]
    assert [each.reports for each in found[: len(REPORTS)]] == list(REPORTS)
    learned, shipped = (sum(each.errors[i] for each in found if each.reports == 30) for i in (0, 2))
    assert learned < shipped


def test_a_truth_as_shipped_is_what_the_weights_say() -> None:
    import numpy as np

    lab, rng = Lab(), np.random.default_rng(1)
    factors = as_shipped(lab)
    nodes = [of_node(node, factors, rng) for node in lab.nodes()]
    rates = [node.rate(unit, "k0") / node.capability for node in nodes for unit in UNITS]
    assert len({round(rate, 6) for rate in rates}) == 4
    tasks = stream(lab, nodes, 1)
    assert {task.kind for _, task in tasks} == {"k0", "k1", "k2"}


def test_off_and_on_get_equal_tasks_and_units() -> None:
    off, on = (run_lab(Lab(), DRAWN, 61_001, is_learning=how) for how in (False, True))
    assert off is not None
    assert on is not None
    assert off.finished == on.finished
    assert on.avg_completion_s < off.avg_completion_s
