"""What jobs declare of their length: linear speeds, minutes, and the order that rests on them."""

from dataclasses import replace

import numpy as np
import pytest

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.inputs.cluster import Encoder
from placewise_core.inputs.tables import JOB_COLUMNS, LINEAR_SPEED_COLUMNS
from placewise_core.speed.linear_speed import (
    linear_minutes,
    linear_speed,
    reported_speed,
    shortest_first,
    worker_step_ms,
)
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth


def job(name: str, minutes: float, workers: int = 2) -> Job:
    return Job(
        id=JobId(name),
        model="resnet50",
        groups=(TaskGroup(Role.WORKER, workers, Resources(cpu_cores=2, gpus=1, memory_gib=8)),),
        total_epochs=10.0,
        batch_size=64,
        dataset_size=6400,
        single_gpu_s=60.0 * minutes * workers,
    )


def running(declared: Job, speed: float) -> RunningJob:
    tasks = tuple(Assignment(f"worker-{i}", Role.WORKER, NodeId("server0"), (i,)) for i in range(2))
    return replace(RunningJob(declared, tasks), speed=speed, epochs_done=2.5)


def test_linear_speed_and_minutes_are_those_of_workers_that_never_wait() -> None:
    assert linear_minutes(job("a", 30.0)) == pytest.approx(30.0)
    assert linear_speed(job("a", 30.0), 2) == pytest.approx(10.0 / (30.0 * 60.0))
    assert worker_step_ms(job("a", 30.0), 2) == pytest.approx(30.0 * 60_000 / 1000)


@pytest.mark.parametrize("silent", [{"single_gpu_s": 0.0}, {"total_epochs": 0.0}])
def test_what_is_not_declared_is_zero(silent: dict[str, float]) -> None:
    printed = replace(job("a", 30.0), **silent)  # type: ignore[arg-type]
    assert linear_speed(printed, 2) == 0.0
    assert reported_speed(running(printed, 1.0)) == 0.0


def test_reported_speed_is_relative_and_bounded() -> None:
    linear = linear_speed(job("a", 30.0), 2)
    assert reported_speed(running(job("a", 30.0), 0.6 * linear)) == pytest.approx(0.6)
    assert reported_speed(running(job("a", 30.0), 100 * linear)) == 4.0
    assert reported_speed(running(job("a", 30.0), float("nan"))) == 0.0


def test_shortest_first_weighs_what_is_held() -> None:
    small, large, long = job("small", 12.0, 1), job("large", 10.0, 8), job("long", 90.0, 1)
    ordered = shortest_first([long, large, small], [90.0, 10.0, 12.0])
    assert [each.id for each in ordered] == ["small", "large", "long"]


def test_a_job_of_unknown_length_counts_as_a_middling_one_and_equals_stay() -> None:
    jobs = [job(name, 1.0, 1) for name in "abcd"]
    assert [each.id for each in shortest_first(jobs, [9.0, 0.0, 1.0, 5.0])] == ["c", "b", "d", "a"]
    assert [each.id for each in shortest_first(jobs, [0.0] * 4)] == list("abcd")


def test_the_encoder_writes_what_is_declared_and_reported() -> None:
    sim = Simulation(harmony_cluster(2), [], make_truth("train"), None)
    declared = job("old", 30.0)
    sim.view.add_job(running(declared, 0.5 * linear_speed(declared, 2)))
    seen = Encoder().encode(sim.view, [replace(job("new", 8.0), single_gpu_s=0.0)], 0.0)
    speeds = seen.jobs[:, len(JOB_COLUMNS) :]
    scale = {column.name: column.scale for column in LINEAR_SPEED_COLUMNS}
    names = [column.name for column in LINEAR_SPEED_COLUMNS]
    assert not speeds[0].any()
    left = np.log1p(30.0 * 0.75) * scale["linear_minutes_left"]
    step = np.log1p(worker_step_ms(declared, 2)) * scale["worker_step"]
    expected = {"has_length": 1, "linear_minutes_left": left, "has_step": 1, "worker_step": step}
    expected |= {"has_speed": 1, "speed": 0.5}
    np.testing.assert_allclose(speeds[1], [expected[name] for name in names], rtol=1e-5)
