"""Parts of `placewise demo learn`: bad bundles are bad, fresh windows are fresh, arms are compared by their means."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.evaluate.exported import explored, write

from placewise_core.domain.traces import read_trace
from placewise_core.inputs.reward import PART_FEATURES
from placewise_models.bundle import load
from placewise_models.folder import shipped_bundle
from placewise_models.reward import REWARD_MODEL
from placewise_models.session import open_session
from placewise_training.demo.arms import adjusted_gain, gain_of_arms
from placewise_training.demo.plot import draw
from placewise_training.demo.sabotage import flipped, shuffled
from placewise_training.demo.site import Site
from placewise_training.log.placed import REWARD
from placewise_training.sim.speed.profiles import SITE_MEMBERS


def speeds(bundle: Path) -> list[float]:
    """Of 200 drawn placements."""
    drawn = np.random.default_rng(0).random((200, 1, PART_FEATURES)).astype(np.float32)
    zeros = np.zeros((200, 1), dtype=np.int64)
    session = open_session((bundle / REWARD_MODEL).read_bytes(), REWARD_MODEL)
    found: list[float] = session.run(["speed"], {"tokens": drawn, "job": zeros, "node": zeros})[0].ravel().tolist()
    return found


def test_sabotaged_bundles_load_and_judge_otherwise(tmp_path: Path) -> None:
    own = speeds(shipped_bundle())
    upside_down = flipped(shipped_bundle(), tmp_path / "flipped")
    mixed = shuffled(shipped_bundle(), tmp_path / "shuffled")
    assert np.corrcoef(np.argsort(np.argsort(own)), np.argsort(np.argsort(speeds(upside_down))))[0, 1] < -0.99
    assert np.abs(np.log(np.array(speeds(mixed)) / own)).mean() > 0.05
    for folder in (upside_down, mixed):
        bundle = load(folder)
        assert bundle.name == folder.name
        assert bundle.digest != load(shipped_bundle()).digest


def test_windows_of_a_site_have_its_machines_and_jobs_of_their_own(tmp_path: Path) -> None:
    site = Site(3, tmp_path)
    windows = [site.window(number, 30) for number in (0, 1)]
    assert [window.seed % SITE_MEMBERS for window in windows] == [3, 3]
    jobs = [read_trace(window.trace, default_queue="default") for window in windows]
    assert len(jobs[0]) == 30
    assert {job.submit_s for job in jobs[0]}.isdisjoint({job.submit_s for job in jobs[1]})
    assert site.window(0, 30) == windows[0]


def test_the_oracle_plays_a_window_to_its_end(tmp_path: Path) -> None:
    assert 60.0 < Site(3, tmp_path).window(0, 12).oracle_jct_s() < 10_000.0


def test_arms_are_compared_at_equal_lengths_of_their_jobs() -> None:
    """Without the adjustment chance would hide a gain of 0.05."""
    rng = np.random.default_rng(3)
    before = rng.normal(size=(400, 2))
    is_ours = rng.random(400) < 0.5
    reward = 2.0 + before @ [0.7, -0.4] + 0.05 * is_ours + 0.02 * rng.normal(size=400)
    gain, error = adjusted_gain(reward, before, is_ours)
    assert gain == pytest.approx(0.05, abs=3.0 * error)
    assert error == pytest.approx(0.02 * 2.0 / math.sqrt(400), rel=0.1)


def test_without_a_job_on_either_side_there_is_no_gain() -> None:
    assert all(math.isnan(each) for each in adjusted_gain(np.ones(3), np.ones((3, 1)), np.zeros(3, dtype=np.bool_)))


def test_only_jobs_with_a_reward_and_an_arm_count(tmp_path: Path) -> None:
    decisions, outcomes = explored(40, gain=0.3)
    outcomes[3][REWARD] = None
    write(tmp_path, decisions, outcomes)
    (path,) = tmp_path.glob("joined/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    rewards = table.column(REWARD).to_pylist()
    arms = ["canary" if i % 3 else "incumbent" for i in range(39)] + [None]
    pq.write_table(table.append_column("arm", pa.array(arms, pa.string())), path)
    gain, _ = gain_of_arms(tmp_path, "arm", "canary")
    mine = [r for r, arm in zip(rewards, arms, strict=True) if r is not None and arm == "canary"]
    theirs = [r for r, arm in zip(rewards, arms, strict=True) if r is not None and arm == "incumbent"]
    assert gain == pytest.approx(np.mean(mine) - np.mean(theirs))


def test_the_plot_has_each_act_that_came_to_its_end(tmp_path: Path) -> None:
    jct_s = {"search": [100.0, 120.0], "consolidate": [90.0, 130.0], "oracle": [80.0, 100.0]}
    steps = [
        {"name": "fresh jobs before", "numbers": {"jct_s": jct_s}},
        {"name": "fresh jobs after", "numbers": {"jct_s": {"search": [95.0, 110.0]}}},
        {"name": "change of mean JCT", "verdict": "refused", "numbers": {}},
        {"name": "estimate and what happened", "numbers": {"realised": 0.1, "realised_interval": (0.0, 0.2)}},
    ]
    draw([{"act": "claim", **step} for step in steps] + [{"act": "negatives", "name": "x"}], tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
