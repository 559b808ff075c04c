"""Drift in logs of simulated sites: a change in the second half is named, and a site that stays as it is has none."""

from pathlib import Path

import pytest
from tests.unit.drift.sites import found_in, log_of

from placewise_training.drift.compare import summary

SEED = 6


@pytest.mark.slow
def test_another_mix_of_jobs_is_named_by_the_columns_of_the_mix(tmp_path: Path) -> None:
    found = found_in(log_of(tmp_path, SEED, later=lambda job: job.job.groups[0].count == 3))
    assert found.is_drifted
    assert {"workers", "batch"} <= set(found.moved)
    assert ", workers, " in summary(found)
    assert found.models == found.gpu_models == {}


@pytest.mark.slow
def test_one_constant_of_the_truth_is_named_by_the_forecasts(tmp_path: Path) -> None:
    found = found_in(log_of(tmp_path, SEED, slower=0.6))
    assert found.forecasts is not None
    assert found.forecasts.high < -0.2
    assert "forecasts are off by -0." in summary(found)
    assert not {"workers", "batch"} & set(found.moved), "the jobs that come are as before"


@pytest.mark.slow
def test_sites_that_stay_as_they_are_have_no_drift_but_by_chance(tmp_path: Path) -> None:
    """With jobs that count as independent, columns are named on five of these six logs."""
    found = [found_in(log_of(tmp_path / str(seed), seed)) for seed in (10, 13, 14, 16, 18, 21)]
    assert sum(one.is_drifted for one in found) <= 1
    assert not any(one.moved for one in found)
