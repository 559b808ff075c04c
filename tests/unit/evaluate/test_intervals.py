"""Intervals against their definitions, worked out the long way."""

import math

import numpy as np
import pytest

from placewise_core.basics.arrays import FloatArray
from placewise_training.evaluate.checks.synthetic import WEIGHTS, synthetic_log
from placewise_training.evaluate.estimators import Estimated, ips, snips
from placewise_training.evaluate.intervals import (
    BlockSums,
    drawn_blocks,
    empirical_bernstein,
    p_value,
    percentile,
    standard_error,
    studentised,
)

LOG = synthetic_log(WEIGHTS["light"], 100, 4)
BLOCKS = np.unique(LOG.block)
OURS, THEIRS = snips(LOG), ips(LOG.of_incumbent())


def ratio(found: Estimated, drawn: FloatArray) -> float:
    """The estimate of the decisions of the blocks drawn, a block once for each time that it was drawn."""
    rows = np.concatenate([np.flatnonzero(LOG.block == one) for one in drawn])
    return float(found.numerator[rows].sum() / found.denominator[rows].sum())


def test_a_resample_is_the_estimate_of_its_blocks() -> None:
    drawn = np.random.default_rng(2).choice(BLOCKS, len(BLOCKS))
    counts = np.array([[(drawn == one).sum() for one in BLOCKS]], dtype=np.float64)
    value, _ = BlockSums.of(OURS, LOG.block, THEIRS).resampled(counts)
    assert value[0] == pytest.approx(ratio(OURS, drawn) - ratio(THEIRS, drawn))


def test_the_standard_error_of_independent_blocks_is_near_that_of_leaving_out_each() -> None:
    left_out = [ratio(OURS, BLOCKS[one != BLOCKS]) - ratio(THEIRS, BLOCKS[one != BLOCKS]) for one in BLOCKS]
    jackknife = math.sqrt((len(BLOCKS) - 1) ** 2 / len(BLOCKS) * np.var(left_out, ddof=1))
    _, (error,) = BlockSums.of(OURS, LOG.block, THEIRS).resampled(np.ones((1, len(BLOCKS))))
    assert error == pytest.approx(jackknife, rel=0.05)


def test_neighbouring_blocks_that_are_alike_widen_it_and_others_do_not() -> None:
    block = np.repeat(np.arange(4), 3)
    for means, covariance in (([1.0, 3.0, 2.0, 6.0], 0.0), ([1.0, 2.0, 3.0, 6.0], 2.0 * 1.0 + 1.0 * 0.0 + 0.0 * 3.0)):
        values = np.repeat(means, 3) + np.tile([-0.1, 0.0, 0.1], 4)
        off = np.array(means) - 3.0
        expected = math.sqrt((float(off @ off) + 2.0 * covariance) / 3 / 4)
        assert standard_error(BlockSums.of(Estimated("mean", values, np.ones(12)), block)) == pytest.approx(expected)


def test_the_interval_holds_the_mean_of_blocks_that_remember() -> None:
    """AR(1) blocks with a correlation of 0.2: independent ones would be held in about 90 % of the cases."""
    rng, held, counts = np.random.default_rng(11), 0, drawn_blocks(40, 400, 1)
    for _ in range(600):
        noise = rng.normal(0.0, 1.0, 40)
        for i in range(1, 40):
            noise[i] = 0.2 * noise[i - 1] + math.sqrt(1 - 0.04) * noise[i]
        held += studentised(BlockSums.of(Estimated("mean", noise, np.ones(40)), np.arange(40)), counts).holds(0.0)
    assert 0.92 < held / 600 < 0.97


def test_draws_are_of_as_many_blocks_and_repeat_with_their_seed() -> None:
    counts = drawn_blocks(7, 50, 3)
    assert counts.shape == (50, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert (counts == drawn_blocks(7, 50, 3)).all()
    assert (counts != drawn_blocks(7, 50, 4)).any()


def test_the_studentised_interval_by_its_definition() -> None:
    sums = BlockSums.of(OURS, LOG.block)
    counts = drawn_blocks(len(BLOCKS), 200, 1)
    value, error = ratio(OURS, BLOCKS), standard_error(sums)
    scores = []
    for row in counts:
        resampled = BlockSums(
            sums.signs, np.repeat(sums.numerators, row.astype(int), 1), np.repeat(sums.denominators, row.astype(int), 1)
        )
        _, (spread,) = resampled.resampled(np.ones((1, len(BLOCKS))))
        scores.append((ratio(OURS, np.repeat(BLOCKS, row.astype(int))) - value) / spread)
    half = np.quantile(np.abs(scores), 0.95) * error
    assert studentised(sums, counts) == pytest.approx((value - half, value + half))


def test_a_wider_level_gives_a_wider_interval() -> None:
    sums, counts = BlockSums.of(OURS, LOG.block), drawn_blocks(len(BLOCKS), 500, 1)
    for interval in (percentile, studentised):
        assert interval(sums, counts, 0.99).width > interval(sums, counts, 0.9).width
        assert interval(sums, counts).holds(OURS.value)


def test_equal_policies_differ_by_nothing() -> None:
    sums, counts = BlockSums.of(OURS, LOG.block, OURS), drawn_blocks(len(BLOCKS), 100, 1)
    assert studentised(sums, counts) == (0.0, 0.0)
    assert percentile(sums, counts) == (0.0, 0.0)
    assert p_value(sums, counts) == 1.0


def test_the_p_value_agrees_with_the_interval() -> None:
    values = np.random.default_rng(5).normal(0.0, 1.0, 40)
    block, counts = np.arange(40), drawn_blocks(40, 999, 1)
    for shift in np.linspace(-0.5, 0.5, 21):
        sums = BlockSums.of(Estimated("mean", values + shift, np.ones(40)), block)
        assert (p_value(sums, counts) < 0.05) == (studentised(sums, counts, 0.9).low > 0.0)
    sums = BlockSums.of(Estimated("mean", values + 100.0, np.ones(40)), block)
    assert p_value(sums, counts) == pytest.approx(0.0005)


def test_one_block_gives_no_interval() -> None:
    with pytest.raises(ValueError, match="one block of time"):
        BlockSums.of(OURS, np.zeros(len(LOG.block), dtype=np.int64))


def test_empirical_bernstein_by_hand() -> None:
    # Mean 2, variance 4/3 over four values, span 5; ln(4 / 0.05) = 4.382
    found = empirical_bernstein(np.array([1.0, 1.0, 3.0, 3.0]), 5.0)
    half = math.sqrt(2 * (4 / 3) * math.log(80) / 4) + 7 * 5 * math.log(80) / 9
    assert found == pytest.approx((2 - half, 2 + half))


def test_empirical_bernstein_refuses_values_beyond_its_span() -> None:
    with pytest.raises(ValueError, match="2 apart, the span is 1"):
        empirical_bernstein(np.array([0.0, 2.0]), 1.0)
    with pytest.raises(ValueError, match="two values"):
        empirical_bernstein(np.array([0.0]), 1.0)
