"""Population stability, residuals of forecasts, and values never seen, on numbers whose drift is known."""

import math

import numpy as np
import pytest

from placewise_training.drift.residuals import shift
from placewise_training.drift.stability import Level, stability, stability_by_blocks, stability_of_counts, unseen

RNG = np.random.default_rng(17)


def test_psi_by_hand() -> None:
    # Halves added: (50.5, 50.5) and (80.5, 20.5) of 101
    p, q = np.array([80.5, 20.5]) / 101, np.array([50.5, 50.5]) / 101
    found = stability_of_counts(np.array([50, 50]), np.array([80, 20]))
    assert found.psi == pytest.approx(float(((p - q) * np.log(p / q)).sum()))
    assert found.noise == pytest.approx(3.8415 * (1 / 100 + 1 / 100), rel=1e-4)
    assert found.level is Level.DRIFTED


def test_equal_columns_are_stable_in_19_of_20_cases() -> None:
    found = [stability(RNG.normal(size=400), RNG.normal(size=300)) for _ in range(400)]
    assert 0.9 < np.mean([one.psi <= one.noise for one in found]) < 0.99


@pytest.mark.parametrize(
    ("moved", "level"), [(0.0, Level.STABLE), (0.4, Level.MODERATE), (1.0, Level.DRIFTED), (-1.0, Level.DRIFTED)]
)
def test_a_column_that_moved(moved: float, level: Level) -> None:
    assert stability(RNG.normal(size=20_000), RNG.normal(moved, 1.0, 20_000)).level is level


def test_few_rows_are_no_drift() -> None:
    few = stability(RNG.normal(size=8), RNG.normal(0.5, 1.0, 6))
    assert few.psi > 0.25
    assert few.level is Level.STABLE


def test_a_flag_that_turns_and_values_that_go_missing() -> None:
    flag = np.repeat([0.0, 1.0], [950, 50])
    assert stability(flag, flag).psi == 0.0
    assert stability(flag, np.repeat([0.0, 1.0], [500, 500])).level is Level.DRIFTED
    assert stability(flag, np.where(np.arange(1000) % 3 == 0, np.nan, flag)).level is Level.DRIFTED
    assert stability(np.zeros(1000), np.full(1000, 0.5)).level is Level.DRIFTED


def test_nothing_to_compare() -> None:
    for reference, recent in ((np.zeros(3), np.empty(0)), (np.empty(0), np.zeros(3))):
        with pytest.raises(ValueError, match="no rows to compare"):
            stability(reference, recent)


def test_values_that_were_never_seen() -> None:
    assert unseen(["bert", "vgg16"], ["bert", "llama", "t5", "llama"]) == {"llama": 2, "t5": 1}
    assert list(unseen([], ["b", "a", "a"])) == ["a", "b"]


def residuals(blocks: int, mean: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Ten a block, alike within it."""
    block = np.repeat(np.arange(blocks), 10)
    return mean + RNG.normal(0.0, 0.2, blocks)[block] + RNG.normal(0.0, 0.1, len(block)), block


def test_forecasts_that_became_worse_are_found() -> None:
    found = shift(*residuals(30, 0.0), *residuals(20, -0.4))
    assert found.is_drifted
    assert abs(found.change + 0.4) < 0.2
    assert found.change == pytest.approx(found.recent_mean - found.reference_mean)
    assert found.recent_spread == pytest.approx(math.hypot(0.2, 0.1), rel=0.35)


def test_the_interval_holds_no_change_in_19_of_20_cases_though_blocks_are_alike_within() -> None:
    found = [shift(*residuals(12, 0.0), *residuals(9, 0.0)).is_drifted for _ in range(400)]
    assert 0.02 < np.mean(found) < 0.09


def test_one_block_has_no_interval() -> None:
    with pytest.raises(ValueError, match="fewer than two blocks"):
        shift(*residuals(5, 0.0), *residuals(1, 0.0))


def walk(blocks: int, moved: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Twenty values a block around the block's own level, and the second half of the blocks is recent."""
    block = np.repeat(np.arange(blocks), 20)
    is_recent = block >= blocks // 2
    return RNG.normal(size=blocks)[block] + RNG.normal(0.0, 0.3, len(block)) + moved * is_recent, block, is_recent


def test_blocks_that_differ_anyway_are_no_drift_as_often_as_the_error_says() -> None:
    walks = [walk(24) for _ in range(80)]
    naive = [stability(values[~recent], values[recent]) for values, _, recent in walks]
    by_blocks = [stability_by_blocks(*one) for one in walks]
    assert np.mean([one.psi > one.noise for one in naive]) > 0.9, "as independent values, nearly all would have drifted"
    assert np.mean([one.psi > one.noise for one in by_blocks]) < 0.12
    assert np.mean([stability_by_blocks(*walk(24, 3.0)).level is Level.DRIFTED for _ in range(20)]) > 0.9


def test_with_few_blocks_values_count_as_independent() -> None:
    values, block, is_recent = walk(4)
    assert stability_by_blocks(values, block, is_recent).noise == stability(values[~is_recent], values[is_recent]).noise
