"""Conditions of the gate, on numbers made by hand."""

import numpy as np
import pytest

from placewise_training.evaluate.again import Answer, Conduct
from placewise_training.evaluate.intervals import Interval
from placewise_training.evaluate.judge import EstimatorRow, Judgement
from placewise_training.evaluate.support import Refusal, Refused, Support
from placewise_training.gate.checks import Slice, conduct_checks, credible, gain, no_loss, slice_checks, slice_of
from placewise_training.gate.simulated import Change, Credible

SUPPORT = Support(500, 300.0, 250, 400, 0.0, 200.0, 0.01)


def judgement(value: float, least: float) -> Judgement:
    interval = Interval(least, 2 * value - least)
    row = EstimatorRow("doubly_robust", 1.0 + value, interval, value, interval, least, None, 0.5)
    return Judgement("c", SUPPORT, (), (row,), 0.5, 0.08)


@pytest.mark.parametrize(
    ("value", "least", "passes"),
    [
        (0.01, -0.01, True),
        (-0.006, -0.014, True),  # a loss is neither shown nor larger than 2 %
        (-0.010, -0.016, False),  # the upper bound is below 0: a loss is shown
        (0.00, -0.024, False),  # the log cannot rule out a loss of 2 %
        (0.01, -0.05, False),
    ],
)
def test_no_loss_is_a_matter_of_both_bounds(value: float, least: float, passes: bool) -> None:
    found = no_loss(judgement(value, least), 1.0)
    assert found.has_passed is passes
    assert "could have shown a gain of 0.08" in found.text


def test_a_refused_estimate_passes_no_gate() -> None:
    refusal = Refused(Refusal.LOW_ESS, "the 3 decisions say as much as 1.0")
    found = no_loss(Judgement("c", SUPPORT, (refusal,)), 1.0)
    assert not found.has_passed
    assert found.text == "not estimated: LOW_ESS: the 3 decisions say as much as 1.0"


def test_a_simulation_that_misses_the_logged_jct_is_not_credible() -> None:
    assert credible(Credible(1000.0, 1090.0, (1090.0,), 9e3, 300)).has_passed
    found = credible(Credible(1000.0, 1110.0, (1110.0,), 9e3, 300))
    assert not found.has_passed
    assert found.text.startswith("simulation not credible: mean JCT of the incumbent 1,110 s simulated, 1,000 s logged")


def test_a_gain_must_be_shown() -> None:
    assert gain(Change(-0.05, 0.02, 12)).has_passed
    assert not gain(Change(-0.03, 0.02, 12)).has_passed
    assert not gain(Change(0.05, 0.02, 12)).has_passed
    assert not gain(Change.of([-0.5, -0.5], [-0.5, -0.5])).has_passed


def test_the_doubt_of_the_fit_does_not_shrink_with_the_number_of_windows() -> None:
    windows = np.random.default_rng(1).normal(-0.05, 0.02, 400).tolist()
    sure, unsure = Change.of(windows, windows), Change.of(windows, [each + 0.04 for each in windows])
    assert sure is not None
    assert unsure is not None
    assert sure.error == pytest.approx(0.02 / 20, rel=0.1)
    assert unsure.error == pytest.approx(0.04, rel=0.01)
    assert (gain(sure).has_passed, gain(unsure).has_passed) == (True, False)


def answers(**changes: object) -> Conduct:
    usual = {
        "seconds": 0.01, "incumbent_s": 0.01, "is_placed": True, "is_fallback": False, "incumbent_is_fallback": False,
        "is_hot": False, "incumbent_is_hot": False,
    }  # fmt: skip
    good, bad = Answer(**usual), Answer(**{**usual, **changes})  # type: ignore[arg-type]
    return Conduct([good] * 90 + [bad] * 10)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, set()),
        ({"is_placed": False}, {"NO_FIT"}),
        ({"is_fallback": True}, {"fallbacks"}),
        ({"is_hot": True}, {"temperature"}),
        ({"is_hot": True, "incumbent_is_hot": True}, set()),
        ({"seconds": 0.05}, {"latency"}),
    ],
)
def test_each_kind_of_misconduct_fails_its_own_check(changes: dict[str, object], failing: set[str]) -> None:
    assert {check.name for check in conduct_checks(answers(**changes)) if not check.has_passed} == failing


def test_fallbacks_are_compared_with_the_incumbents_on_the_same_decisions() -> None:
    assert all(check.has_passed for check in conduct_checks(answers(is_fallback=True, incumbent_is_fallback=True)))


def test_a_slice_that_is_clearly_worse_fails_and_noise_does_not() -> None:
    worse = slice_of("gang of 8 or more", Change(float(np.log(1.2)), 0.01, 12))
    noisy = slice_of("queue a", Change(0.1, 0.06, 12))
    assert worse is not None
    assert noisy is not None
    assert [check.has_passed for check in slice_checks([worse, noisy])] == [False, True]
    assert slice_of("few windows", Change.of([0.0] * 3, [0.0] * 3)) is None


def test_many_slices_are_corrected_for() -> None:
    """One of 40 slices is worse by as much as chance makes the worst of 40."""
    one = Slice("s", 0.05 + 2.0 * 0.02, 0.02, 12)
    assert not slice_checks([one])[0].has_passed
    same = Slice("t", 0.0, 0.02, 12)
    assert all(check.has_passed for check in slice_checks([one, *[same] * 39]))
