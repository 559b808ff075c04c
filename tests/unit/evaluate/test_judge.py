"""Three stretches of time, a choice on the second, one judgement of each candidate on the third."""

from dataclasses import replace

import numpy as np
import pytest

from placewise_training.evaluate.checks.synthetic import REWARD_BOUND, WEIGHTS, synthetic_log
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.estimators import Estimated
from placewise_training.evaluate.intervals import BlockSums
from placewise_training.evaluate.judge import DECIDES, chosen, detectable_gain, holm, judged
from placewise_training.evaluate.stretches import Stretches, blocks_of

LOG = synthetic_log(WEIGHTS["light"], 400, 21)


def better(log: LoggedDecisions, gain: float) -> LoggedDecisions:
    """The log as it would be if the candidate's placement, the second of four, earned `gain` more."""
    return replace(log, reward=log.reward + gain * log.candidate)


def test_blocks_are_counted_from_the_first_decision() -> None:
    assert blocks_of(np.array([1000.0, 1059.9, 1060.0, 1180.0]), 60.0).tolist() == [0, 0, 1, 3]
    with pytest.raises(ValueError, match="above 0 s"):
        blocks_of(np.array([1.0]), 0.0)


def test_stretches_are_thirds_in_order_with_a_gap_between_them() -> None:
    block = np.repeat(np.arange(5, 17), 2)
    train, choose, judge = Stretches.of(block)
    assert set(block[train]) == {5, 6, 7}
    assert set(block[choose]) == {9, 10, 11}
    assert set(block[judge]) == {13, 14, 15, 16}
    assert not (train & choose | choose & judge | train & judge).any()
    assert set(block[Stretches.of(block, gap=0).train]) == {5, 6, 7, 8}


def test_one_candidate_is_judged_on_all_that_it_cannot_have_learned_from_but_a_sixth_to_warm_up() -> None:
    block = np.repeat(np.arange(5, 25), 2)
    is_unseen = block >= 9
    is_unseen[8] = True  # half of block 9's predecessor: that block is seen
    train, choose, judge = Stretches.unseen(block, is_unseen, candidates=1)
    assert set(block[train]) == {5, 6, 7, 8}
    assert not choose.any()
    assert set(block[judge]) == set(range(11, 25))


def test_the_first_half_of_unseen_decisions_chooses_among_several_candidates() -> None:
    block = np.arange(20)
    train, choose, judge = Stretches.unseen(block, block >= 4, candidates=2)
    assert set(block[train]) == {0, 1, 2, 3}
    assert set(block[choose]) == {6, 7, 8, 9, 10, 11}
    assert set(block[judge]) == set(range(13, 20))


def test_too_few_unseen_decisions_leave_thirds() -> None:
    block = np.arange(12)
    for is_unseen in (block >= 12, block >= 6, block < 6):
        found = Stretches.unseen(block, is_unseen, candidates=1)
        for mine, theirs in zip(found, Stretches.of(block), strict=True):
            assert (mine == theirs).all()


def test_too_short_a_log_is_refused() -> None:
    with pytest.raises(ValueError, match="covers 7 blocks of time, 8 are needed"):
        Stretches.of(np.arange(7))


def test_the_better_of_the_candidates_that_are_not_refused_is_chosen() -> None:
    nothing = replace(LOG, propensity=np.ones(len(LOG.reward)))
    assert chosen({"worse": better(LOG, -0.3), "good": better(LOG, 0.5), "refused": better(nothing, 9.0)}) == "good"
    assert chosen({"refused": nothing}) is None


def test_a_large_gain_is_found_and_none_where_there_is_none() -> None:
    good, same = judged({"good": better(LOG, 0.5), "worse": better(LOG, -0.3)}, REWARD_BOUND + 0.5, tried=2)
    assert good.deciding
    assert good.deciding.estimator == DECIDES
    assert good.deciding.least_gain > 0.3
    assert good.deciding.gain_interval.holds(0.55)
    assert good.adjusted_p == pytest.approx(2 * good.deciding.p_value)
    assert good.adjusted_p < 0.05
    assert same.deciding
    assert same.deciding.least_gain < 0.0
    assert same.adjusted_p > 0.5
    assert [row.estimator for row in good.rows] == ["ips", "snips", "direct", "doubly_robust", "switch_dr"]


def test_a_refused_candidate_has_no_estimate() -> None:
    bare, good = judged(
        {"bare": replace(LOG, propensity=np.ones(len(LOG.reward))), "good": better(LOG, 0.5)}, REWARD_BOUND + 0.5, 2
    )
    assert [reason.name for reason in bare.refusals] == ["NO_EXPLORATION"]
    assert bare.rows == ()
    assert bare.deciding is None
    assert bare.adjusted_p is None
    assert good.adjusted_p is not None


def test_candidates_tried_before_make_the_same_gain_count_for_less() -> None:
    (one,) = judged({"good": better(LOG, 0.5)}, REWARD_BOUND + 0.5, tried=1)
    (many,) = judged({"good": better(LOG, 0.5)}, REWARD_BOUND + 0.5, tried=200)
    assert one.adjusted_p is not None
    assert many.adjusted_p is not None
    assert many.adjusted_p == pytest.approx(200 * one.adjusted_p)


def test_holm_by_hand() -> None:
    # In order 0.01, 0.02, 0.03: 3 · 0.01, max(0.03, 2 · 0.02), max(0.04, 0.03)
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.03, 0.01], tried=5) == pytest.approx([0.12, 0.05])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match="2 p values of 1 hypotheses"):
        holm([0.1, 0.2], tried=1)


def test_the_detectable_gain_is_found_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    block, found = np.arange(30), 0
    for _ in range(400):
        noise = rng.normal(0.0, 1.0, 30)
        sums = BlockSums.of(Estimated("mean", noise, np.ones(30)), block)
        # Student's test on the mean shifted by the gain
        error = noise.std(ddof=1) / np.sqrt(30)
        found += (noise.mean() + detectable_gain(sums)) / error > 1.6991  # t_0.95 of 29 degrees of freedom
    assert 0.74 < found / 400 < 0.86
