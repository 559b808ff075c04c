"""Which reports of progress say something of disturbance, and of which row."""

import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords, JobsEnded, NodesReported
from placewise_core.domain.job import NodeId, Resources, Role
from placewise_core.speed.learned.disturbance import Group
from placewise_core.view.disturbance import disturbance_of, is_wide, wide_beside
from placewise_core.view.view import ClusterView

GROUP = Group("resnet50", "T4", 64, 2, 2, 2)


def view_of(*others: RunningJob) -> ClusterView:
    nodes = (*[make_node(f"n{i}", gpu_model="T4") for i in range(4)], make_node("v0", gpu_model="V100"))
    return ClusterView(ClusterRecords("c", 1, "e", nodes=nodes, jobs=others))


def running(*spots: tuple[str, int], name: str = "a", gpus: float = 1.0, **changes: object) -> RunningJob:
    job = replace(make_job(name), **{"dataset_size": 1000, "batch_size": 64, **changes})  # type: ignore[arg-type]
    tasks = [
        Assignment(f"w{i}", Role.WORKER, NodeId(node), (g,), Resources(gpus=gpus)) for i, (node, g) in enumerate(spots)
    ]
    return RunningJob(job, tuple(tasks))


WIDE = running(("n0", 0), ("n1", 0))


@pytest.mark.parametrize(
    ("other", "is_beside"),
    [
        (None, False),
        (running(("n1", 1), ("n2", 0), name="b"), True),
        (running(("n1", 1), ("n1", 2), name="b"), False),
        (running(("n2", 1), ("n3", 2), name="b"), False),
    ],
    ids=["nobody", "a gang on two nodes", "a gang on one node", "a gang elsewhere"],
)
def test_the_row_says_whether_another_gang_on_several_nodes_is_beside(
    other: RunningJob | None, is_beside: bool
) -> None:
    addition = disturbance_of(WIDE, 0.5, 2.0, view_of(WIDE, *([] if other is None else [other])))
    assert addition is not None
    assert addition.kind == GROUP.kind(is_beside=is_beside)
    assert (addition.value, addition.weight) == (math.log(500.0), 1.0)


def test_a_later_report_weighs_as_its_share_of_the_work() -> None:
    addition = disturbance_of(replace(WIDE, speed=0.5, epochs_done=3.0), 0.5, 4.0, view_of(WIDE))
    assert addition is not None
    assert addition.weight == 0.25


@pytest.mark.parametrize(
    "job",
    [
        running(("n0", 0), ("n0", 1)),
        running(("n0", 0), ("n1", 0), dataset_size=0),
        running(("n0", 0), ("n1", 0), gpus=0.5),
        running(("n0", 0), ("v0", 0)),
        running(("n0", 0), ("gone", 0)),
        running(),
    ],
    ids=["one node", "no data set", "parts of GPUs", "two GPU types", "unknown node", "nowhere"],
)
def test_reports_of_other_jobs_do_not_count(job: RunningJob) -> None:
    assert disturbance_of(job, 0.5, 1.0, view_of()) is None


def test_a_job_that_shares_a_gpu_does_not_count() -> None:
    tenant = running(("n1", 0), name="b")
    assert disturbance_of(WIDE, 0.5, 1.0, view_of(WIDE, tenant)) is None


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_a_speed_that_is_none_does_not_count(speed: float) -> None:
    assert disturbance_of(WIDE, speed, 1.0, view_of(WIDE)) is None


def test_a_job_is_wide_on_two_nodes() -> None:
    narrow = running(("n2", 0), ("n2", 1), name="b")
    view = view_of(WIDE, narrow)
    assert (is_wide(WIDE.id, view), is_wide(narrow.id, view)) == (True, False)


def test_the_view_counts_the_gangs_on_several_nodes_through_every_change() -> None:
    narrow, other = running(("n2", 0), ("n2", 1), name="b"), running(("n1", 1), ("n3", 0), ("n1", 2), name="c")
    view = view_of(WIDE, narrow)
    assert view.gangs_on.tolist() == [1, 1, 0, 0, 0]
    fork = view.fork()
    fork.add_job(other)
    assert (fork.gangs_on.tolist(), view.gangs_on.tolist()) == ([1, 2, 0, 1, 0], [1, 1, 0, 0, 0])
    view.add_job(other)
    view.add_job(other)
    assert view.gangs_on.tolist() == [1, 2, 0, 1, 0]
    assert not view.emptied().gangs_on.any()
    moved = replace(other, assignments=running(("n0", 1), ("n3", 0), name="c").assignments)
    view.add_job(moved)
    assert view.gangs_on.tolist() == [2, 1, 0, 1, 0]
    view.apply_change(NodesReported((), (NodeId("n0"),)))
    assert view.gangs_on.tolist() == [1, 0, 1, 0]
    view.apply_change(JobsEnded((moved.id, WIDE.id)))
    assert not view.gangs_on.any()


def test_a_job_whose_tasks_are_claimed_before_it_is_held_is_beside_nobody_yet() -> None:
    view, coming = view_of(WIDE), running(("n1", 1), ("n2", 0), name="b")
    for task in coming.assignments:
        view.usage.claim(coming.job, task)
    assert wide_beside({0, 1, 2}, view) == {WIDE.id}
