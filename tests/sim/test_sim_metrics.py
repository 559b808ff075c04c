"""Every metric on runs small enough to work out by hand: unit speed, two nodes of 16 cores, 128 GiB and two GPUs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from placewise_core.domain.job import Job, JobId, Resources
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.faults import Fault, FaultKind
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.metrics import Metrics
from placewise_training.sim.hardware import NodeSpec, uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part, Spot
from placewise_training.sim.thermal import ThermalSpec


class UnitSpeed:
    """One sample per second, beside any other job."""

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        parts = tuple(Part(s.node, s.workers, s.servers, "V100", s.gpu_indices) for s in spots)
        return Footprint(job, parts, samples_per_step=1.0, alone_step_s=1.0)

    def rate(self, footprint: Footprint, nodes: Mapping[str, NodeLoad], jobs: Mapping[str, Footprint]) -> float:
        return 1.0

    def alone_rate(self, job: SimJob, gpu_model: str, gpus_per_node: int) -> float:
        return 1.0


def job(number: int, seconds: float, queue: str = "", submit_s: float = 0.0, deadline_s: float = math.inf) -> SimJob:
    """One worker on one GPU, with a quarter of a node's cores and memory."""
    demand = Resources(cpu_cores=4, gpus=1, memory_gib=32)
    made = Job(JobId(f"j{number}"), groups=gang(1, worker_demand=demand), queue=queue, submit_time_s=submit_s)
    return SimJob(made, seconds, submit_s, number=number, deadline_s=deadline_s)


def run(
    jobs: Sequence[SimJob], nodes: Sequence[NodeSpec] = (), policy: str = "consolidate", **options: object
) -> Metrics:
    cluster = list(nodes) or uniform_cluster(2, 2, cpu_cores=16.0, memory_gib=128.0)
    chosen = SimOptions(discipline=Discipline(), **options)  # type: ignore[arg-type]
    return Simulation(cluster, jobs, UnitSpeed(), placement_policy(policy), options=chosen).run().metrics


def test_shares_of_the_cluster_are_means_over_time() -> None:
    """One job holds one of four GPUs and 4 of 32 cores; its node's load is the mean of ¼, ¼, ½ and 0 (LDWP (7))."""
    metrics = run([job(0, 100.0)])
    assert metrics.gpu_util == pytest.approx(1 / 4)
    assert metrics.cpu_util == pytest.approx(1 / 8)
    assert metrics.load_balance == pytest.approx(1 - 0.25 / 2)  # loads ¼ and 0: standard deviation ⅛ (10)
    assert metrics.fragmentation == pytest.approx(1 / 3)  # of three free GPUs one is beside the job
    assert (metrics.makespan_s, metrics.throughput_per_s) == (100.0, 0.01)


def test_a_full_node_beside_an_empty_one_is_unbalanced_and_not_fragmented() -> None:
    packed = run([job(0, 100.0), job(1, 100.0)])
    assert packed.load_balance == pytest.approx(1 - 0.5 / 2)
    assert packed.fragmentation == 0.0
    spread = run([job(0, 100.0), job(1, 100.0)], policy="load-balance")
    assert spread.load_balance == pytest.approx(1.0)
    assert spread.fragmentation == pytest.approx(1.0)


def test_waiting_counts_for_jct_slowdown_deadlines_and_fairness_between_queues() -> None:
    """One GPU: the second job waits for the first. Slowdowns 1 and 2: Jain's index of 1 and ½ is 0.9."""
    jobs = [job(0, 100.0, "a", deadline_s=100.0), job(1, 100.0, "b", deadline_s=150.0)]
    metrics = run(jobs, uniform_cluster(1, 1, cpu_cores=16.0))
    assert (metrics.avg_jct_s, metrics.avg_turnaround_s, metrics.avg_queueing_s) == (150.0, 150.0, 50.0)
    assert metrics.avg_slowdown == pytest.approx(1.5)
    assert metrics.qos_rate == 0.5
    assert metrics.fairness == pytest.approx(1.5**2 / (2 * 1.25))
    assert (metrics.p50, metrics.p99) == (pytest.approx(100.0, rel=0.003), pytest.approx(200.0, rel=0.003))
    assert metrics.gpu_util == pytest.approx(1.0)


def test_shortest_remaining_first_lets_the_short_one_pass() -> None:
    long, short = job(0, 100.0), job(1, 10.0)
    long.ideal_s, short.ideal_s = 100.0, 10.0
    one_gpu = uniform_cluster(1, 1, cpu_cores=16.0)
    blocker = job(2, 5.0)
    jobs = [replace(blocker, number=0), replace(long, number=1), replace(short, number=2)]
    truth, policy = UnitSpeed(), placement_policy("consolidate")
    found = {}
    declared = [replace(j, job=replace(j.job, single_gpu_s=j.samples)) for j in jobs]
    for order in ("fifo", "srtf", "declared"):
        options = SimOptions(discipline=Discipline(order=order))  # type: ignore[arg-type]
        found[order] = Simulation(one_gpu, declared, truth, policy, options=options).run().metrics.avg_jct_s
    assert found == {"fifo": (5 + 105 + 115) / 3, "srtf": (5 + 15 + 115) / 3, "declared": (5 + 15 + 115) / 3}


def test_the_peak_is_where_the_load_ends_though_nobody_looks_then() -> None:
    """Both GPUs busy for one time constant: 1 − 1/e of the way from idle to busy. Reports come every 1 000 s."""
    spec = ThermalSpec()
    nodes = uniform_cluster(1, 2, cpu_cores=16.0)
    metrics = run([job(0, spec.time_constant_s), job(1, spec.time_constant_s)], nodes, telemetry_every_s=1000.0)
    idle, busy = (spec.steady_celsius(watts) for watts in (spec.idle_w, spec.busy_w))
    assert metrics.peak_celsius == pytest.approx(idle + (busy - idle) * (1 - math.exp(-1)))


def test_work_lost_with_a_node_is_done_again_and_nothing_else_is() -> None:
    """The node fails at 60 of 100 s: from the beginning the job ends at 160, from its checkpoint at 100."""
    for keeps_progress, ends_s in ((False, 160.0), (True, 100.0)):
        fault = Fault(60.0, FaultKind.DOWN, "node0000", keeps_progress=keeps_progress)
        metrics = run([job(0, 100.0)], faults=[fault])
        assert (metrics.restarts, metrics.avg_jct_s) == (1, pytest.approx(ends_s))
