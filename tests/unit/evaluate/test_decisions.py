"""Logged decisions as arrays: what differs, what lacks support, and which arrays are refused."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.evaluate.logs import made

from placewise_training.evaluate.decisions import LoggedDecisions

PROPENSITY = np.array([[1.0, 0.0], [0.75, 0.25], [0.5, 0.5]])
CANDIDATE = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
OWN = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])


@pytest.fixture
def log() -> LoggedDecisions:
    return made(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 0]), PROPENSITY, CANDIDATE, OWN)


def test_weights_support_and_differences(log: LoggedDecisions) -> None:
    assert log.weights.tolist() == [0.0, 4.0, 2.0]
    assert log.unsupported.tolist() == [1.0, 0.0, 0.0]
    assert log.differing.tolist() == [True, True, False]
    assert log.largest_weight == 4.0


def test_taken_keeps_the_placements_of_the_decisions_that_it_keeps(log: LoggedDecisions) -> None:
    kept = log.taken(np.array([False, True, True]))
    assert kept.weights.tolist() == [4.0, 2.0]
    assert kept.options.decision.tolist() == [0, 0, 1, 1]
    assert kept.differing.tolist() == [True, False]
    assert kept.options.propensity.tolist() == [0.75, 0.25, 0.5, 0.5]
    with pytest.raises(ValueError, match="no decisions"):
        log.taken(np.zeros(3, dtype=bool))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"propensity": np.array([0.0, 0.5, 0.5])}, "propensity of a logged action"),
        ({"propensity": np.array([1.5, 0.5, 0.5])}, "propensity of a logged action"),
        ({"candidate": np.ones(2)}, "candidate has 2 rows, 3 are needed"),
        ({"reward": np.array([1.0, np.nan, 2.0])}, "reward of decision 1 is not finite"),
        ({"features": np.full((3, 2), np.inf)}, "features holds a number that is not finite"),
    ],
)
def test_arrays_that_cannot_be_are_refused(log: LoggedDecisions, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(log, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["candidate", "own"])
def test_probabilities_of_each_decision_sum_to_one(log: LoggedDecisions, name: str) -> None:
    halved = replace(log.options, **{name: np.array([0.0, 0.5, 0.0, 1.0, 1.0, 0.0])})
    with pytest.raises(ValueError, match=rf"options\.{name} does not sum to 1"):
        replace(log, options=halved)
