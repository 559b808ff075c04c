"""Each estimator against values that are enumerated, or recorded from another implementation."""

import itertools

import numpy as np
import pytest
from tests.unit.evaluate.logs import made, weighed

from placewise_core.basics.arrays import FloatArray
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.estimators import (
    Estimated,
    Forecast,
    direct,
    doubly_robust,
    estimates,
    ips,
    snips,
    switch_dr,
    switch_threshold,
)

# Two contexts, three placements.
PROPENSITY = np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05]])
CANDIDATE = np.array([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]])
OWN = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
REWARD = np.array([[1.0, 2.0, 4.0], [0.5, 3.0, 8.0]])
GUESS = np.array([[1.5, 1.0, 3.0], [0.0, 4.0, 7.0]])
TRUE_VALUE = float((CANDIDATE * REWARD).sum(axis=1).mean())


def log_of(actions: tuple[int, ...]) -> LoggedDecisions:
    action = np.array(actions)
    return made(REWARD[[0, 1], action], action, PROPENSITY, CANDIDATE, OWN)


def guessed(actions: tuple[int, ...], guess: FloatArray = GUESS) -> Forecast:
    return Forecast(guess[[0, 1], np.array(actions)], guess.ravel())


def expected(values: dict[tuple[int, ...], float]) -> float:
    """Mean over all nine logs, each with its probability."""
    return sum(value * PROPENSITY[0, a] * PROPENSITY[1, b] for (a, b), value in values.items())


ALL_LOGS = list(itertools.product(range(3), repeat=2))


def test_ips_is_unbiased_over_all_logs() -> None:
    assert expected({actions: ips(log_of(actions)).value for actions in ALL_LOGS}) == pytest.approx(TRUE_VALUE)


def test_doubly_robust_is_unbiased_over_all_logs_though_its_forecast_is_wrong() -> None:
    values = {actions: doubly_robust(log_of(actions), guessed(actions)).value for actions in ALL_LOGS}
    assert expected(values) == pytest.approx(TRUE_VALUE)
    assert np.std(list(values.values())) > 0.1


def test_direct_is_the_forecast_of_the_candidates_placements() -> None:
    forecast = float((CANDIDATE * GUESS).sum(axis=1).mean())
    assert [direct(log_of(actions), guessed(actions)).value for actions in ALL_LOGS] == pytest.approx([forecast] * 9)


def test_snips_is_ips_over_the_mean_weight() -> None:
    log = log_of((2, 0))
    # w = 0.75 / 0.1 = 7.5 and 0.5 / 0.05 = 10
    assert snips(log).value == pytest.approx((7.5 * 4.0 + 10.0 * 0.5) / 17.5)
    assert np.isnan(snips(log_of((0, 2))).value)


def test_switch_dr_trusts_the_forecast_above_its_threshold() -> None:
    log, forecast = log_of((2, 0)), guessed((2, 0))
    base = (CANDIDATE * GUESS).sum(axis=1)
    assert switch_dr(log, forecast, 8.0).rounds.tolist() == pytest.approx([base[0] + 7.5 * (4.0 - 3.0), base[1]])
    assert switch_dr(log, forecast, 10.0).value == pytest.approx(doubly_robust(log, forecast).value)
    assert switch_dr(log, forecast, 0.0).value == pytest.approx(direct(log, forecast).value)


def test_the_threshold_leaves_out_weights_that_cost_more_variance_than_bias() -> None:
    rng = np.random.default_rng(3)
    weights = np.where(rng.random(2000) < 0.5, 2.0, 0.0)
    weights[:4] = 400.0  # four decisions of 2,000 that outweigh all others
    reward = rng.random(2000)
    forecast = Forecast(np.full(2000, 0.5), np.full(4000, 0.5))
    assert switch_threshold(weighed(weights, reward), forecast) == 2.0
    weights[:4] = 2.0
    assert switch_threshold(weighed(weights, reward), forecast) == 2.0
    assert switch_threshold(weighed(np.zeros(5)), Forecast(np.zeros(5), np.zeros(10))) == 0.0


def test_a_right_forecast_leaves_no_variance() -> None:
    values = [doubly_robust(log_of(actions), guessed(actions, REWARD)).value for actions in ALL_LOGS]
    assert values == pytest.approx([TRUE_VALUE] * 9)


def test_rounds_have_the_estimate_as_their_mean() -> None:
    log, forecast = log_of((2, 0)), guessed((2, 0))
    for found in estimates(log, forecast):
        assert found.rounds.mean() == pytest.approx(found.value), found.name
        assert found.rounds.shape == (2,)
    assert [found.name for found in estimates(log, forecast)] == [
        "ips",
        "snips",
        "direct",
        "doubly_robust",
        "switch_dr",
    ]


def test_the_incumbent_as_its_own_candidate() -> None:
    log = log_of((0, 1)).of_incumbent()
    assert ips(log).value == pytest.approx((1.0 / 0.7 + 3.0 / 0.9) / 2)
    assert not log.differing.any()


# (P, r, π) for `add_example(p_log, r, p_pred)` of vw-estimators 0.2.2 (estimators.bandits.ips and .snips), which gave
# these values. It is on PyPI as a source alone, so the lock of wheels cannot hold it.
BY_HAND = [(0.8, 1.25, 0.0), (0.1, 0.4, 1.0), (0.25, 2.0, 0.5), (1.0, 0.0, 1.0), (0.05, 1.75, 0.9), (0.6, 3.5, 0.2)]
BY_RULE = [((i * 37 % 97 + 1) / 98, i * 53 % 89 / 44, i * 71 % 101 / 100) for i in range(500)]


@pytest.mark.parametrize(
    ("rows", "by_ips", "by_snips"),
    [(BY_HAND, 6.777777777777778, 1.297872340425532), (BY_RULE, 2.538812795800954, 0.9660299120896783)],
)
def test_ips_and_snips_equal_vw_estimators(
    rows: list[tuple[float, float, float]], by_ips: float, by_snips: float
) -> None:
    propensity, reward, target = np.array(rows).T
    both = np.stack([propensity, 1.0 - propensity], axis=1)
    candidate = np.stack([target, 1.0 - target], axis=1)
    log = made(reward, np.zeros(len(rows), dtype=np.int64), both, candidate, both)
    found: list[Estimated] = [ips(log), snips(log)]
    assert [one.value for one in found] == pytest.approx([by_ips, by_snips], rel=1e-12)
