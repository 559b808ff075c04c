"""Logs of the simulator, and their decisions made again."""

import json
from pathlib import Path

import numpy as np
import pytest

from placewise_training.evaluate.checks import coverage, simulated
from placewise_training.evaluate.checks.simulated import (
    CANDIDATE,
    OWN,
    Site,
    branched,
    played,
    reward_of,
    simulated_log,
)
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.policies import placement_policy, shipped
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SITE = Site(jobs=40)
SEED = 10_000


def run(nodes: str, start_s: float, rate: float, end_s: float = float("inf")) -> simulated._JobProgress:
    return simulated._JobProgress(frozenset(nodes), [(start_s, 0.0, 0.0), (start_s, 0.0, rate)], end_s)


def test_the_reward_is_the_progress_of_the_job_and_of_the_fixed_neighbourhood_by_hand() -> None:
    runs = {
        "before": run("b", 0.0, 0.002),
        "elsewhere": run("c", 0.0, 0.5),
        "other choice": run("d", 0.0, 0.001),
        "gone": run("a", 0.0, 0.01, end_s=100.0),
        "job": run("ab", 100.0, 0.001),
        "after": run("a", 150.0, 0.004),
    }
    # 100 s from 100 s on: 0.1 of its own, 0.2 and 0.1 of the two that ran where it could have gone.
    assert reward_of("job", runs, set("abd"), 100.0) == pytest.approx(0.1 + 0.2 + 0.1)
    runs["job"].end_s = 140.0  # it is done then
    assert reward_of("job", runs, set("abd"), 100.0) == pytest.approx(1.0 + 0.2 + 0.1)


def test_a_policy_that_spreads_gangs_and_slows_them_earns_no_more() -> None:
    """load-balance meets more neighbours than consolidate, and its jobs take longer. With the neighbours that each
    placement meets in the sum, it earned 0.63 more here."""
    own, candidate = (_mean_jct_s(policy) for policy in (SITE.own, SITE.candidate))
    assert candidate > 1.05 * own
    rewards = []
    for seed in (SEED, SEED + 1):
        _, names = simulated_log(SITE, seed)
        drawn = np.random.default_rng(seed).choice(names, 12, replace=False)
        rewards += [branched(SITE, seed, name) for name in drawn]
    gains = np.array([one[CANDIDATE] - one[OWN] for one in rewards])
    assert gains.mean() < 0.1


def _mean_jct_s(policy: str) -> float:
    truth = make_truth(SITE.truth, SEED)
    jobs = HarmonyWorkload(jobs=SITE.jobs).generate(truth, SEED)
    ran = Simulation(harmony_cluster(SITE.nodes), jobs, truth, placement_policy(policy, shipped()), seed=SEED)
    return ran.run().metrics.avg_jct_s


def test_a_run_remembers_each_change_of_its_speed() -> None:
    changed = simulated._JobProgress(frozenset("a"), [(0.0, 0.0, 0.0), (0.0, 0.0, 0.01), (10.0, 0.1, 0.02)], end_s=55.0)
    assert [changed.done_at(t) for t in (0.0, 5.0, 10.0, 20.0, 60.0)] == pytest.approx([0.0, 0.05, 0.1, 0.3, 1.0])


def test_a_decision_made_again_as_logged_earns_the_reward_of_the_log() -> None:
    policy, _ = played(SITE, SEED)
    log, names = simulated_log(SITE, SEED)
    changed = 0
    for row in range(0, len(names), 4):
        asked = policy.asked[names[row]]
        rewards = branched(SITE, SEED, names[row])
        assert rewards[asked.turn] == pytest.approx(log.reward[row], rel=1e-9)
        assert (rewards[OWN] == pytest.approx(rewards[CANDIDATE])) or not asked.is_same
        changed += rewards[OWN] != pytest.approx(rewards[CANDIDATE])
    assert changed > 3


def test_all_other_draws_stay_as_they_were() -> None:
    as_logged, _ = played(SITE, SEED)
    name = next(name for name, asked in as_logged.asked.items() if asked.turn == OWN and not asked.is_same)
    again, _ = played(SITE, SEED, {name: CANDIDATE})
    assert again.asked[name].turn == CANDIDATE
    assert {k: one.turn for k, one in again.asked.items() if k != name} == {
        k: one.turn for k, one in as_logged.asked.items() if k != name
    }


def test_a_log_has_the_probabilities_of_its_mixture() -> None:
    log, names = simulated_log(Site(jobs=120, rate=0.25), SEED)
    differs = log.differing
    assert set(log.propensity[~differs]) == {1.0}
    assert set(log.propensity[differs]) == {0.25, 0.75}
    assert np.mean(log.candidate[differs]) == pytest.approx(0.25, abs=0.15)
    assert log.weights.mean() == pytest.approx(1.0, abs=0.4)
    assert (log.reward >= 0.0).all()
    assert len(names) == len(log.reward) < 120


def test_the_command_states_the_error_of_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "origin", lambda: {"commit": "1a2b3c"})
    monkeypatch.setattr(coverage, "Site", lambda: Site(jobs=30))
    out = tmp_path / "simulated.json"
    coverage.main(["--simulated", "--logs", "2", "--first-seed", str(SEED), "--out", str(out)])
    report = json.loads(out.read_text("utf-8"))
    assert report["truth"]["decisions"] == 2 * coverage.BRANCHED
    assert report["truth"]["gain_error"] > 0
    assert (report["least"], report["settings"][0]["refused"]) == (0.9, 2)
    assert {row["estimator"] for row in report["settings"][0]["rows"]} >= {"ips", "snips", "doubly_robust"}
