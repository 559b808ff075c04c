"""`heat-island-paper`: the method as printed, and from the paper's inputs alone."""

from dataclasses import fields, replace

import pytest
from tests.fakes.proteus_queue import bundled, cluster_of

from placewise_core.domain.cluster import Assignment, Gpu, Hardware, Node, NodeTelemetry, RunningJob
from placewise_core.domain.decision import Outcome, PartitionPlan
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policies
from placewise_core.view.view import ClusterView

CAPABILITY = bundled("capability.json")
POLICIES = partition_policies(CAPABILITY)
NOW_S = 1000.0
# What (5) and (6) read of a node: five sizes, and how busy each is. observe_time_s says whether the report counts.
READ = {"cpu_util", "memory_util", "cache_util", "gpu_util", "gpu_memory_util", "observe_time_s"}


def node(name: str, cpu_ghz: float = 3.0, gpus: int = 1, **telemetry: float) -> Node:
    return Node(
        NodeId(name),
        Resources(cpu_cores=16, gpus=gpus, memory_gib=64),
        tuple(Gpu(g, "V100", 16) for g in range(gpus)),
        hardware=Hardware(cpu_ghz, 20.0, 1.5),
        telemetry=NodeTelemetry(**{"observe_time_s": NOW_S - 1.0, **telemetry}),
    )


def split(view: ClusterView, scale: float, policy: str = "heat-island-paper", q: float = 1.0) -> PartitionPlan:
    wanted = DivisibleTask("t", parallel_scale=scale, overhead_s=q)
    return POLICIES[policy].partition(wanted, view, PartitionContext(NOW_S, is_explaining=True))


def test_cpus_and_gpus_are_units_alike_and_finish_together() -> None:
    """Two equal nodes: C of a CPU is k1 + k2 + k3, of a GPU k4 + k5; T_i = T_p·C_i/ΣC (4)."""
    weights = CAPABILITY["weights"]
    of_cpu = weights["cpu"] + weights["memory"] + weights["cache"]
    plan = split(cluster_of((node("a"), node("b"))), 1000.0)
    expected = {"cpu": of_cpu / 2, "gpu0": (1 - of_cpu) / 2}
    assert len(plan.shares) == 4
    for share in plan.shares:
        assert share.scale == pytest.approx(1000.0 * expected[share.unit])
        assert share.predicted_s == pytest.approx(plan.shares[0].predicted_s)


def test_the_cpu_of_a_node_is_idle_beside_its_busy_gpu() -> None:
    view = cluster_of((node("a"), node("b")))
    held = Assignment("worker-0", Role.WORKER, NodeId("a"), (0,), Resources(gpus=1))
    view.add_job(RunningJob(Job(JobId("other")), (held,)))
    assert {(s.node, s.unit) for s in split(view, 1000.0).shares} == {("a", "cpu"), ("b", "cpu"), ("b", "gpu0")}


def test_k_is_algorithm_3_with_the_mean_over_all_units() -> None:
    """The largest n ≤ idle units with T_p ≥ max{nC_pQ, nC_pC_sQ/(nC_p − C_s)}, by the literal loop."""
    view = cluster_of(tuple(node(f"n{i}") for i in range(4)))
    weights = CAPABILITY["weights"]
    c_s = weights["cpu"] + weights["memory"] + weights["cache"]
    c_p = 0.5  # 8 units, ΣC = 4
    for scale in (0.5, 1.5, 2.2, 3.1, 9.0):
        k = 1
        for n in range(8, 1, -1):
            if n * c_p > c_s and scale >= max(n * c_p, n * c_p * c_s / (n * c_p - c_s)):
                k = n
                break
        assert len(split(view, scale).shares) == k


def test_no_temperature_is_read() -> None:
    hot = {"cpu_celsius": 99.0, "gpu_celsius": 99.0, "limit_celsius": 60.0, "power_watts": 900.0}
    cool, warm = cluster_of((node("a"), node("b"))), cluster_of((node("a", **hot), node("b")))
    assert split(warm, 1000.0).shares == split(cool, 1000.0).shares
    assert split(warm, 1000.0, policy="heat-island").shares != split(cool, 1000.0, policy="heat-island").shares
    assert split(warm, 1000.0).outcome is Outcome.PLACED


def test_nothing_is_read_of_a_report_but_the_papers_inputs() -> None:
    left = {field.name for field in fields(NodeTelemetry)} - READ
    plan = split(cluster_of((node("a"), node("b"))), 1000.0)
    for name in left:
        reported = replace(node("a").telemetry, **{name: 70.0})
        view = cluster_of((replace(node("a"), telemetry=reported, rack="r", labels={"x": "y"}), node("b")))
        assert split(view, 1000.0).shares == plan.shares, name
