"""LDWP's policy with nets made up for the purpose: its inputs, the nets it asks, and the fallback."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.place_cases import view_of

from placewise_core.basics.arrays import Float32
from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeTelemetry, RunningJob
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, Subtask, SubtaskState, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.ldwp import COLUMNS, RowEncoder, shortlist
from placewise_core.policies.ldwp import LearnedNodes
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.view.view import ClusterView


class ByColumn:
    """Values a node by one column of its row, the least first."""

    def __init__(self, column: str) -> None:
        self.column = COLUMNS.index(column)
        self.asked = 0

    def values(self, rows: Float32) -> Float32:
        self.asked = len(rows)
        return -rows[:, self.column]


def host(name: str, cores: float = 8, gpus: int = 2, model: str = "K80", util: float = 0.0) -> Node:
    return Node(
        NodeId(name),
        Resources(cores, gpus, 64, 16.0 * gpus, 10),
        tuple(Gpu(g, model, 16) for g in range(gpus)),
        telemetry=NodeTelemetry(cpu_util=util, gpu_util=util, observe_time_s=1.0),
    )


def pipeline(name: str = "new", size: float = 100.0, **profile: float) -> Job:
    subtasks = (
        Subtask("decode", "decode", size=size, profile=profile),
        Subtask("detect", "detect", ("decode",), has_gpu_version=True, profile={"speedup": 10.0, **profile}, size=size),
    )
    return Job(JobId(name), groups=(TaskGroup(Role.WORKER, 1, Resources()),), subtasks=subtasks)


def running(name: str, node: str, done: float = 0.0, **profile: float) -> RunningJob:
    job = pipeline(name, **profile)
    there = Assignment("worker-0", Role.WORKER, NodeId(node), demand=Resources())
    return RunningJob(Job(job.id, subtasks=job.subtasks, total_epochs=1.0), (there,), epochs_done=done)


def row(view: ClusterView, job: Job, name: str) -> dict[str, float]:
    found = RowEncoder().encode(job, view, [view.nodes.index[NodeId(name)]])[0]
    return dict(zip(COLUMNS, (float(value) for value in found), strict=True))


CONTEXT = PlaceContext(2.0, 0)


def test_the_task_goes_where_the_net_says() -> None:
    view = view_of([host("a"), host("b"), host("c")], [running("x", "a"), running("y", "c")])
    proposal = LearnedNodes(ByColumn("cpu_wait"), LoadBalance()).propose(pipeline(), view, CONTEXT)
    assert proposal is not None
    assert (proposal.assignments[0].node, proposal.is_fallback, proposal.propensity) == ("b", False, 1.0)


def test_a_row_in_units_of_the_mean_task() -> None:
    """One task waits on eight cores and two GPUs: of 2 s on a core and 0.2 s on a GPU at 0.02 s per unit of size."""
    view = view_of([host("a", util=0.25)], [running("x", "a")])
    seen = row(view, pipeline(), "a")
    assert seen["cpu_util"] == seen["gpu_util"] == 0.25
    mean_s = 2.0 + 0.2
    assert seen["cpu_wait"] == pytest.approx(np.log1p(2.0 / 8 / mean_s), rel=1e-5)
    assert seen["cpu_after"] == pytest.approx(np.log1p(4.0 / 8 / mean_s), rel=1e-5)
    assert seen["gpu_wait"] == pytest.approx(np.log1p(0.2 / 2 / mean_s), rel=1e-5)
    assert seen["own_gpu"] == pytest.approx(np.log1p(0.2 / mean_s), rel=1e-5)
    assert seen["tasks_per_core"] == pytest.approx(1 / 8)


def test_rows_do_not_depend_on_the_unit_of_size() -> None:
    nodes = [host("a"), host("b", model="P4")]
    small = view_of(nodes, [running("x", "a", size=50.0)])
    large = view_of(nodes, [running("x", "a", size=5e6)])
    for name in ("a", "b"):
        assert row(small, pipeline(size=100.0), name) == pytest.approx(row(large, pipeline(size=1e7), name), rel=1e-5)


def test_measured_times_and_reported_progress_count() -> None:
    view = view_of([host("a")], [running("x", "a", core_s=0.02), running("y", "a", core_s=0.2)])
    slow = row(view, pipeline(core_s=0.02), "a")
    half = view_of([host("a")], [running("x", "a", core_s=0.02), running("y", "a", 0.5, core_s=0.2)])
    gone = row(half, pipeline(core_s=0.02), "a")
    assert gone["cpu_wait"] < slow["cpu_wait"]
    assert gone["gpu_wait"] == pytest.approx(slow["gpu_wait"])
    assert row(half, pipeline(), "a")["tasks_per_core"] == pytest.approx(2 / 8)


def test_done_subtasks_and_nodes_without_gpus() -> None:
    view = view_of([host("a"), host("b", gpus=0)])
    job = pipeline()
    decoded = replace(job.subtasks[0], state=SubtaskState.DONE)
    done = replace(job, subtasks=(decoded, job.subtasks[1]))
    assert row(view, done, "a")["own_cpu"] == 0.0
    assert row(view, job, "b")["own_gpu"] > row(view, job, "a")["own_gpu"]
    assert np.isfinite(list(row(view, job, "b").values())).all()


def test_the_order_of_nodes_does_not_matter() -> None:
    nodes, jobs = [host("a"), host("b", model="P4"), host("c", cores=4)], [running("x", "b")]
    one, other = view_of(nodes, jobs), view_of(nodes[::-1], jobs)
    for name in ("a", "b", "c"):
        assert row(one, pipeline(), name) == row(other, pipeline(), name)


def test_of_many_nodes_the_least_used_are_looked_at() -> None:
    nodes = [host(f"n{i:02d}", util=i / 100) for i in range(40)]
    view, net = view_of(nodes), ByColumn("cpu_util")
    proposal = LearnedNodes(net, LoadBalance(), most_nodes=8).propose(pipeline(), view, CONTEXT)
    assert net.asked == 8
    assert proposal is not None
    assert proposal.assignments[0].node == "n00"
    assert list(shortlist(view, np.ones(40, dtype=bool), 3)) == [0, 1, 2]


class Broken:
    def __init__(self, answer: object) -> None:
        self.answer = answer

    def values(self, rows: Float32) -> Float32:
        if isinstance(self.answer, Exception):
            raise self.answer
        return np.asarray(self.answer, dtype=np.float32)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(RuntimeError("torn"), "RuntimeError"), ([np.nan, 1.0], "ValueError"), ([1.0], "ValueError")],
)
def test_a_net_that_fails_costs_no_decision(answer: object, reason: str) -> None:
    view = view_of([host("a"), host("b")], [running("x", "a")])
    before = view.usage.task_count.copy()
    proposal = LearnedNodes(Broken(answer), LoadBalance()).propose(pipeline(), view, CONTEXT)
    assert proposal is not None
    assert (proposal.is_fallback, proposal.fallback_reason) == (True, f"ldwp: {reason}")
    np.testing.assert_array_equal(view.usage.task_count, before)


def test_what_is_no_pipeline_and_what_is_late_the_heuristic_places() -> None:
    view, policy = view_of([host("a"), host("b")]), LearnedNodes(ByColumn("cpu_wait"), LoadBalance())
    plain = Job(JobId("j"), groups=(TaskGroup(Role.WORKER, 2, Resources(cpu_cores=1)),))
    assert (found := policy.propose(plain, view, CONTEXT)) is not None
    assert found.fallback_reason == "ldwp: no pipeline"
    late = LearnedNodes(ByColumn("cpu_wait"), LoadBalance(), monotonic_s=lambda: 10.0)
    assert (found := late.propose(pipeline(), view, PlaceContext(2.0, 0, deadline_s=10.0))) is not None
    assert found.fallback_reason == "ldwp: deadline"


def test_nothing_fits_nothing_is_placed_and_reasons_name_columns() -> None:
    view, policy = view_of([host("a", cores=2)]), LearnedNodes(ByColumn("cpu_wait"), LoadBalance())
    small = pipeline()
    large = Job(small.id, groups=(TaskGroup(Role.WORKER, 1, Resources(9)),), subtasks=small.subtasks)
    assert policy.propose(large, view, CONTEXT) is None
    explained = policy.propose(small, view, PlaceContext(2.0, 0, is_explaining=True))
    assert explained is not None
    assert [name for name, _ in explained.candidates[0].terms] == list(COLUMNS)
