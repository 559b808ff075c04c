"""The scenarios are fixed beforehand, fill every level of every factor, and have the load that they name."""

from collections import Counter

import pytest

from placewise_training.unseen.scenarios import FIRST_SEED, Scenario, gpu_seconds, scenarios

_ALL = scenarios(512)


def test_the_first_scenario_is_the_same_on_every_machine() -> None:
    first = _ALL[0]
    assert (first.nodes, first.gpus_per_node, first.gpu_model, first.cores_per_gpu) == (8, 8, "V100", 8)
    assert (first.flat_loss, first.pattern, first.seed) == (0.5, "uniform", FIRST_SEED)
    assert first.interconnect_bps == pytest.approx(4.62233e9, rel=1e-5)
    assert scenarios(16) == _ALL[:16]


def test_every_level_of_every_factor_has_sixty_of_four_hundred() -> None:
    for factor in _ALL[0].levels():
        counts = Counter(scenario.levels()[factor] for scenario in _ALL[:400])
        assert min(counts.values()) >= 60, (factor, counts)
        assert len(counts) >= 3


@pytest.mark.parametrize("number", range(8))
def test_the_jobs_offer_the_load_of_the_scenario(number: int) -> None:
    scenario = _ALL[number]
    jobs = scenario.workload(scenario.truth())
    assert len(jobs) == scenario.jobs
    offered = gpu_seconds(jobs) / scenario.gpus / jobs[-1].submit_time_s
    # Bursts move the end of a window; a trace's window is stretched to fit.
    assert offered == pytest.approx(scenario.load, rel=0.01 if scenario.pattern == "philly" else 0.6)
    assert [job.submit_time_s for job in jobs] == sorted(job.submit_time_s for job in jobs)


@pytest.mark.parametrize("number", range(8))
def test_no_job_is_larger_than_its_cluster(number: int) -> None:
    scenario: Scenario = _ALL[number]
    jobs = scenario.workload(scenario.truth())
    assert max(job.job.gpus for job in jobs) <= scenario.gpus
    cores = max(group.demand.cpu_cores for job in jobs for group in job.job.groups)
    assert cores <= scenario.cores_per_gpu
