"""Memory stays flat in the number of finished jobs: workloads are generators, and nothing is kept of what finished."""

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from placewise_core.domain.job import Job, JobId, Resources
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.truths import make_truth


def stream(count: int) -> Iterator[SimJob]:
    groups = gang(1, worker_demand=Resources(cpu_cores=1, gpus=1))
    for i in range(count):
        yield SimJob(Job(JobId(f"j{i}"), model="lstm", groups=groups), 5e4 + i % 7, 10.0 * i, number=i)


@pytest.fixture(autouse=True)
def usual_collections() -> Iterator[None]:
    """A service that was started in this process before collects its garbage later."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def peak_bytes(count: int) -> int:
    simulation = Simulation(uniform_cluster(2, 4), stream(count), make_truth("judge", 0), placement_policy("random"))
    tracemalloc.start()
    try:
        result = simulation.run()
        assert result.metrics.finished == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_eight_times_the_jobs_need_no_more_memory() -> None:
    peak_bytes(200)  # fills the caches of the speed model and of the process
    # One kept job takes over 1 kB: 3500 of them would be seen. Distributions may still open a few bins.
    assert peak_bytes(4000) < peak_bytes(500) + 200_000
