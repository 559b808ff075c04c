"""A log that says too little about a candidate is refused by name, with the numbers."""

import numpy as np
import pytest
from tests.unit.evaluate.logs import made, weighed

from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.support import Refusal, Support, effective_size


def names(log: LoggedDecisions) -> list[str]:
    return [reason.name for reason in Support.of(log).refusals]


def with_unsupported(count: int, of: int) -> LoggedDecisions:
    """`of` decisions on which the two differ; the log could not have held the candidate's placement on `count`."""
    is_held = np.arange(of) >= count
    chance = np.where(is_held, 0.5, 0.0)
    propensity = np.stack([1.0 - chance, chance], axis=1)
    candidate = np.tile([0.0, 1.0], (of, 1))
    return made(np.ones(of), is_held.astype(np.int64), propensity, candidate, 1.0 - candidate)


def test_an_ess_is_the_number_of_equal_weights() -> None:
    assert effective_size(np.full(7, 3.0)) == pytest.approx(7.0)
    assert effective_size(np.array([1.0, 0.0, 3.0])) == pytest.approx(16 / 10)
    assert effective_size(np.zeros(4)) == 0.0


def test_enough_is_accepted() -> None:
    assert names(weighed(np.full(100, 2.0))) == []


@pytest.mark.parametrize(("missing", "expected"), [(10, []), (11, ["WITHOUT_SUPPORT"])])
def test_more_than_five_percent_without_support(missing: int, expected: list[str]) -> None:
    assert names(with_unsupported(missing, of=200)) == expected


@pytest.mark.parametrize(("count", "expected"), [(100, []), (99, ["LOW_ESS"])])
def test_ess_below_a_hundred(count: int, expected: list[str]) -> None:
    assert names(weighed(np.full(count, 2.0))) == expected


def test_a_weight_above_a_tenth() -> None:
    # 900 weights of 2 and one of 201: 10.04 % of the sum
    found = Support.of(weighed(np.append(np.full(900, 2.0), 201.0)))
    assert found.largest_share == pytest.approx(201 / 2001)
    assert [reason.name for reason in found.refusals] == [Refusal.LOW_ESS, Refusal.HEAVY_WEIGHT]
    assert names(weighed(np.append(np.full(900, 2.0), 199.0))) == ["LOW_ESS"]


def test_no_exploration_at_all() -> None:
    own = np.tile([1.0, 0.0], (300, 1))
    log = made(np.ones(300), np.zeros(300, dtype=np.int64), own, 1.0 - own, own)
    assert names(log) == ["NO_EXPLORATION", "WITHOUT_SUPPORT", "LOW_ESS"]


def test_only_decisions_on_which_the_two_differ_count() -> None:
    own = np.tile([1.0, 0.0], (1000, 1))
    candidate = own.copy()
    candidate[:50] = [0.0, 1.0]
    propensity = np.tile([0.5, 0.5], (1000, 1))
    found = Support.of(made(np.ones(1000), np.arange(1000) % 2, propensity, candidate, own))
    assert (found.decisions, found.differing) == (1000, 50)
    assert found.ess > 400
    assert [reason.name for reason in found.refusals] == [Refusal.LOW_ESS]


def test_the_numbers_are_in_the_words() -> None:
    (reason,) = Support.of(weighed(np.full(99, 2.0))).refusals
    assert reason.text == (
        "the 99 decisions on which the two differ say as much as 99.0 of the candidate's own; 100 are needed"
    )
