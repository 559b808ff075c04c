"""Queueing theory against the simulator: it reproduces every closed form."""

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from placewise_core.domain.job import CoRun, GpuSharing, Job, JobId, Resources
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.co_runs import KnownCoRuns, rows_of
from placewise_core.speed.completed_interference import CompletedInterference
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import make_node
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot

EXCLUSIVE = GpuSharing()


class UnitSpeed:
    """One sample per second; `is_shared` divides that by the number of jobs on the node."""

    def __init__(self, is_shared: bool = False) -> None:
        self.is_shared = is_shared

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        parts = tuple(Part(s.node, s.workers, s.servers, "V100", s.gpu_indices) for s in spots)
        return Footprint(job, parts, samples_per_step=1.0, alone_step_s=1.0)

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        return 1.0 / len(nodes[footprint.parts[0].node].parts) if self.is_shared else 1.0

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        return 1.0


def single_gpu_jobs(count: int, rate: float, mean_s: float, seed: int, sharing: GpuSharing = EXCLUSIVE) -> list[SimJob]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1.0 / rate, count))
    works = rng.exponential(mean_s, count)
    groups = gang(1, worker_demand=Resources(cpu_cores=0, gpus=1))
    return [
        SimJob(Job(JobId(f"j{i}"), groups=groups, gpu_sharing=sharing), float(w), float(t), number=i)
        for i, (t, w) in enumerate(zip(times, works, strict=True))
    ]


def erlang_c_wait_s(servers: int, arrival_rate: float, mean_s: float) -> float:
    offered = arrival_rate * mean_s
    blocked = offered**servers / math.factorial(servers) / (1 - offered / servers)
    idle = sum(offered**k / math.factorial(k) for k in range(servers))
    return blocked / (idle + blocked) * mean_s / (servers - offered)


def fifo_waits_s(jobs: list[SimJob], servers: int) -> list[float]:
    """Kiefer and Wolfowitz' recursion: each job takes the server that is free first."""
    free = [0.0] * servers
    waits = []
    for job in jobs:
        start = max(job.submit_time_s, heapq.heappop(free))
        waits.append(start - job.submit_time_s)
        heapq.heappush(free, start + job.samples)
    return waits


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.7), (8, 0.8)])
def test_mm_c_waiting_time(servers: int, load: float) -> None:
    mean_s = 10.0
    rate = load * servers / mean_s
    waits = []
    for seed in range(4):
        nodes = [make_node("n0", cpu_cores=1, gpus=servers, memory_gib=1, network_gbps=1)]
        jobs = single_gpu_jobs(10_000, rate, mean_s, seed)
        options = SimOptions(discipline=Discipline(order="fifo"))
        metrics = Simulation(nodes, jobs, UnitSpeed(), LoadBalance(), options=options).run().metrics
        assert metrics.avg_queueing_s == pytest.approx(float(np.mean(fifo_waits_s(jobs, servers))), rel=1e-9)
        waits.append(metrics.avg_queueing_s)
    # Waits of successive jobs are correlated: over 40 000 of them their mean is off by some 6 % at load 0.8.
    assert np.mean(waits) == pytest.approx(erlang_c_wait_s(servers, rate, mean_s), rel=0.15)


@pytest.mark.slow
def test_processor_sharing_sojourn_time() -> None:
    """M/M/1-PS: E[T] = E[S] / (1 − ρ)."""
    mean_s, load = 10.0, 0.6
    node = make_node("n0", cpu_cores=1, gpus=1, memory_gib=1, network_gbps=1, max_jobs_per_gpu=10_000)
    sharing = GpuSharing(allowed=True, max_slowdown=1e9)
    means = []
    for seed in range(4):
        jobs = single_gpu_jobs(10_000, load / mean_s, mean_s, seed, sharing)
        result = Simulation([node], jobs, UnitSpeed(is_shared=True), LoadBalance()).run()
        assert result.metrics.avg_queueing_s == 0
        means.append(result.metrics.avg_jct_s)
    assert np.mean(means) == pytest.approx(mean_s / (1 - load), rel=0.07)


def test_utilisation_is_the_offered_load() -> None:
    mean_s, servers, load = 10.0, 4, 0.5
    nodes = [make_node("n0", cpu_cores=1, gpus=servers, memory_gib=1, network_gbps=1)]
    jobs = single_gpu_jobs(20_000, load * servers / mean_s, mean_s, 7)
    metrics = Simulation(nodes, jobs, UnitSpeed(), LoadBalance()).run().metrics
    busy_s = sum(job.samples for job in jobs)
    assert metrics.gpu_util == pytest.approx(busy_s / (servers * metrics.makespan_s), rel=1e-9)
    assert metrics.gpu_util == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize(("co_runs", "ends_s"), [((), 10.0), ((CoRun("ours", 0.8, 0.8),), 16.0)])
def test_what_a_site_has_measured_is_believed_in_the_simulator_too(co_runs: tuple[CoRun, ...], ends_s: float) -> None:
    """Two jobs of 10 that come 4 s apart share the GPU only where their model is known to tolerate it."""
    node = make_node("n0", cpu_cores=1, gpus=1, memory_gib=1, network_gbps=1, max_jobs_per_gpu=2)
    groups = gang(1, worker_demand=Resources(gpus=1))
    tolerant = GpuSharing(allowed=True, max_slowdown=1.5)
    jobs = [
        SimJob(Job(JobId(f"j{i}"), model="ours", groups=groups, gpu_sharing=tolerant), 10.0, 4.0 * i, number=i)
        for i in range(2)
    ]
    known = KnownCoRuns(rows_of([("ours", co_runs)]))
    belief = CompletedInterference(packaged_tables().interference, known, None)
    ends: dict[str, float] = {}

    def note(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "finish":
            ends[job.id] = now_s

    options = SimOptions(observers=(note,), belief=belief)
    Simulation([node], jobs, UnitSpeed(is_shared=True), LoadBalance(), options=options).run()
    assert ends["j0"] == pytest.approx(ends_s)


def test_speed_changes_settle_exactly() -> None:
    """Two jobs of 10 on one shared GPU, the second 4 s later: 4 alone, 12 shared (6 each), 4 alone: ends 16 and 20."""
    node = make_node("n0", cpu_cores=1, gpus=1, memory_gib=1, network_gbps=1, max_jobs_per_gpu=2)
    groups = gang(1, worker_demand=Resources(gpus=1))
    sharing = GpuSharing(allowed=True, max_slowdown=4)
    jobs = [SimJob(Job(JobId(f"j{i}"), groups=groups, gpu_sharing=sharing), 10.0, 4.0 * i, number=i) for i in range(2)]
    ends: dict[str, float] = {}

    def note(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "finish":
            ends[job.id] = now_s

    options = SimOptions(observers=(note,))
    Simulation([node], jobs, UnitSpeed(is_shared=True), LoadBalance(), options=options).run()
    assert ends == {"j0": pytest.approx(16.0, abs=1e-12), "j1": pytest.approx(20.0, abs=1e-12)}
