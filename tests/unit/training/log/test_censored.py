"""A log that is cut in the middle: unfinished jobs count, and a policy that makes jobs longer looks no better."""

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.logs.simulated_log import is_explorers, simulated_log

from placewise_core.domain.realised import Run
from placewise_log.store import LogStore
from placewise_training.log.durations import Durations, by_policy, restricted_mean_s
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.places import Places
from placewise_training.log.speeds import Speed, speed_of
from placewise_training.reward.from_log import RewardRows
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.speed.base import Footprint, NodeLoad
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload, Lengths

OWN, EXPLORER = "consolidate", "load-balance"
SEED, LONGER = 1, 1.6
CUT_S, WITHIN_S = 8000.0, 6500.0


def logged(*points: tuple[float, float], end: str = "", known_s: float = 1000.0) -> Logged:
    end_s = known_s if end else math.inf
    return Logged("d", Run("j", frozenset("a"), 0.0, end_s, 10.0, points), end, known_s)


@pytest.mark.parametrize(
    ("run", "change_s", "wanted"),
    [
        (logged((0.0, 0.0), (1000.0, 10.0), end="FINISHED"), math.inf, Speed(0.01, False, 0.0, 1000.0)),
        (logged((0.0, 0.0), (500.0, 5.0)), math.inf, Speed(0.01, False, 0.0, 500.0)),
        (logged((0.0, 0.0), (100.0, 2.0), (500.0, 5.0)), 100.0, Speed(0.02, False, 0.0, 100.0)),
        (logged((0.0, 0.0), (100.0, 2.0), (500.0, 5.0)), 1.0, Speed(0.02, False, 0.0, 30.0)),
        (logged((0.0, 0.0)), math.inf, Speed(0.01, True, 0.0, 1000.0)),  # nobody reported: it is no faster than this
        (logged((0.0, 0.0), (1000.0, 0.0), end="FAILED"), math.inf, Speed(0.01, True, 0.0, 1000.0)),
        (logged((0.0, 0.0), known_s=10.0), math.inf, None),
        (logged((0.0, 0.0), (5.0, 1.0), known_s=10.0), math.inf, None),
    ],
    ids=["ended", "runs", "neighbours change", "at once", "unheard of", "failed", "just begun", "too short"],
)
def test_the_speed_of_a_run_by_hand(run: Logged, change_s: float, wanted: Speed | None) -> None:
    assert speed_of(run, 0.0, change_s) == (pytest.approx(wanted) if wanted else None)


def test_the_restricted_mean_by_hand() -> None:
    """Of five jobs two are cut off. S falls to 4/5 at 1, to 4/5 · 2/3 at 3, to 0 at 5."""
    seconds, censored = [1.0, 2.0, 3.0, 4.0, 5.0], [False, True, False, True, False]
    found = restricted_mean_s(seconds, censored, within_s=6.0)
    assert found == pytest.approx(1.0 + 2.0 * 4 / 5 + 2.0 * 4 / 5 * 2 / 3)
    assert restricted_mean_s(seconds, censored, within_s=2.0) == pytest.approx(1.0 + 4 / 5)
    with pytest.raises(ValueError, match="no jobs"):
        restricted_mean_s([], [], 1.0)


def test_the_restricted_mean_of_lives_that_are_cut_at_random_is_that_of_whole_lives() -> None:
    rng = np.random.default_rng(1)
    lives, cuts = rng.exponential(100.0, 40_000), rng.uniform(0.0, 300.0, 40_000)
    found = restricted_mean_s(np.minimum(lives, cuts), lives > cuts, 250.0)
    assert found == pytest.approx(np.minimum(lives, 250.0).mean(), rel=0.02)


class Slowed(ComposedSpeed):
    """The jobs of the explorer take longer, wherever they are."""

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        is_explored = is_explorers(SEED, footprint.job.id)
        return super().rate(footprint, nodes, jobs) / (LONGER if is_explored else 1.0)


async def played(folder: Path, cut_s: float, *, has_progress: bool) -> LogStore:
    known = make_truth("site", SEED)
    truth = Slowed(known.catalogue, known.sharing, overlap=known.overlap, seed=SEED, contended=False, noisy=False)
    workload = HarmonyWorkload(
        jobs=160, pattern="uniform", per_interval=12.0, most_tasks=1, lengths=Lengths(median_s=4000.0, sigma=0.3)
    )
    jobs = workload.generate(truth, SEED)
    await simulated_log(
        folder, harmony_cluster(50), jobs, truth, policies=(OWN, EXPLORER), seed=SEED, cut_s=cut_s,
        has_progress=has_progress,
    )  # fmt: skip
    return LogStore(folder)


@pytest.mark.parametrize("has_progress", [True, False])
async def test_a_policy_that_makes_jobs_longer_looks_no_better_on_a_log_cut_in_the_middle(
    tmp_path: Path, has_progress: bool
) -> None:
    """The means of the jobs that ended would hide most of it."""
    store = await played(tmp_path / "cut", CUT_S, has_progress=has_progress)
    with LogIndex(store, "reward_20min") as index:
        durations, rows = Durations(store, index), RewardRows(store, index)
        found, speeds, rewards = list(durations), defaultdict(list), defaultdict(list)
        for row in rows:
            speeds[row.policy].append((float(row.sample.speed[row.sample.job == 0][0]), row.sample.is_bound))
        for placed in Places(store, index):
            if placed.outcome.reward is not None:
                draw = placed.record.draw_of(placed.job.id)
                rewards[bool(draw is not None and draw.explorer)].append(placed.outcome.reward)
    assert rows.counts["unfinished"] > 20
    assert rows.counts["placed"] == sum(map(len, speeds.values())) + rows.counts["nothing known of its speed"]
    is_censored = [row.is_censored for row in found]
    assert sum(is_censored) + durations.counts["just begun"] == rows.counts["unfinished"]
    ended = defaultdict(list)
    for row in found:
        if not row.is_censored:
            ended[row.policy].append(row.run_s)
    naive = np.mean(ended[EXPLORER]) / np.mean(ended[OWN])
    whole = await played(tmp_path / "whole", math.inf, has_progress=has_progress)
    with LogIndex(whole) as index:
        true = by_policy(Durations(whole, index), WITHIN_S)
    within = by_policy(found, WITHIN_S)
    assert naive < 0.85 * LONGER
    assert within[EXPLORER] / within[OWN] == pytest.approx(true[EXPLORER] / true[OWN], rel=0.08)
    mean = {policy: np.mean([speed for speed, _ in each]) for policy, each in speeds.items()}
    assert mean[OWN] / mean[EXPLORER] == pytest.approx(LONGER, rel=0.1 if has_progress else 0.3)
    assert any(is_bound for each in speeds.values() for _, is_bound in each) != has_progress
    if has_progress:
        assert np.mean(rewards[True]) < np.mean(rewards[False])
