"""Admission heeds `keep_together` and `exclusive_network`: it admits no shape that Place would refuse for them."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.place_cases import context, gang, node, view_of
from tests.fakes.proteus_queue import bundled
from tests.fakes.quick.examples import examples

from placewise_core.admit.head import Releases, reserved
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import Assignment, Node, QueueSettings, QueueState, RunningJob
from placewise_core.domain.decision import Admission, Blocker, Reason, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, KeepTogether, NodeId, Resources, Role, Shape, TaskGroup
from placewise_core.gang.greedy import can_fit
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView

NOW_S = 1000.0
POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))


def racked(*gpus: int) -> ClusterView:
    """Nodes with so many GPUs, two in each rack."""
    return view_of([node(f"n{i}", count, rack=f"r{i // 2}") for i, count in enumerate(gpus)])


def elastic(least: int = 1, most: int = 64, **wishes: object) -> Job:
    return Job(JobId("job"), model="ResNet-50", elastic=ElasticRange(least, most), **wishes)  # type: ignore[arg-type]


def on(name: str, *nodes: str, **more: object) -> RunningJob:
    """A job that runs with a GPU on each of these nodes, and has begun just now."""
    tasks = [Assignment(f"worker-{i}", Role.WORKER, NodeId(n), (0,), Resources(1, 1)) for i, n in enumerate(nodes)]
    return RunningJob(Job(JobId(name), **more), tuple(tasks), start_time_s=NOW_S)  # type: ignore[arg-type]


def shapes(job: Job, view: ClusterView) -> set[tuple[int, int]]:
    options = Pool.free(view, NOW_S).options(job)
    return set(zip(options.nodes.tolist(), options.gpus_per_node.tolist(), strict=True))


def ask(policy: str, jobs: Sequence[Job], view: ClusterView) -> dict[str, Admission]:
    settings_ = QueueSettings(v=0.01, epsilon_s=60.0, tau_s=600.0, slot_s=10.0)
    plan = POLICIES[policy].admit(jobs, view, QueueState("q"), AdmitContext(NOW_S, 100, settings_, 0))
    return {admission.job_id: admission for admission in plan.admissions}


def test_shapes_lie_within_a_node_or_a_rack() -> None:
    view = racked(2, 1, 3, 1, 1)
    assert shapes(elastic(), view) >= {(1, 3), (2, 2), (5, 1)}
    assert shapes(elastic(keep_together=KeepTogether.NODE), view) == {(1, 1), (1, 2), (1, 3)}
    assert shapes(elastic(keep_together=KeepTogether.RACK), view) == {(1, 1), (1, 2), (1, 3), (2, 1)}


def test_shapes_lie_beside_a_network_that_is_taken_as_a_whole_or_not_at_all() -> None:
    view = racked(3, 3, 1, 1)
    view.add_job(on("owner", "n0", "n1", exclusive_network=True))
    assert shapes(elastic(), view) == {(1, 1), (1, 2), (2, 1)}
    view.remove_job(JobId("owner"))
    view.add_job(on("other", "n0", "n1"))
    assert shapes(elastic(exclusive_network=True), view) == {(1, 1), (1, 2), (2, 1)}
    assert (2, 2) in shapes(elastic(), view)


@pytest.mark.parametrize("owner", ["first", "second", "both"])
def test_a_shape_that_is_taken_leaves_no_network_to_the_next(owner: str) -> None:
    view = racked(2, 2)
    first, second = (
        replace(gang(name, 2, 1.0, group={"max_per_node": 1}), exclusive_network=owner in (name, "both"))
        for name in ("first", "second")
    )
    pool = Pool.free(view, NOW_S)
    pool.take(first, pool.options(first), 0)
    assert not len(pool.options(second))
    assert not len(pool.without(pool.usable & False).options(second)), "a copy knows of it as well"
    alone = replace(second, groups=(replace(second.groups[0], count=1),))
    assert len(pool.options(alone))


def test_two_plain_gangs_share_a_network() -> None:
    pool = Pool.free(racked(2, 2), NOW_S)
    job = gang("first", 2, 1.0, group={"max_per_node": 1})
    pool.take(job, pool.options(job), 0)
    assert len(pool.options(replace(job, id=JobId("second"))))


def test_a_shape_is_taken_within_one_domain() -> None:
    view = racked(2, 1, 3, 3)
    job = elastic(4, 4, keep_together=KeepTogether.RACK)
    pool = Pool.free(view, NOW_S)
    options = pool.options(job)
    i = list(zip(options.nodes.tolist(), options.gpus_per_node.tolist(), strict=True)).index((2, 2))
    [take] = pool.takes(job, options, i)
    assert sorted(take.rows.tolist()) == [2, 3]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_admits_a_job_that_place_would_refuse(policy: str) -> None:
    view = racked(2, 1, 2, 1)
    view.add_job(on("owner", "n0", "n1", exclusive_network=True))
    jobs = [
        gang("rack", 4, keep_together=KeepTogether.RACK),
        gang("node", 3, keep_together=KeepTogether.NODE),
        elastic(3, 3, keep_together=KeepTogether.RACK, exclusive_network=True),
    ]
    for job in jobs:
        answer = ask(policy, [job], view)[job.id]
        if answer.verdict is Verdict.ADMIT:
            assert job.elastic is not None
            assert (answer.nodes, answer.gpus_per_node) != (2, 2)


def test_the_reasons_name_the_wish() -> None:
    view = racked(3, 3, 3, 3)
    [answer] = ask("fifo", [gang("job", 8, keep_together=KeepTogether.RACK)], view).values()
    message = "no rack holds the 8 tasks together; the best holds 6"
    assert [blocker.reason for blocker in answer.blockers] == [Reason.NO_FEASIBLE_SHAPE, Reason.KEEP_TOGETHER]
    assert answer.blockers[1] == Blocker(Reason.KEEP_TOGETHER, 0, 2.0, "tasks", message)
    view.add_job(on("owner", "n0", "n2", exclusive_network=True))
    [answer] = ask("fifo", [gang("job", 5, keep_together=KeepTogether.RACK)], view).values()
    message = "nodes with room have a job that spans several nodes; that job or this one wants its network for itself"
    assert answer.blockers == (Blocker(Reason.EXCLUSIVE_NETWORK, message=message),)
    [answer] = ask("fifo", [elastic(6, 6, keep_together=KeepTogether.RACK)], view).values()
    assert answer.blockers == (Blocker(Reason.KEEP_TOGETHER, message="no rack holds the 6 GPUs together"),)
    [answer] = ask("fifo", [elastic(12, 12, keep_together=KeepTogether.RACK)], view).values()
    assert [blocker.reason for blocker in answer.blockers] == [Reason.NO_FEASIBLE_SHAPE, Reason.KEEP_TOGETHER]


def test_a_head_waits_for_the_end_of_those_whose_network_it_wants() -> None:
    view = racked(2, 2)
    long, short = (on(name, "n0", "n1", single_gpu_s=length) for name, length in (("long", 900.0), ("short", 300.0)))
    view.add_job(replace(short, assignments=tuple(replace(task, gpu_indices=(1,)) for task in short.assignments)))
    job = gang("head", 2, 1.0, group={"max_per_node": 1})
    for wish, start_s in ((False, NOW_S), (True, NOW_S + 200.0)):
        releases = Releases(view, view.usable(NOW_S), (), NOW_S)
        head = reserved(replace(job, exclusive_network=wish), 0.0, releases, lambda options: 0, NOW_S, 1e6)
        assert head is not None
        assert head.start_s == pytest.approx(start_s)
        assert sorted(head.nodes) == ["n0", "n1"]
    assert long.id not in view.jobs


def test_a_head_is_reserved_nodes_of_one_rack() -> None:
    view = racked(1, 2, 2, 2)
    view.add_job(on("busy", "n2", single_gpu_s=300.0))
    releases = Releases(view, view.usable(NOW_S), (), NOW_S)
    head = reserved(gang("head", 4, keep_together=KeepTogether.RACK), 0.0, releases, lambda options: 0, NOW_S, 1e6)
    assert head is not None
    assert (head.nodes, head.start_s) == (("n2", "n3"), pytest.approx(NOW_S + 300.0))


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    made: list[Node] = [
        node(
            f"n{i}",
            draw(st.integers(0, 3)),
            cpu=draw(st.sampled_from([2.0, 8.0])),
            rack=draw(st.sampled_from(["", "a", "b"])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    view = view_of(made)
    for i, (one, two) in enumerate(itertools.combinations([n.id for n in made if n.gpus], 2)):
        if draw(st.integers(0, 3)) == 0:
            tasks = tuple(
                Assignment(f"worker-{k}", Role.WORKER, n, (), Resources(1.0)) for k, n in enumerate((one, two))
            )
            view.add_job(RunningJob(Job(JobId(f"r{i}"), exclusive_network=draw(st.booleans())), tasks))
    return view


WISHES = st.tuples(st.sampled_from(list(KeepTogether)), st.booleans())


@given(clusters(), WISHES, st.integers(1, 5), st.sampled_from([0, 0, 1]))
@settings(max_examples=examples(300), deadline=None)
def test_admission_and_place_agree_on_gangs_of_equal_tasks(
    view: ClusterView, wishes: tuple[KeepTogether, bool], workers: int, most: int
) -> None:
    group = TaskGroup(Role.WORKER, workers, Resources(1.0, 1.0), max_per_node=most)
    job = Job(JobId("job"), groups=(group,), keep_together=wishes[0], exclusive_network=wishes[1])
    assert (len(Pool.free(view, NOW_S).options(job)) > 0) == can_fit(job, view, context())


@given(clusters(), WISHES)
@settings(max_examples=examples(200), deadline=None)
def test_admission_offers_the_shapes_that_place_takes_and_no_others(
    view: ClusterView, wishes: tuple[KeepTogether, bool]
) -> None:
    job = elastic(1, 6, keep_together=wishes[0], exclusive_network=wishes[1])
    offered = shapes(job, view)
    for nodes, gpus in itertools.product(range(1, 5), range(1, 4)):
        if nodes * gpus > 6:
            continue
        shaped = with_groups(replace(job, shape=Shape(nodes, gpus)), view)
        assert can_fit(shaped, view, context()) == ((nodes, gpus) in offered), (nodes, gpus)
