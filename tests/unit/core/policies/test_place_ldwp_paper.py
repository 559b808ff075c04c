"""`ldwp-paper`: the paper's state alone, the task before it from the view, and who answers without a fitting net."""

from dataclasses import fields, replace

import numpy as np
import pytest
from tests.fakes.proteus_queue import cluster_of

from placewise_core.basics.arrays import Float32
from placewise_core.domain.cluster import Assignment, Node, NodeTelemetry, RunningJob
from placewise_core.domain.job import Job, JobId, NodeId, Priority, Resources, Role, Subtask, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.ldwp_paper import columns, order_of, state_of
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.printed.ldwp_paper import LdwpPaper
from placewise_core.view.view import ClusterView

TYPES = ("faces", "video")
NAMES = ("n0", "n1", "n2")


def cluster(*names: str, **telemetry: float) -> ClusterView:
    capacity = Resources(cpu_cores=8, memory_gib=48, network_gbps=10)
    reported = NodeTelemetry(**telemetry) if telemetry else NodeTelemetry()
    return cluster_of(tuple(Node(NodeId(name), capacity, telemetry=reported) for name in names or NAMES))


def pipeline(name: str, model: str = "video", size: float = 3000.0) -> Job:
    groups = (TaskGroup(Role.WORKER, 1, Resources()),)
    return Job(JobId(name), model=model, groups=groups, subtasks=(Subtask("s", "kind", size=size),))


def running(job: Job, node: str, start_s: float) -> RunningJob:
    held = Assignment("worker-0", Role.WORKER, NodeId(node), (), Resources(cpu_cores=4))
    return RunningJob(job, (held,), start_time_s=start_s)


class Net:
    """Prefers the last of its nodes."""

    nodes, types = NAMES, TYPES

    def __init__(self) -> None:
        self.asked: list[Float32] = []

    def values(self, state: Float32) -> Float32:
        self.asked.append(state)
        return np.arange(len(self.nodes), dtype=np.float32)


def value(state: Float32, name: str) -> float:
    return float(state[columns(TYPES, NAMES).index(name)])


def test_the_columns_are_the_observation_and_of_the_past_the_last_task_and_its_node() -> None:
    utilisations = ("cpu_util", "gpu_util", "memory_util", "gpu_memory_util", "uplink", "downlink")
    task = ["tid_faces", "tid_video", "tsize"]
    states = [f"s_{node}_{name}" for node in NAMES for name in utilisations]
    past = [*(f"before_{name}" for name in task), *(f"a_{node}" for node in NAMES)]
    assert list(columns(TYPES, NAMES)) == [*task, *states, *past]


def test_the_state_has_the_task_the_nodes_and_the_task_placed_last_with_its_node() -> None:
    view = cluster()
    view.add_job(running(pipeline("late", "faces", 600.0), "n2", start_s=20.0))
    view.add_job(running(pipeline("early"), "n0", start_s=10.0))
    state = state_of(pipeline("new"), view, TYPES, order_of(view, NAMES))
    assert (value(state, "tid_video"), value(state, "tid_faces"), value(state, "tsize")) == (1.0, 0.0, 0.5)
    assert [value(state, f"s_{node}_cpu_util") for node in NAMES] == pytest.approx([0.5, 0.0, 0.5])
    assert (value(state, "before_tid_faces"), value(state, "before_tsize")) == pytest.approx((1.0, 0.1))
    assert [value(state, f"a_{node}") for node in NAMES] == [0.0, 0.0, 1.0]
    empty = state_of(pipeline("new"), cluster(), TYPES, order_of(cluster(), NAMES))
    assert not empty[columns(TYPES, NAMES).index("before_tid_faces") :].any()


def test_nothing_is_read_of_a_job_but_its_type_and_size() -> None:
    view, job = cluster(), pipeline("new")
    expected = state_of(job, view, TYPES, order_of(view, NAMES))
    others = {"priority": Priority.URGENT, "total_epochs": 9.0, "params_millions": 3.0, "user": "somebody"}
    assert others.keys() <= {field.name for field in fields(Job)}
    for name, other in others.items():
        changed = replace(job, **{name: other})  # type: ignore[arg-type]
        np.testing.assert_array_equal(state_of(changed, view, TYPES, order_of(view, NAMES)), expected, name)


def test_the_task_goes_where_q_is_largest_by_the_names_of_the_nodes() -> None:
    for names in (NAMES, tuple(reversed(NAMES))):
        proposal = LdwpPaper(Net(), LoadBalance()).propose(pipeline("p"), cluster(*names), PlaceContext(0.0, 0))
        assert proposal is not None
        assert not proposal.is_fallback
        assert [a.node for a in proposal.assignments] == ["n2"]


@pytest.mark.parametrize(
    ("net", "job", "names", "reason"),
    [
        (None, pipeline("p"), NAMES, "the bundle has no net for it (placewise train ldwp-paper)"),
        (Net(), pipeline("p"), (*NAMES, "n3"), "its net is for 3 nodes, the cluster has 4"),
        (Net(), replace(pipeline("p"), subtasks=()), NAMES, "no pipeline"),
        (
            Net(),
            pipeline("p", "sound"),
            NAMES,
            "its net knows no tasks of type 'sound': set model to one of faces, video",
        ),
    ],
)
def test_without_a_fitting_net_the_heuristic_answers_and_says_why(
    net: Net | None, job: Job, names: tuple[str, ...], reason: str
) -> None:
    proposal = LdwpPaper(net, LoadBalance()).propose(job, cluster(*names), PlaceContext(0.0, 0))
    assert proposal is not None
    assert (proposal.is_fallback, proposal.fallback_reason) == (True, f"ldwp-paper: {reason}")


def test_a_broken_net_never_fails_a_call() -> None:
    class Broken(Net):
        def values(self, state: Float32) -> Float32:
            return np.full(3, np.nan, dtype=np.float32)

    proposal = LdwpPaper(Broken(), LoadBalance()).propose(pipeline("p"), cluster(), PlaceContext(0.0, 0))
    assert proposal is not None
    assert proposal.fallback_reason == "ldwp-paper: ValueError"
