"""Proteus as printed: slots, promises, who is in the queue, and S(n) worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes, start

from placewise_core.admit.policies.lyapunov import advanced, next_delay, renumbered
from placewise_core.admit.policies.proteus_paper import ProteusPaper
from placewise_core.admit.policy import AdmitContext
from placewise_core.domain.cluster import NodeState, QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan, Reason, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, Resources, Role, TaskGroup
from placewise_core.speed.params import PARAMS_MILLIONS, params_millions
from placewise_core.speed.proteus_cost import Bandwidth, FixedBatchCost, ProteusCost
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
POLICY = ProteusPaper(MODEL)
SETTINGS = QueueSettings(v=1.0, epsilon_s=60.0, tau_s=600.0, slot_s=10.0)
EAGER = replace(SETTINGS, v=0.01)


def job(name: str, work: float = 600.0, elastic: ElasticRange | None = None) -> Job:
    return Job(JobId(name), model="ResNet-50", batch_size=256, single_gpu_s=work, elastic=elastic)


def rigid(name: str, tasks: int, gpus: float) -> Job:
    group = TaskGroup(Role.WORKER, tasks, Resources(cpu_cores=1, gpus=gpus))
    return Job(JobId(name), model="ResNet-50", batch_size=256, single_gpu_s=600.0, groups=(group,))


def ask(
    jobs: Sequence[Job], view: ClusterView, queue: QueueState, slot: int, settings: QueueSettings = EAGER
) -> AdmitPlan:
    context = AdmitContext(slot * settings.slot_s, slot, settings, np.random.default_rng(0), is_explaining=True)
    return POLICY.admit(jobs, view, queue, context)


def in_queue(jobs: Sequence[Job], view: ClusterView, slot: int = 100) -> QueueState:
    """The state one slot after the jobs arrived: their work counts."""
    noted = ask(jobs, view, QueueState("q"), slot, replace(SETTINGS, v=1e9)).queue
    return ask(jobs, view, noted, slot + 1, replace(SETTINGS, v=1e9)).queue


def test_asking_again_in_the_slot_changes_nothing() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a"), job("b")]
    first = ask(jobs, view, in_queue(jobs, view), 102)
    again = ask(jobs, view, first.queue, 102)
    assert again.queue is first.queue
    assert again.admissions == first.admissions


def test_only_the_head_is_decided_and_one_per_slot() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    jobs = [job("a", elastic=ElasticRange(1, 2)), job("b"), job("c")]
    plan = ask(jobs, view, in_queue(jobs, view), 102)
    assert [a.verdict for a in plan.admissions] == [Verdict.ADMIT, Verdict.WAIT, Verdict.WAIT]
    reasons = [a.blockers[0].reason for a in plan.admissions[1:]]
    assert reasons == [Reason.SLOT_TAKEN, Reason.BEHIND_IN_QUEUE]
    assert [a.rank for a in plan.admissions] == [1, 2, 3]
    later = ask(jobs, view, plan.queue, 103)
    assert [a.verdict for a in later.admissions] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.WAIT]


def test_waits_while_no_s_is_below_zero() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a")]
    plan = ask(jobs, view, in_queue(jobs, view), 102, replace(SETTINGS, v=1e6))
    assert plan.admissions[0].verdict is Verdict.WAIT
    assert plan.admissions[0].blockers[0].reason is Reason.DRIFT_PLUS_PENALTY
    assert plan.admissions[0].drift_plus_penalty[0].value == 0.0
    assert all(s.value >= 0 for s in plan.admissions[0].drift_plus_penalty)


def test_s_is_equation_14_in_units_of_tau() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [job("a", 900.0)]
    queue = replace(in_queue(jobs, view), delay_s=120.0)
    plan = ask(jobs, view, queue, 101, SETTINGS)
    cost = FixedBatchCost(MODEL, jobs[0], MODEL.match(jobs[0], "T4"), Bandwidth(network_gbps=100.0), 600.0)
    for s in plan.admissions[0].drift_plus_penalty[1:]:
        c = float(cost.cost_s(s.gpus) + cost.comm_s(s.gpus, 1))
        expected = 1.0 * c / 600 + (900 / 600) ** 2 - (900 / 600) * (120 + 900) / 600
        assert s.cost_s == pytest.approx(c)
        assert s.value == pytest.approx(expected)


def test_the_admitted_n_has_the_least_s() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a")]
    admission = ask(jobs, view, in_queue(jobs, view), 102).admissions[0]
    least = min(admission.drift_plus_penalty, key=lambda s: s.value)
    assert admission.gpus == least.gpus == admission.nodes * admission.gpus_per_node
    assert least.value < 0


def test_an_admitted_job_keeps_its_answer_and_its_gpus_until_it_starts() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [job("a", elastic=ElasticRange(3, 3)), job("b", elastic=ElasticRange(1, 4)), job("c")]
    plan = ask(jobs, view, in_queue(jobs, view), 102)
    later = ask(jobs, view, plan.queue, 103)
    assert later.admissions[0].gpus == 3
    assert later.admissions[1].gpus == 1  # the other three are promised
    start(view, jobs[0], later.admissions[0])
    started = ask(jobs, view, later.queue, 104)
    assert started.admissions[0].verdict is Verdict.ADMIT
    assert started.admissions[0].gpus == 3


def test_what_is_no_longer_listed_leaves_queue_and_promises() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [job("a"), job("b", 700.0), job("c", 800.0)]
    plan = ask(jobs, view, in_queue(jobs, view), 102)
    state = ask([jobs[2]], view, plan.queue, 103).queue
    assert "b" not in state.waiting
    assert "a" not in state.admitted
    assert state.backlog_s == pytest.approx(800.0)


def test_a_clock_that_goes_back_leaves_everything_as_it_was() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a"), job("b")]
    plan = ask(jobs, view, in_queue(jobs, view), 102)
    back = ask(jobs, view, plan.queue, 7)
    assert back.queue is plan.queue
    assert [a.verdict for a in back.admissions] == [a.verdict for a in plan.admissions]


def test_a_clock_that_leaps_forward_credits_no_more_than_a_day() -> None:
    waiting = QueueState("q", backlog_s=600.0, delay_s=5.0, slot=10, waiting={"a": 600.0})
    state = advanced(waiting, 10**12, SETTINGS)
    assert state.slot == 10**12
    assert state.delay_s == pytest.approx(5.0 + 60.0 + 8640 * 60.0)
    empty = QueueState("q", delay_s=1e6, slot=10)
    assert advanced(empty, 10**12, SETTINGS).delay_s == 0.0


@pytest.mark.parametrize("backlog_s", [0.0, 600.0])
def test_slots_nobody_asked_in_equal_the_walk_through_them(backlog_s: float) -> None:
    waiting = {"a": backlog_s} if backlog_s else {}
    queue = QueueState("q", backlog_s=backlog_s, delay_s=77.0, slot=3, waiting=waiting)
    z = queue.delay_s
    for _ in range(9):
        z = next_delay(backlog_s, z, 0.0, SETTINGS.epsilon_s)
    assert advanced(queue, 12, SETTINGS).delay_s == pytest.approx(z)


def test_renumbering_keeps_the_work_and_lets_the_next_slot_decide() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a"), job("b")]
    queue = in_queue(jobs, view)
    longer = replace(EAGER, slot_s=60.0)
    state = renumbered(queue, now_s=1030.0, settings=longer)
    assert (state.slot, state.backlog_s) == (16, queue.backlog_s)
    assert ask(jobs, view, state, 17, longer).admissions[0].verdict is Verdict.ADMIT


def test_a_rigid_job_gets_its_own_gpus_or_waits() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [rigid("a", tasks=6, gpus=1)]
    admission = ask(jobs, view, in_queue(jobs, view), 102).admissions[0]
    assert (admission.gpus, admission.nodes) == (6, 2)
    start(view, job("big"), replace(admission, nodes=1, gpus_per_node=3))
    waiting = ask([rigid("b", 6, 1)], view, in_queue([rigid("b", 6, 1)], view), 102).admissions[0]
    assert waiting.verdict is Verdict.WAIT
    assert waiting.blockers[0].reason is Reason.INSUFFICIENT_GPU
    assert waiting.blockers[0].shortfall == 1.0


def test_fragmented_gpus_are_named_as_such() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    for name in ("x", "y"):
        admission = ask([job(name)], view, in_queue([job(name)], view), 102).admissions[0]
        start(view, job(name), replace(admission, nodes=1, gpus_per_node=2))
    # Both nodes have two left, or one has none: make it two and two.
    if 0 in view.usage.free_gpus:
        view.remove_job(JobId("y"))
        view.remove_job(JobId("x"))
        start(view, job("x"), replace(admission, nodes=2, gpus_per_node=2))
    waiting = ask([rigid("b", 1, 4)], view, in_queue([rigid("b", 1, 4)], view), 102).admissions[0]
    assert waiting.blockers[0].reason is Reason.FRAGMENTED


def test_a_job_the_cluster_can_never_hold_does_not_block_the_queue() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [rigid("huge", 100, 1), job("a")]
    plan = ask(jobs, view, in_queue(jobs, view), 102)
    assert plan.admissions[0].blockers[0].reason is Reason.NO_FEASIBLE_SHAPE
    assert plan.admissions[1].verdict is Verdict.ADMIT
    assert "huge" not in plan.queue.waiting


def test_nodes_that_are_down_are_counted_and_said() -> None:
    nodes = gpu_nodes(2, 4)
    view = cluster_of((nodes[0], replace(nodes[1], state=NodeState.DOWN)))
    jobs = [rigid("a", 8, 1)]
    admission = ask(jobs, view, in_queue(jobs, view), 102).admissions[0]
    assert [b.reason for b in admission.blockers] == [Reason.INSUFFICIENT_GPU, Reason.NODE_DOWN]


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 3), (5, 8)])
def test_the_elastic_range_is_kept(low: int, high: int) -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a", elastic=ElasticRange(low, high))]
    assert low <= ask(jobs, view, in_queue(jobs, view), 102).admissions[0].gpus <= high


def test_gradients_of_one_gpu_do_not_travel() -> None:
    a = job("a")
    cost = ProteusCost(MODEL, a, MODEL.match(a, "T4"), Bandwidth(network_gbps=10.0), 600.0)
    assert cost.comm_s(1, 1) == 0.0
    steps = a.single_gpu_s / float(cost.cost_s(1)) * cost._steps
    on_one_node, over_network = float(cost.comm_s(2, 1)), float(cost.comm_s(2, 2))
    assert over_network == pytest.approx(steps * 25.56e6 * 4 / (10e9 / 8))
    assert on_one_node < over_network
    assert float(cost.cost_s(1)) == pytest.approx(600.0)
    assert float(cost.alpha(1.0)) == pytest.approx(1.0)


def test_table_one_has_the_resnets_the_right_way_round() -> None:
    assert PARAMS_MILLIONS["resnet18"] == 11.69
    assert PARAMS_MILLIONS["resnet50"] == 25.56
    assert params_millions("ResNet-50") == 25.56
    assert params_millions("ResNet-50", given=3.0) == 3.0
    assert params_millions("no such network") == 0.0


def test_a_job_that_came_in_this_slot_is_decided_in_the_next() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    noted = ask([job("a")], view, QueueState("q", delay_s=1e5, slot=99), 100)
    assert noted.admissions[0].blockers[0].reason is Reason.SLOT_TAKEN
    assert (noted.queue.backlog_s, noted.queue.arrivals_s) == (0.0, 600.0)
    assert ask([job("a")], view, noted.queue, 101).admissions[0].verdict is Verdict.ADMIT
