"""Lengths learned in a run: those who declare none are ordered by them, and without the option nothing changes."""

from dataclasses import replace

import pytest

from placewise_core.domain.job import Job, JobId, Resources
from placewise_training.reproduce.harmony.runs import misdeclared
from placewise_training.reproduce.learned.lengths import errors, jct_s
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, SimResult, Simulation
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import sized


def short_and_long_jobs() -> list[SimJob]:
    """Two users on a busy GPU, a job of each every ten minutes: those of ann take two minutes, those of bob an hour."""
    truth = make_truth("judge", 1)
    jobs = []
    for number in range(40):
        user, seconds = ("ann", 120.0) if number % 2 else ("bob", 3600.0)
        groups = gang(1, worker_demand=Resources(cpu_cores=1.0, gpus=1.0, memory_gib=1.0))
        job = Job(JobId(f"j{number}"), "resnet50", groups=groups, user=user, submit_time_s=300.0 * number)
        jobs.append(sized(job, seconds, truth, "P100", 1, number))
    return misdeclared(jobs, None, 1)


def ran(jobs: list[SimJob], *, is_learning: bool) -> SimResult:
    options = SimOptions(discipline=Discipline(), learns_durations=is_learning)
    simulation = Simulation(
        uniform_cluster(1, 1, "P100"),
        jobs,
        make_truth("judge", 1),
        placement_policy("consolidate"),
        admission=admission_policy("qos"),
        options=options,
        seed=1,
    )
    return simulation.run()


def test_jobs_of_users_whose_jobs_are_short_go_first_once_some_have_ended() -> None:
    off, on = (ran(short_and_long_jobs(), is_learning=how) for how in (False, True))
    assert off.metrics.unfinished == on.metrics.unfinished == 0
    assert on.event_hash != off.event_hash
    assert on.event_hash == ran(short_and_long_jobs(), is_learning=True).event_hash


def test_a_workload_that_tells_its_lengths_runs_as_without_learning() -> None:
    reported = [replace(job, job=replace(job.job, single_gpu_s=600.0)) for job in short_and_long_jobs()]
    assert ran(reported, is_learning=True).event_hash == ran(reported, is_learning=False).event_hash


@pytest.mark.slow
def test_the_figures_of_the_document_can_be_made() -> None:
    rows = errors("ms_itp")
    assert [row["reports"] for row in rows] == [3, 30, 100]
    assert rows[-1]["learned"] < rows[-1]["shipped"]  # type: ignore[operator]
    assert jct_s("harmony, lengths by user", "fifo", "on", 91_000) > 0
