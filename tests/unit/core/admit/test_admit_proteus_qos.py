"""Proteus and the QoS-aware policy as one: the order of the second, the number of GPUs of the first."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes, start

from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, Priority
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
POLICIES = admission_policies(MODEL)
SETTINGS = QueueSettings(tau_s=600.0)
NOW_S = 1020.0
DEADLINES_S = (700.0, 900.0, 1150.0, 1300.0, 1500.0, 1700.0, 3000.0, 5900.0)
BOTH = pytest.mark.parametrize("policy", ["proteus-qos", "proteus-qos-savable"])


def job(name: str, priority: Priority = Priority.NORMAL, elastic: ElasticRange | None = None) -> Job:
    return Job(
        JobId(name),
        model="ResNet-50",
        batch_size=256,
        single_gpu_s=6000.0,
        priority=priority,
        elastic=elastic,
        submit_time_s=900.0,
    )


def ask(policy: str, jobs: Sequence[Job], view: ClusterView, queue: QueueState, now_s: float = NOW_S) -> AdmitPlan:
    return POLICIES[policy].admit(jobs, view, queue, AdmitContext(now_s, int(now_s / 10), SETTINGS, 0))


def shape(admission: Admission) -> tuple[int, int]:
    return admission.nodes, admission.gpus_per_node


@BOTH
def test_the_job_of_least_slack_goes_first_with_the_gpus_of_proteus(policy: str) -> None:
    jobs = [job("normal"), job("urgent", Priority.URGENT)]
    plan = ask(policy, jobs, cluster_of(gpu_nodes(2, 4)), QueueState("q"))
    assert [a.rank for a in plan.admissions] == [2, 1]
    alone = ask("proteus", jobs[::-1], cluster_of(gpu_nodes(2, 4)), QueueState("q")).admissions[0]
    assert shape(plan.admissions[1]) == shape(alone)


@BOTH
def test_a_shape_in_time_goes_before_one_that_costs_less(policy: str) -> None:
    """Twenty jobs wait, so that Proteus gives few GPUs to each; one job is in time on all four of a node only."""
    view, others, now_s = cluster_of(gpu_nodes(1, 4)), [job(f"j{i:02d}") for i in range(20)], 10_000.0
    tight = replace(job("tight", Priority.PRIOR), model="LSTM")
    shortest_s = float(MODEL.latency_s(tight, MODEL.match(tight, "T4"), 1, 4, 0.0))
    tight = replace(tight, submit_time_s=now_s + shortest_s + 1.0 - tight.single_gpu_s)
    found = {a.job_id: a for a in ask(policy, [tight, *others], view, QueueState("q"), now_s).admissions}["tight"]
    alone = ask("proteus", [tight, *others], view, QueueState("q"), now_s).admissions[0]
    assert alone.gpus < found.gpus == 4


@BOTH
@pytest.mark.parametrize("left_s", DEADLINES_S)
def test_a_lone_job_gets_the_fastest_of_the_shapes_in_time_on_as_few_nodes_as_that_takes(
    policy: str, left_s: float
) -> None:
    view, now_s = cluster_of(gpu_nodes(3, 4)), 10_000.0
    lone = replace(job("lone", Priority.PRIOR), model="BERT", submit_time_s=now_s + left_s - 6000.0)
    match = MODEL.match(lone, "T4")
    shapes = [(nodes, gpus) for nodes in (1, 2, 3) for gpus in (1, 2, 3, 4)]
    latency_s = {shape: float(MODEL.latency_s(lone, match, *shape, 0.0)) for shape in shapes}
    in_time = [shape for shape in shapes if latency_s[shape] + now_s <= lone.submit_time_s + lone.single_gpu_s]
    nodes = min([nodes for nodes, _ in in_time], default=1)
    best = min([shape for shape in in_time or shapes if shape[0] == nodes], key=lambda shape: latency_s[shape])
    assert shape(ask(policy, [lone], view, QueueState("q"), now_s).admissions[0]) == best


def test_these_deadlines_need_one_node_more_and_more_than_there_are() -> None:
    """Otherwise the test above would not tell the cases apart."""
    lone = replace(job("lone"), model="BERT")
    match = MODEL.match(lone, "T4")
    one_s, two_s, three_s = (float(MODEL.latency_s(lone, match, nodes, 4, 0.0)) for nodes in (1, 2, 3))
    limits_s = (0.0, three_s, two_s, one_s, 6000.0)
    assert all(any(low < left_s < high for left_s in DEADLINES_S) for low, high in pairwise(limits_s))


@BOTH
def test_a_job_that_is_late_in_every_shape_starts_all_the_same(policy: str) -> None:
    late = Job(JobId("late"), model="ResNet-50", batch_size=256, single_gpu_s=6000.0, priority=Priority.URGENT)
    assert ask(policy, [late], cluster_of(gpu_nodes(1, 1)), QueueState("q")).admissions[0].verdict is Verdict.ADMIT


@BOTH
def test_asking_again_in_the_slot_changes_nothing(policy: str) -> None:
    view, jobs = cluster_of(gpu_nodes(1, 4)), [job("a"), job("b")]
    first = ask(policy, jobs, view, QueueState("q"))
    again = ask(policy, jobs, view, first.queue)
    assert (again.queue, again.admissions) == (first.queue, first.admissions)


@BOTH
def test_a_job_that_started_keeps_what_it_has(policy: str) -> None:
    view, jobs = cluster_of(gpu_nodes(2, 4)), [job("a"), job("b")]
    plan = ask(policy, jobs, view, QueueState("q"))
    admitted = next(a for a in plan.admissions if a.verdict is Verdict.ADMIT)
    start(view, next(j for j in jobs if j.id == admitted.job_id), admitted)
    after = ask(policy, jobs, view, plan.queue, NOW_S + 10.0)
    found = next(a for a in after.admissions if a.job_id == admitted.job_id)
    assert (found.verdict, shape(found)) == (Verdict.ADMIT, shape(admitted))
