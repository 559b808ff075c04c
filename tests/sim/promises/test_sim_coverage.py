"""Estimators and intervals on many synthetic logs: how often an interval holds the truth, and the truth behind them."""

from typing import Any

import numpy as np
import pytest

from placewise_training.evaluate.checks import coverage
from placewise_training.evaluate.checks.synthetic import REWARD_BOUND, TRUE_GAIN, TRUE_VALUE, WEIGHTS, synthetic_log
from placewise_training.evaluate.estimators import ips
from placewise_training.evaluate.support import Support, effective_size

LOGS = 150


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Any]:
    found = coverage.measured(WEIGHTS["light"], 100, range(5_000, 5_000 + LOGS))
    return {(row["estimator"], row["of"]): row for row in found}


@pytest.mark.parametrize("what", ["value", "gain"])
@pytest.mark.parametrize("name", ["ips", "snips", "doubly_robust"])
def test_intervals_hold_the_truth_as_often_as_they_say(rows: dict[tuple[str, str], Any], name: str, what: str) -> None:
    row = rows[name, what]
    assert abs(row["bias"]) < 4 * row["spread"] / np.sqrt(LOGS)
    # 150 logs of 95 % coverage: fewer than 134 in one of 30,000 measurements
    assert row["intervals"]["studentised"]["coverage"] > 0.89
    if name != "snips":
        assert row["intervals"]["empirical_bernstein"]["coverage"] == 1.0


def test_an_interval_around_a_biased_forecast_is_too_narrow(rows: dict[tuple[str, str], Any]) -> None:
    assert rows["direct", "gain"]["intervals"]["studentised"]["coverage"] < 0.6


@pytest.mark.parametrize("kind", list(WEIGHTS))
def test_synthetic_logs_have_the_truth_and_the_ess_that_they_claim(kind: str) -> None:
    logs = [synthetic_log(WEIGHTS[kind], 300, seed) for seed in range(40)]
    values = np.array([ips(log).value for log in logs])
    gains = np.array([ips(log).value - ips(log.of_incumbent()).value for log in logs])
    for found, truth in ((values, TRUE_VALUE), (gains, TRUE_GAIN)):
        assert abs(found.mean() - truth) < 4 * found.std() / np.sqrt(len(logs))
    assert np.mean([effective_size(log.weights) for log in logs]) == pytest.approx(300, rel=0.1)
    assert all(Support.of(log).refusals == () for log in logs)
    assert max(log.reward.max() for log in logs) <= REWARD_BOUND
