"""The direct method's own forecast."""

from dataclasses import replace

import numpy as np
import pytest

from placewise_training.evaluate.checks.synthetic import WEIGHTS, synthetic_log
from placewise_training.evaluate.regression import cross_fitted, folds_of
from placewise_training.log.choosing.ridge import Ridge


def test_ridge_finds_a_line_and_ignores_a_column_that_never_changes() -> None:
    rng = np.random.default_rng(0)
    features = np.hstack([rng.normal(5.0, 3.0, (500, 2)), np.full((500, 1), 7.0)])
    target = 2.0 + 0.5 * features[:, 0] - 3.0 * features[:, 1]
    found = Ridge.fitted(features, target + rng.normal(0.0, 0.01, 500))
    assert found.predicted(features) == pytest.approx(target, abs=0.02)
    moved = features + np.array([0.0, 0.0, 100.0])
    assert found.predicted(moved) == pytest.approx(found.predicted(features))


def test_ridge_shrinks_where_there_is_only_noise() -> None:
    rng = np.random.default_rng(1)
    found = Ridge.fitted(rng.normal(size=(60, 30)), rng.normal(size=60))
    assert abs(found.slope).max() < 0.1


def test_folds_are_runs_of_whole_blocks() -> None:
    block = np.array([3, 3, 4, 7, 7, 9, 10, 11, 12, 13])
    fold = folds_of(block, 4)
    assert fold.tolist() == sorted(fold.tolist())
    assert len(set(fold.tolist())) == 4
    assert all(len(set(fold[block == one])) == 1 for one in set(block.tolist()))
    assert folds_of(np.array([1, 1, 2])).tolist() == [0, 0, 1]


def test_a_forecast_never_saw_its_own_fold() -> None:
    log = synthetic_log(WEIGHTS["light"], 100, 1)
    fold = folds_of(log.block)
    other = replace(log, reward=np.where(fold == 2, log.reward + 100.0, log.reward))
    before, after = cross_fitted(log), cross_fitted(other)
    mine = fold == 2
    assert (before.logged[mine] == after.logged[mine]).all()
    assert (abs(before.logged[~mine] - after.logged[~mine]) > 1.0).all()
    theirs = mine[log.options.decision]
    assert (before.options[theirs] == after.options[theirs]).all()
    assert (before.options[~theirs] != after.options[~theirs]).all()


def test_one_block_leaves_nothing_to_fit_on() -> None:
    log = synthetic_log(WEIGHTS["light"], 100, 1)
    with pytest.raises(ValueError, match="one block of time"):
        cross_fitted(replace(log, block=np.zeros_like(log.block)))
