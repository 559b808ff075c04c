"""QoS-aware admission and its baselines: equations (9)–(11), (15), (16) and who goes before whom."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes

from placewise_core.admit.greedy import THETA
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import Assignment, Gpu, Node, QueueSettings, QueueState, RunningJob
from placewise_core.domain.decision import Admission, Reason, Verdict
from placewise_core.domain.job import (
    ElasticRange,
    GpuSharing,
    Job,
    JobId,
    NodeId,
    Priority,
    Resources,
    Role,
    Shape,
    TaskGroup,
)
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
POLICIES = admission_policies(MODEL)
NOW_S = 100_000.0


def job(
    name: str,
    work: float = 3600.0,
    priority: Priority = Priority.NORMAL,
    submitted: float = NOW_S,
    elastic: ElasticRange | None = None,
    model: str = "ResNet-50",
) -> Job:
    return Job(
        JobId(name),
        model=model,
        batch_size=256,
        single_gpu_s=work,
        priority=priority,
        submit_time_s=submitted,
        elastic=elastic,
    )


def rigid(name: str, tasks: int, demand: Resources, model: str = "VGG16", **group: object) -> Job:
    groups = (TaskGroup(Role.WORKER, tasks, demand, **group),)  # type: ignore[arg-type]
    return Job(JobId(name), model=model, batch_size=256, single_gpu_s=600.0, groups=groups, submit_time_s=NOW_S)


def ask(policy: str, jobs: Sequence[Job], view: ClusterView, now_s: float = NOW_S) -> dict[str, Admission]:
    context = AdmitContext(now_s, int(now_s / 10), QueueSettings(), np.random.default_rng(0))
    queue = QueueState("q")
    plan = POLICIES[policy].admit(jobs, view, queue, context)
    assert [a.job_id for a in plan.admissions] == [j.id for j in jobs]
    if not policy.startswith(("proteus", "fifo", "qos")):  # which keep a queue, or its head
        assert plan.queue is queue
    return {a.job_id: a for a in plan.admissions}


def occupy(view: ClusterView, per_node: Sequence[int], model: str = "x") -> None:
    for m, gpus in enumerate(per_node):
        if gpus:
            indices = tuple(range(gpus))
            held = Assignment("worker-0", Role.WORKER, view.nodes.records[m].id, indices, Resources(gpus=gpus))
            view.add_job(RunningJob(Job(JobId(f"busy{m}"), model=model), (held,)))


def test_slack_is_equation_16_with_the_expectation_of_9() -> None:
    jobs = [job(p.value, priority=p, elastic=ElasticRange(1, 1)) for p in Priority]
    answers = ask("qos", jobs, cluster_of(gpu_nodes(4, 4)), now_s=NOW_S + 50)
    for factor, priority in ((0.0, Priority.URGENT), (1.0, Priority.PRIOR), (2.0, Priority.NORMAL)):
        expected = NOW_S + factor * 3600.0
        assert answers[priority.value].slack_s == pytest.approx(expected - (NOW_S + 50 + 3600.0))
        assert answers[priority.value].expected_finish_time_s == pytest.approx(NOW_S + 50 + 3600.0)


@pytest.mark.parametrize("policy", ["qos", "qos-paper"])
def test_least_slack_goes_first(policy: str) -> None:
    jobs = [job("normal"), job("prior", priority=Priority.PRIOR), job("urgent", priority=Priority.URGENT)]
    answers = ask(policy, jobs, cluster_of(gpu_nodes(1, 4)))
    assert [answers[n].rank for n in ("urgent", "prior", "normal")] == [1, 2, 3]
    assert answers["urgent"].verdict is Verdict.ADMIT
    assert answers["normal"].verdict is Verdict.WAIT


def test_the_shape_is_the_best_cer_among_those_in_time() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    wanted = job("a", priority=Priority.PRIOR, submitted=NOW_S - 1500.0)
    answer = ask("qos", [wanted], view)["a"]
    match = MODEL.match(wanted, "T4")
    options = Pool.free(view, NOW_S).options(wanted)
    best, best_cer = None, -1.0
    for nodes, per_node in zip(options.nodes, options.gpus_per_node, strict=True):
        latency = float(MODEL.latency_s(wanted, match, nodes, per_node, 0.0))
        cost = THETA * nodes * per_node / 16 + (1 - THETA) * nodes / 4
        cer = float(MODEL.speedup(wanted, match, nodes, per_node)) / cost
        if latency + NOW_S <= NOW_S - 1500.0 + 3600.0 and cer > best_cer:
            best, best_cer = (int(nodes), int(per_node)), cer
    assert (answer.nodes, answer.gpus_per_node) == best
    assert answer.cer == pytest.approx(best_cer)
    assert answer.slack_s > 0


def test_waits_for_a_shape_in_time_but_not_for_one_that_is_late_anyway() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    occupy(view, [3, 4])
    due = NOW_S - 1500.0  # one GPU would be 1500 s late, four are in time
    in_time = ask("qos", [job("a", priority=Priority.PRIOR, submitted=due)], view)["a"]
    assert in_time.verdict is Verdict.WAIT
    late = ask("qos", [job("a", priority=Priority.URGENT)], view)["a"]
    assert (late.verdict, late.gpus) == (Verdict.ADMIT, 1)


def test_dispatch_ends_with_the_first_that_does_not_fit() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [rigid("a", 3, Resources(gpus=1)), rigid("b", 2, Resources(gpus=1)), job("c")]
    answers = ask("fifo-strict", jobs, view)
    assert [answers[n].verdict for n in "abc"] == [Verdict.ADMIT, Verdict.WAIT, Verdict.WAIT]
    assert answers["b"].blockers[0].reason is Reason.INSUFFICIENT_GPU
    assert answers["b"].blockers[0].shortfall == 1.0
    assert answers["c"].blockers[0].reason is Reason.BEHIND_IN_QUEUE


def test_what_was_admitted_before_is_taken() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [rigid(f"j{i}", 2, Resources(gpus=2)) for i in range(3)]
    verdicts = [a.verdict for a in ask("fifo", jobs, view).values()]
    assert verdicts == [Verdict.ADMIT, Verdict.ADMIT, Verdict.WAIT]
    assert view.usage.free_gpus.tolist() == [4, 4]  # the view itself is untouched


def test_a_running_job_keeps_what_it_holds() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    occupy(view, [2, 0])
    answer = ask("qos", [Job(JobId("busy0")), job("a")], view)["busy0"]
    assert (answer.verdict, answer.gpus, answer.nodes) == (Verdict.ADMIT, 2, 1)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nothing_that_can_never_fit_is_admitted(policy: str) -> None:
    answers = ask(policy, [rigid("huge", 99, Resources(gpus=1))], cluster_of(gpu_nodes(2, 4)))
    assert answers["huge"].verdict is Verdict.WAIT
    assert answers["huge"].blockers[0].reason is Reason.NO_FEASIBLE_SHAPE


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"proteus"}))
def test_admitted_shapes_fit_side_by_side(policy: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        view = cluster_of(gpu_nodes(3, 4))
        occupy(view, rng.integers(0, 5, 3).tolist())
        jobs = [job(f"e{i}", elastic=ElasticRange(1, int(rng.integers(1, 9)))) for i in range(3)]
        jobs.append(rigid("r", int(rng.integers(1, 5)), Resources(gpus=1, cpu_cores=2)))
        free = sorted(view.usage.free_gpus.tolist(), reverse=True)
        answers = ask(policy, jobs, view)
        admitted = [a for a in answers.values() if a.verdict is Verdict.ADMIT]
        assert sum(a.gpus for a in admitted) <= sum(free)
        for a in admitted:
            if a.job_id != "r":
                assert a.gpus == a.nodes * a.gpus_per_node
                assert sum(g >= a.gpus_per_node for g in free) >= a.nodes


def test_single_gpu_and_fifo_differ_by_what_users_ask_for() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    wanted = [job("a", elastic=ElasticRange(1, 4))]
    assert ask("single-gpu", wanted, view)["a"].gpus == 1
    assert ask("fifo", wanted, view)["a"].gpus == 4
    occupy(view, [4, 1])
    assert ask("fifo", wanted, view)["a"].gpus == 3  # its idle part


def test_min_min_goes_by_expected_completion_and_weighted_fair_by_both_times() -> None:
    view = cluster_of(gpu_nodes(1, 1))
    early_but_long = job("long", work=9000.0, submitted=100.0)  # e = 18100
    late_but_short = job("short", work=2000.0, submitted=900.0)  # e = 4900
    order = [early_but_long, late_but_short]
    assert ask("fifo", order, view)["long"].rank == 1
    assert ask("min-min", order, view)["short"].rank == 1
    assert ask("weighted-fair", order, view)["short"].rank == 1  # 2900 against 9100
    close = [job("old", work=1000.0, submitted=100.0), job("new", work=900.0, submitted=500.0)]
    assert ask("min-min", close, view)["old"].rank == 1  # 2100 before 2300


def test_capacity_keeps_a_type_to_its_part_without_holding_up_others() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [
        rigid("a1", 4, Resources(gpus=1), model="ResNet50"),
        rigid("a2", 1, Resources(gpus=1), model="ResNet50"),
        rigid("b", 4, Resources(gpus=1), model="VGG16"),
    ]
    answers = ask("capacity", jobs, view)
    assert [answers[n].verdict for n in ("a1", "a2", "b")] == [Verdict.ADMIT, Verdict.WAIT, Verdict.ADMIT]
    whole = ask("capacity", [rigid("a", 8, Resources(gpus=1)), job("c")], view)
    assert whole["a"].verdict is Verdict.ADMIT  # larger than its part, but its type runs nothing else


def test_tetris_takes_the_fastest_or_the_cheapest_shape() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    perf, cer = ask("tetris-perf", [job("a")], view)["a"], ask("tetris-cer", [job("a")], view)["a"]
    match = MODEL.match(job("a"), "T4")
    options = Pool.free(view, NOW_S).options(job("a"))
    fastest = MODEL.speedup(job("a"), match, options.nodes, options.gpus_per_node).max()
    assert float(MODEL.speedup(job("a"), match, perf.nodes, perf.gpus_per_node)) == pytest.approx(float(fastest))
    assert cer.cer >= perf.cer


def test_random_counts_are_drawn_once_per_job() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    draws = {ask("random-gpus", [job(f"j{i}")], view)[f"j{i}"].gpus for i in range(40)}
    assert len(draws) > 5
    assert ask("random-gpus", [job("j1")], view)["j1"].gpus == ask("random-gpus", [job("j1")], view)["j1"].gpus


def test_random_counts_state_the_probability_of_their_answer() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    answers = [ask("random-gpus", [job(f"j{i}")], view)[f"j{i}"] for i in range(60)]
    assert {given.draw.propensity for given in answers if given.draw} == {0.25}
    busy = cluster_of(gpu_nodes(1, 4))
    occupy(busy, [3])
    waits = [given for i in range(60) if (given := ask("random-gpus", [job(f"j{i}")], busy)[f"j{i}"]).gpus == 0]
    assert waits
    assert {given.draw.propensity for given in waits if given.draw} == {0.75}
    behind = ask("random-gpus", [job(waits[0].job_id), job("b")], busy)["b"]
    assert behind.draw is None, "it waits whatever its n is"


def test_rigid_demands_beyond_gpus_count() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    assert ask("fifo", [rigid("a", 2, Resources(cpu_cores=32))], view)["a"].gpus == 0
    wide = ask("fifo", [rigid("a", 4, Resources(gpus=1), max_per_node=1)], view)["a"]
    assert wide.blockers[0].reason is Reason.NO_FEASIBLE_SHAPE
    spread = ask("fifo", [rigid("a", 2, Resources(gpus=1), max_per_node=1)], view)["a"]
    assert (spread.verdict, spread.nodes) == (Verdict.ADMIT, 2)
    other = ask("fifo", [rigid("a", 1, Resources(gpus=1), gpu_model="H100")], view)["a"]
    assert other.blockers[0].reason is Reason.NO_FEASIBLE_SHAPE
    mine = ask("fifo", [rigid("a", 1, Resources(gpus=1), gpu_model="T4")], view)["a"]
    assert mine.verdict is Verdict.ADMIT


def test_a_fraction_may_share_a_gpu() -> None:
    node = Node(NodeId("n"), Resources(cpu_cores=8, gpus=1, memory_gib=64), (Gpu(0, "T4", 16),), max_jobs_per_gpu=2)
    view = cluster_of((node,))
    sharing = GpuSharing(allowed=True)
    half = TaskGroup(Role.WORKER, 1, Resources(gpus=0.5))
    running = Job(JobId("x"), groups=(half,), gpu_sharing=sharing)
    held = Assignment("worker-0", Role.WORKER, NodeId("n"), (0,), Resources(gpus=0.5))
    view.add_job(RunningJob(running, (held,)))
    wanted = Job(JobId("a"), groups=(half,), gpu_sharing=sharing, single_gpu_s=60.0)
    assert ask("fifo", [wanted], view)["a"].verdict is Verdict.ADMIT


def test_an_elastic_job_with_tasks_keeps_to_what_one_task_needs() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    group = TaskGroup(Role.WORKER, 1, Resources(gpus=2, cpu_cores=20))  # 32 cores: one task per node
    wanted = Job(JobId("a"), model="VGG16", single_gpu_s=600.0, groups=(group,), elastic=ElasticRange(2, 8))
    answer = ask("fifo", [wanted], view)["a"]
    assert (answer.nodes, answer.gpus_per_node) == (2, 2)


def test_a_shape_that_was_given_is_kept() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    wanted = Job(JobId("a"), single_gpu_s=60.0, shape=Shape(3, 2))
    for policy in ("qos", "fifo", "tetris-cer", "random-gpus"):
        answer = ask(policy, [wanted], view)["a"]
        assert (answer.nodes, answer.gpus_per_node) == (3, 2), policy


def test_an_empty_cluster_says_so() -> None:
    for policy in POLICIES:
        answer = ask(policy, [job("a")], cluster_of(()))["a"]
        assert (answer.verdict, answer.blockers[0].reason) == (Verdict.WAIT, Reason.EMPTY_CLUSTER), policy
