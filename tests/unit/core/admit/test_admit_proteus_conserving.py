"""Proteus, work-conserving: what fits starts at once, and what waits makes each job take fewer GPUs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes, start

from placewise_core.admit.policies.lyapunov import with_shapes
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan, Reason, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, Resources, Role, TaskGroup
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
POLICIES = admission_policies(MODEL)
SETTINGS = QueueSettings()
NOW_S = 1000.0
EVERY = pytest.mark.parametrize("policy", ["proteus", "proteus-qos", "proteus-qos-savable"])


def job(name: str, work: float = 600.0, elastic: ElasticRange | None = None) -> Job:
    return Job(JobId(name), model="ResNet-50", batch_size=256, single_gpu_s=work, elastic=elastic)


def rigid(name: str, tasks: int) -> Job:
    group = TaskGroup(Role.WORKER, tasks, Resources(cpu_cores=1, gpus=1))
    return Job(JobId(name), model="ResNet-50", batch_size=256, single_gpu_s=600.0, groups=(group,))


def ask(
    jobs: Sequence[Job],
    view: ClusterView,
    queue: QueueState | None = None,
    now_s: float = NOW_S,
    policy: str = "proteus",
    settings: QueueSettings = SETTINGS,
) -> AdmitPlan:
    context = AdmitContext(now_s, int(now_s / 10), settings, 0, is_explaining=True)
    return POLICIES[policy].admit(jobs, view, queue or QueueState("q"), context)


@EVERY
def test_a_lone_job_on_88_idle_gpus_starts_at_the_first_question(policy: str) -> None:
    view = cluster_of(gpu_nodes(22, 4))
    assert ask([job("a")], view, policy=policy).admissions[0].verdict is Verdict.ADMIT
    assert ask([job("a")], view, policy="proteus-paper").admissions[0].verdict is Verdict.WAIT


@EVERY
def test_no_gpu_stays_idle_while_a_job_that_fits_it_waits(policy: str) -> None:
    for jobs in (1, 2, 5, 7, 8, 40):
        plan = ask([job(f"j{i}") for i in range(jobs)], cluster_of(gpu_nodes(2, 4)), policy=policy)
        given = [a.gpus for a in plan.admissions if a.verdict is Verdict.ADMIT]
        assert sum(given) == 8 or len(given) == jobs, given


def test_the_more_jobs_wait_the_fewer_gpus_each_gets() -> None:
    counts = []
    for jobs in (1, 4, 16, 64):
        plan = ask([job(f"j{i}") for i in range(jobs)], cluster_of(gpu_nodes(4, 4)))
        counts.append(plan.admissions[0].gpus)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 4  # a whole node
    assert counts[-1] <= 2


def test_s_is_14_and_the_delay_of_those_that_wait() -> None:
    view, jobs = cluster_of(gpu_nodes(1, 4)), [job(f"j{i}", 900.0) for i in range(3)]
    queue = replace(ask(jobs, view).queue, backlog_s=2700.0, delay_s=120.0)
    settings = replace(SETTINGS, v=2.0, tau_s=600.0)
    plan = ask(jobs, view, queue, settings=settings)
    nothing, *scores = plan.admissions[0].drift_plus_penalty
    assert (nothing.gpus, nothing.value) == (0, 0.0)
    assert [s.gpus for s in scores] == [1, 2, 3, 4]
    for s in scores:
        cost_s = float(MODEL.latency_s(jobs[0], MODEL.match(jobs[0], "T4"), 1, s.gpus, 600.0))
        assert s.cost_s == pytest.approx(cost_s)
        printed = 2.0 * cost_s / 600 + 1.5**2 - 1.5 * (120 + 2700) / 600
        assert s.value == pytest.approx(printed + (2 + 120 / 600) * s.gpus * cost_s / (4 * 600))
    assert plan.admissions[0].gpus == min(scores, key=lambda s: s.value).gpus


def test_a_larger_v_gives_a_job_more_gpus() -> None:
    view, jobs = cluster_of(gpu_nodes(2, 8)), [job(f"j{i}") for i in range(12)]
    given = [ask(jobs, view, settings=replace(SETTINGS, v=v)).admissions[0].gpus for v in (0.1, 1.0, 100.0)]
    assert given == sorted(given)
    assert given[0] < given[-1]


@EVERY
def test_the_reservation_of_a_head_comes_with_q_and_z(policy: str) -> None:
    view = cluster_of(gpu_nodes(2, 4))
    start(view, job("runs"), replace(ask([job("runs", elastic=ElasticRange(2, 2))], view).admissions[0]))
    plan = ask([rigid("gang", 8), job("a", 1e6, ElasticRange(1, 1))], view, policy=policy)
    assert [a.verdict for a in plan.admissions] == [Verdict.WAIT, Verdict.WAIT]
    assert plan.admissions[1].blockers[0].reason is Reason.BEHIND_IN_QUEUE
    assert plan.queue.head is not None
    assert plan.queue.head.job == "gang"
    assert plan.queue.waiting == {"gang": 600.0, "a": 1e6}


def test_q_is_the_work_that_waits_and_z_moves_once_a_slot() -> None:
    view, jobs = cluster_of(gpu_nodes(1, 4)), [rigid("a", 4), rigid("b", 4), rigid("c", 4)]
    first = ask(jobs, view)
    assert (first.queue.backlog_s, first.queue.arrivals_s) == (0.0, 1800.0)
    assert ask(jobs, view, first.queue).queue is first.queue
    start(view, jobs[0], replace(first.admissions[0], nodes=1, gpus_per_node=4))
    second = ask(jobs, view, first.queue, NOW_S + 10.0)
    assert (second.queue.backlog_s, second.queue.delay_s) == (1200.0, 0.0)
    third = ask(jobs, view, second.queue, NOW_S + 40.0)
    assert (third.queue.backlog_s, third.queue.delay_s) == (1200.0, 3 * SETTINGS.epsilon_s)
    view.remove_job(JobId("a"))
    start(view, jobs[1], replace(first.admissions[0], nodes=1, gpus_per_node=4))
    fourth = ask(jobs[2:], view, third.queue, NOW_S + 50.0)
    assert (fourth.queue.backlog_s, fourth.queue.delay_s) == (600.0, 0.0)  # 180 + 60 − 600 is less than nothing
    assert ask([], view, fourth.queue, NOW_S + 60.0).queue.waiting == {}


def test_work_that_no_node_could_ever_do_is_no_backlog() -> None:
    plan = ask([rigid("huge", 99), job("a")], cluster_of(gpu_nodes(1, 4)))
    assert plan.admissions[0].blockers[0].reason is Reason.NO_FEASIBLE_SHAPE
    assert plan.admissions[1].verdict is Verdict.ADMIT
    assert set(plan.queue.waiting) == {"a"}


def test_the_shape_of_a_job_that_is_no_longer_listed_is_forgotten_at_the_next_slot() -> None:
    """A caller that asks about new jobs again and again and places none must not make each answer dearer."""
    view, queue = cluster_of(gpu_nodes(2, 4)), QueueState("q")
    jobs = [job(f"j{i}", elastic=ElasticRange(1, 8)) for i in range(4)]
    for slot, asked in enumerate(jobs):
        plan = ask([asked], view, queue, NOW_S + 10.0 * slot)
        queue = with_shapes(plan, [asked], int(NOW_S / 10) + slot).queue
        assert list(queue.admitted) == [asked.id]
    within = with_shapes(ask(jobs[:1], view, queue, NOW_S + 31.0), jobs[:1], int(NOW_S / 10) + 3).queue
    assert list(within.admitted) == ["j3", "j0"]
