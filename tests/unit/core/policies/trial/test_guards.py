"""The guards of a canary: they seldom end one that does as well, and end one that does worse, at whatever look."""

import math

import numpy as np
import pytest

from placewise_core.basics.arrays import FloatArray
from placewise_core.policies.trial.guards import (
    ALPHA,
    THRESHOLD,
    Counts,
    Guard,
    Reference,
    by_job,
    by_time,
    is_worse,
    log_e,
    reason,
)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
@pytest.mark.parametrize("events", [1, 5, 12])
def test_the_mean_of_e_is_one_while_the_canary_does_as_well_and_less_while_it_does_better(
    share: float, events: int
) -> None:
    def mean(p: float) -> float:
        return sum(
            math.comb(events, k) * p**k * (1 - p) ** (events - k) * math.exp(log_e(k, events, share))
            for k in range(events + 1)
        )

    assert mean(share) == pytest.approx(1.0)
    assert mean(0.8 * share) < 1.0 < mean(1.2 * share)


def test_no_events_are_no_evidence_and_shares_multiply() -> None:
    assert log_e(0, 0, 0.1) == pytest.approx(0.0)
    one, other = Counts(0.1, 9, 100, 20, 900), Counts(0.5, 30, 500, 20, 500)
    assert by_job([one, other]) == pytest.approx(log_e(9, 29, 0.1) + log_e(30, 50, 0.5))
    assert is_worse(THRESHOLD)
    assert not is_worse(THRESHOLD - 1e-9)
    assert math.exp(-THRESHOLD) * len(Guard) == pytest.approx(ALPHA)


def test_by_time_only_the_order_within_a_period_counts() -> None:
    worse, better = Counts(0.5, 5, 10, 9, 100), Counts(0.5, 0, 10, 1, 100)
    equal, empty = Counts(0.5, 1, 10, 10, 100), Counts(0.5, 5, 10, 0, 0)
    assert by_time([worse, worse, better, equal, empty]) == pytest.approx(log_e(2, 3, 0.5))


def test_the_reference_is_the_running_median_of_enough_values() -> None:
    reference = Reference(least=3)
    for value in (1.0, 9.0):
        reference.add(value)
    assert reference.value is None
    reference.add(2.0)
    assert reference.value == 2.0
    for value in range(100, 150):
        reference.add(float(value))
    assert reference.value == 124.5


def test_the_reason_says_what_was_counted() -> None:
    counts = [Counts(0.1, 9, 100, 20, 900), Counts(0.5, 30, 500, 20, 500)]
    assert reason(Guard.NO_FIT, math.log(95.0), counts) == (
        "no fit: 39 of 600 jobs of the canary, 40 of 1400 of the incumbent (e-value 95, limit 80)"
    )


def evidence(is_event: FloatArray, is_canary: FloatArray, share: float) -> FloatArray:
    """(looks,) ln E after each job."""
    of_canary, events = (is_event * is_canary).cumsum(), is_event.cumsum()
    pairs = np.stack([of_canary, events], axis=1)
    met, at = np.unique(pairs, axis=0, return_inverse=True)
    return np.array([log_e(int(k), int(n), share) for k, n in met])[at.ravel()]


def test_looking_after_every_job_seldom_ends_a_canary_that_does_as_well() -> None:
    rng = np.random.default_rng(20261124)
    ended = 0
    for _ in range(150):
        rate = 0.02 + 0.3 * rng.random(2000).cumsum() / 1000.0 % 0.4  # however it changes
        is_event = (rng.random(2000) < rate).astype(float)
        ended += bool((evidence(is_event, (rng.random(2000) < 0.2).astype(float), 0.2) >= THRESHOLD).any())
    assert ended <= 150 * ALPHA / len(Guard) + 5


def test_half_as_many_events_again_end_it() -> None:
    rng = np.random.default_rng(20261125)
    ended = 0
    for _ in range(40):
        is_canary = rng.random(6000) < 0.5
        is_event = rng.random(6000) < np.where(is_canary, 0.15, 0.1)
        ended += bool((evidence(is_event.astype(float), is_canary.astype(float), 0.5) >= THRESHOLD).any())
    assert ended >= 32
