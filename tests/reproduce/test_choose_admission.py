"""The rule that chooses the default admission and that of pipelines, and that the policies it names are there."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.greedy import GreedyAdmission
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.throughput import ThroughputModel
from placewise_service.engine.parts import EngineOptions
from placewise_service.settings import AdmitSettings, PlaceSettings
from placewise_training.reproduce import choose_pipelines
from placewise_training.reproduce.choose import (
    CANDIDATES,
    LENGTHS,
    SEEDS,
    WORKLOADS,
    CaseResult,
    judge,
    keeps_bound,
    run,
)
from placewise_training.reproduce.elastic.trials import JobLog
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.pipelines.choosers import PolicyChooser
from placewise_training.sim.policies import placement_policy


def runs(**jct_s: tuple[float, float]) -> list[CaseResult]:
    """Mean JCT of each policy in two workloads."""
    return [
        CaseResult(workload, "known", policy, 1, values[i], keeps_bound=True)
        for policy, values in jct_s.items()
        for i, workload in enumerate(("w", "x"))
    ]


def test_the_least_geometric_mean_is_chosen() -> None:
    rows, chosen = judge(runs(a=(100.0, 100.0), b=(110.0, 100.0), c=(200.0, 90.0)))
    assert [row.policy for row in rows] == ["a", "b", "c"]
    assert chosen == "a"
    assert rows[0].worst_case == "x, known"
    assert rows[0].worst_ratio == 100.0 / 90.0


def test_nobody_above_the_limit_in_any_workload_is_chosen() -> None:
    rows, chosen = judge(runs(a=(100.0, 100.0), b=(101.0, 60.0), c=(114.0, 65.0)))
    assert (rows[0].policy, chosen) == ("b", "b")
    assert judge(runs(a=(100.0, 100.0), b=(150.0, 60.0)))[1] == ""


def test_nobody_who_broke_the_bound_is_chosen() -> None:
    first, *rest = runs(a=(100.0, 100.0), b=(110.0, 110.0))
    assert judge([replace(first, keeps_bound=False), *rest])[1] == "b"


@pytest.mark.parametrize(("younger_starts_s", "is_kept"), [(150.0, True), (250.0, False)])
def test_a_younger_job_that_starts_past_the_bound_breaks_it(younger_starts_s: float, is_kept: bool) -> None:
    jobs = [SimJob(Job(JobId(name)), 1.0, came_s) for name, came_s in (("a", 0.0), ("b", 50.0))]
    starts_s = {"a": 300.0, "b": younger_starts_s}
    ends_s = {name: start_s + 100.0 for name, start_s in starts_s.items()}
    log = JobLog(starts_s, ends_s, jobs={job.id: job for job in jobs})
    assert keeps_bound(log, bound_s=100.0) is is_kept


def test_the_candidates_are_all_policies_that_reserve_for_the_head() -> None:
    policies = admission_policies(ThroughputModel(bundled("throughput.json")))
    reserving = {name for name, each in policies.items() if isinstance(each, GreedyAdmission) and each.backfills}
    assert set(CANDIDATES) == reserving


def test_the_default_is_what_the_rule_chose_on_every_workload() -> None:
    """docs/admission.json has each run once, and its figures are those of its runs."""
    found = json.loads((Path(__file__).parents[2] / "docs" / "admission.json").read_text("utf-8"))
    made = [CaseResult(**each) for each in found["runs"]]
    cells = [(each.workload, each.lengths, each.policy, each.seed) for each in made]
    assert set(cells) == set(itertools.product(WORKLOADS, LENGTHS, CANDIDATES, SEEDS))
    assert len(cells) == len(set(cells))
    rows, chosen = judge(made)
    means = [row.pop("mean_ratio") for row in found["rows"]]
    assert [row.mean_ratio for row in rows] == pytest.approx(means, rel=1e-12), "processors round log and exp otherwise"
    others = [{name: value for name, value in asdict(row).items() if name != "mean_ratio"} for row in rows]
    assert others == found["rows"]
    assert chosen == found["chosen"] == AdmitSettings().policy == EngineOptions().admit_policy


def test_the_default_of_pipelines_is_what_the_rule_chose_on_every_workload() -> None:
    """docs/pipelines.json has each run once, and its figures are those of its runs."""
    found = json.loads((Path(__file__).parents[2] / "docs" / "pipelines.json").read_text("utf-8"))
    made = [CaseResult(**each) for each in found["runs"]]
    cells = [(each.workload, each.lengths, each.policy, each.seed) for each in made]
    wanted = itertools.product(choose_pipelines.WORKLOADS, LENGTHS, choose_pipelines.CANDIDATES, SEEDS)
    assert sorted(cells) == sorted(wanted)
    rows, chosen = judge(made)
    assert [asdict(row) for row in rows] == found["rows"]
    assert chosen == found["chosen"] == PlaceSettings().pipeline_policy == EngineOptions().pipeline_policy


def test_a_run_keeps_the_bound_and_ends() -> None:
    made = run("qos 5 per hour", "unknown", "fifo", 90_000)
    assert made.jct_s > 0
    assert made.keeps_bound
    assert len(WORKLOADS) == 14


@pytest.mark.parametrize("policy", choose_pipelines.CANDIDATES)
def test_pipelines_end_under_each_candidate_while_nodes_come_and_go(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = replace(choose_pipelines.WORKLOADS["8, 11, 9 nodes"], tasks=40, add_min=0.3, remove_min=0.6)
    monkeypatch.setattr(choose_pipelines, "WORKLOADS", {"few": load})
    assert choose_pipelines.run("few", "sigma 1", policy, 1).jct_s > 0


def test_measured_times_are_wrong_by_a_factor_of_each_kind() -> None:
    chooser = PolicyChooser(placement_policy("ect"))
    exact, wrong, other = (
        choose_pipelines.MeasuredTimes(chooser, sigma, seed).core_s for sigma, seed in ((0.0, 1), (1.0, 1), (1.0, 2))
    )
    factors = {round(wrong[name] / exact[name], 6) for name in exact}
    assert len(factors) == len(exact)
    assert wrong != other
