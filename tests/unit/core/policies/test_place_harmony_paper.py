"""`harmony-paper`: the paper's inputs alone, earlier jobs of a batch as jobs, and who answers without a fitting net."""

from dataclasses import fields, replace

import numpy as np
import pytest
from tests.fakes.proteus_queue import cluster_of

from placewise_core.basics.arrays import Float32
from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeTelemetry, RunningJob
from placewise_core.domain.job import Architecture, Job, JobId, NodeId, Priority, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.inputs.harmony_paper import PaperRows, columns
from placewise_core.inputs.tables import MODEL_VOCABULARY
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.printed.harmony_paper import HarmonyPaper
from placewise_core.view.view import ClusterView

WORKER = Resources(cpu_cores=2, gpus=1, memory_gib=8, network_gbps=5)
SERVER = Resources(cpu_cores=1, memory_gib=4, network_gbps=10)
M = 3


def cluster(size: int = M, **telemetry: float) -> ClusterView:
    capacity = Resources(cpu_cores=8, gpus=2, memory_gib=48, network_gbps=50)
    gpus = tuple(Gpu(g, "V100", 16) for g in range(2))
    reported = NodeTelemetry(**telemetry) if telemetry else NodeTelemetry()
    return cluster_of(tuple(Node(NodeId(f"n{i}"), capacity, gpus, telemetry=reported) for i in range(size)))


def gang(name: str, workers: int = 1, servers: int = 0, model: str = "vgg16") -> Job:
    groups = (TaskGroup(Role.WORKER, workers, WORKER), TaskGroup(Role.PARAMETER_SERVER, servers, SERVER))
    return Job(JobId(name), model=model, groups=groups if servers else groups[:1])


class Net:
    """Takes the first node that is open; keeps the rows it was asked about."""

    nodes = M

    def __init__(self) -> None:
        self.asked: list[Float32] = []

    def logits(self, rows: Float32) -> Float32:
        self.asked.append(rows.copy())
        return np.arange(2 * M, 0, -1, dtype=np.float32)


def value(row: Float32, name: str) -> float:
    return float(row[columns(M).index(name)])


def place(policy: HarmonyPaper, view: ClusterView, *jobs: Job) -> None:
    """As the service places a request: each job is on the view when the next is asked about."""
    context = PlaceContext(0.0, 0)
    for job in policy.order(jobs, view, context):
        proposal = policy.propose(job, view, context)
        assert proposal is not None
        assert not proposal.is_fallback, proposal.fallback_reason
        view.add_job(RunningJob(job, proposal.assignments))


def test_the_columns_are_x_r_w_p_v_d_u_and_no_others() -> None:
    kinds = ("cpu", "memory", "network", "gpus")
    x = [f"x_{model}" for model in MODEL_VOCABULARY]
    r = [f"r_{role}_{of}" for role in ("worker", "server") for of in ("count", *kinds)]
    v = [f"v_{m}_{kind}" for m in range(M) for kind in kinds]
    d = [f"d_{m}_{role}" for m in range(M) for role in ("worker", "server")]
    assert list(columns(M)) == [*x, *r, "w", "p", *v, *d, "u"]


def test_a_row_says_type_demand_placement_free_resources_and_that_the_job_is_new() -> None:
    view, policy, net = cluster(), None, Net()
    policy = HarmonyPaper(net, Consolidate())
    place(policy, view, gang("a", workers=2, servers=1))
    first, second, third = (rows[0] for rows in net.asked)
    assert value(first, "x_vgg16") == 1.0
    assert first[: len(MODEL_VOCABULARY)].sum() == 1.0
    assert [value(first, f"r_worker_{k}") for k in ("count", "cpu", "memory", "network", "gpus")] == pytest.approx(
        [0.5, 2 / 8, 8 / 48, 5 / 50, 1 / 2]
    )
    assert value(first, "r_server_count") == pytest.approx(0.25)
    assert [value(row, "w") for row in (first, second, third)] == pytest.approx([0.0, 0.25, 0.5])
    assert [value(row, "d_0_worker") for row in (first, second, third)] == pytest.approx([0.0, 0.25, 0.5])
    assert [value(row, "v_0_gpus") for row in (first, second, third)] == pytest.approx([1.0, 0.5, 0.0])
    assert [value(row, "v_0_cpu") for row in (first, second, third)] == pytest.approx([1.0, 0.75, 0.5])
    assert value(third, "u") == 1.0


def test_jobs_placed_earlier_in_a_batch_are_seen_as_jobs() -> None:
    view, net = cluster(), Net()
    view.add_job(RunningJob(gang("old"), (Assignment("worker-0", Role.WORKER, NodeId("n2"), (0,), WORKER),)))
    place(HarmonyPaper(net, Consolidate()), view, gang("a"), gang("b", model="resnet50"))
    before, after = net.asked
    assert before.shape == after.shape == (3, len(columns(M)))
    assert [value(row, "u") for row in before] == [1.0, 1.0, 0.0]
    assert before[1, columns(M).index("w")] == 0.0
    (of_a,) = [row for row in after[1:] if value(row, "u")]
    assert (value(of_a, "x_vgg16"), value(of_a, "w"), value(of_a, "d_0_worker")) == pytest.approx((1.0, 0.25, 0.25))
    (of_old,) = [row for row in after[1:] if not value(row, "u")]
    assert value(of_old, "d_2_worker") == pytest.approx(0.25)


def test_nothing_is_read_of_a_job_but_the_papers_inputs() -> None:
    def rows(job: Job, view: ClusterView) -> Float32:
        return PaperRows(Gang(job, view, PlaceContext(0.0, 0)), ()).rows

    job = gang("a", workers=2)
    others = {
        "architecture": Architecture.PARAMETER_SERVER,
        "priority": Priority.URGENT,
        "params_millions": 99.0,
        "batch_size": 512,
        "total_epochs": 7.0,
        "dataset_size": 1000,
        "single_gpu_s": 3600.0,
        "submit_time_s": 12.0,
        "user": "somebody",
    }
    known = {field.name for field in fields(Job)}
    expected = rows(job, cluster())
    for name, other in others.items():
        assert name in known
        np.testing.assert_array_equal(rows(replace(job, **{name: other}), cluster()), expected, name)  # type: ignore[arg-type]
    hot = cluster(cpu_util=0.9, gpu_util=0.9, gpu_celsius=80.0, observe_time_s=0.0)
    np.testing.assert_array_equal(rows(job, hot), expected)


@pytest.mark.parametrize(
    ("net", "size", "reason"),
    [
        (None, M, "harmony-paper: the bundle has no net for it (placewise train harmony-paper)"),
        (Net(), M + 1, "harmony-paper: its net is for 3 nodes, the cluster has 4"),
    ],
)
def test_without_a_fitting_net_the_heuristic_answers_and_says_why(net: Net | None, size: int, reason: str) -> None:
    view, context, job = cluster(size), PlaceContext(0.0, 0), gang("a")
    proposal = HarmonyPaper(net, Consolidate()).propose(job, view, context)
    assert proposal is not None
    assert (proposal.is_fallback, proposal.fallback_reason) == (True, reason)
    expected = Consolidate().propose(job, view, context)
    assert expected is not None
    assert proposal.assignments == expected.assignments


def test_a_broken_net_never_fails_a_call() -> None:
    class Broken(Net):
        def logits(self, rows: Float32) -> Float32:
            return np.full(2 * M, np.nan, dtype=np.float32)

    proposal = HarmonyPaper(Broken(), Consolidate()).propose(gang("a"), cluster(), PlaceContext(0.0, 0))
    assert proposal is not None
    assert proposal.fallback_reason == "harmony-paper: PolicyNetError"
