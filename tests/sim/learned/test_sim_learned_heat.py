"""Heat learned in a run: Partition reads it, and without the setting nothing changes."""

import pytest

from placewise_core.domain.cluster import ClusterSettings
from placewise_training.reproduce.heat.splitters import served_policy
from placewise_training.reproduce.learned.heat import CHOSEN_ON, ERROR_SEEDS, REPORTS, SEEDS, guesses
from placewise_training.sim.divisible import DivisibleWorkload, HeatResult, HeatSimulation, heat_cluster


def run(*, is_learning: bool) -> HeatResult:
    tasks = DivisibleWorkload(tasks=20).generate(1)
    settings = ClusterSettings(learn_heat=is_learning)
    return HeatSimulation(heat_cluster(), tasks, served_policy(), settings=settings, seed=1).run()


def test_a_run_that_learns_splits_otherwise_and_the_same_when_it_is_repeated() -> None:
    off, on = (run(is_learning=how) for how in (False, True))
    assert off.event_hash != on.event_hash
    assert on.event_hash == run(is_learning=True).event_hash


def test_forecasts_become_better_with_reports_and_judged_seeds_are_others() -> None:
    assert not set(CHOSEN_ON) & {*SEEDS, *ERROR_SEEDS}
    found = [each for seed in range(61_000, 61_006) for each in guesses(seed)]
    assert [each.reports for each in found[: len(REPORTS)]] == list(REPORTS)
    learned, shipped = (sum(each.celsius[i] for each in found if each.reports == 100) for i in (0, 2))
    assert learned < shipped
    assert all(each.celsius[1] == pytest.approx(each.celsius[1]) for each in found)
