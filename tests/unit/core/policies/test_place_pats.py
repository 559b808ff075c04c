"""PATS on nodes, for pipelines: the idle speed of cores and GPUs over the tasks there, as the simulator scores it."""

import pytest
from tests.fakes.place_cases import context, node, running, view_of

from placewise_core.domain.cluster import Node, NodeTelemetry
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, JobId, Resources, Role, Subtask, TaskGroup
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import ClusterView

PATS = placement_policies()["pats"]


def pipeline(speedup: float | None) -> Job:
    """One stage for cores alone, one that is so much faster on a GPU; None: the store may know."""
    profile = {} if speedup is None else {"speedup": speedup}
    subtasks = (Subtask("cut", "cut"), Subtask("detect", "detect", has_gpu_version=True, profile=profile))
    return Job(JobId("p"), groups=(TaskGroup(Role.WORKER, 1, Resources()),), subtasks=subtasks)


def chosen(view: ClusterView, speedup: float | None) -> str:
    proposal = PATS.propose(pipeline(speedup), view, context(is_explaining=True))
    assert proposal is not None
    return proposal.assignments[0].node


def cores() -> Node:
    return node("cores", gpus=0, cpu=40)


def test_the_speedup_decides_between_cores_and_gpus() -> None:
    """40 cores against 8 cores and 4 GPUs of speedup s: the GPUs win above s = 8."""
    view = view_of([cores(), node("gpus", gpus=4, cpu=8)])
    assert [chosen(view, s) for s in (1.0, 7.0, 9.0, 30.0)] == ["cores", "cores", "gpus", "gpus"]


def test_a_speedup_of_the_store_counts() -> None:
    view = view_of([cores(), node("gpus", gpus=4, cpu=8)])
    assert chosen(view, None) == "cores"
    view.apply_change(SubtaskProfiled("detect", {"speedup": 20.0}))
    assert chosen(view, None) == "gpus"


@pytest.mark.parametrize("busy", [{"cpu_util": 0.9}, {"gpu_util": 0.9}])
def test_of_equal_nodes_the_idler_one(busy: dict[str, float]) -> None:
    assert chosen(view_of([node("a", telemetry=NodeTelemetry(**busy)), node("b")]), 5.0) == "b"


def test_of_equal_nodes_the_one_with_fewer_tasks() -> None:
    assert chosen(view_of([node("a"), node("b")], [running("r", "a", (), Resources())]), 5.0) == "b"
