"""Reasons of an unplaced job: outcome, codes, numbers and order."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.place_cases import arrays, context, gang, node, running, view_of

from placewise_core.domain.cluster import Gpu, Node, NodeState, NodeTelemetry
from placewise_core.domain.decision import Blocker, Outcome, Reason
from placewise_core.domain.job import GpuSharing, Job, Resources, Role, TaskGroup
from placewise_core.gang import why
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.view.view import ClusterView

HOT = NodeTelemetry(gpu_celsius=95, limit_celsius=90, observe_time_s=999)
STALE = NodeTelemetry(gpu_celsius=40, limit_celsius=90, observe_time_s=100)


def explain(job: Job, view: ClusterView, ctx: PlaceContext | None = None) -> tuple[Outcome, list[Blocker]]:
    outcome, blockers = why.explain(job, view, ctx or context())
    return outcome, list(blockers)


def reasons(blockers: list[Blocker]) -> list[Reason]:
    return [blocker.reason for blocker in blockers]


def test_an_empty_cluster() -> None:
    outcome, blockers = explain(gang(), view_of([]))
    assert (outcome, reasons(blockers)) == (Outcome.NO_FIT, [Reason.EMPTY_CLUSTER])


def test_more_gpus_than_any_node_has_can_never_fit() -> None:
    outcome, blockers = explain(gang(workers=1, gpus=6), view_of([node("a"), node("b", gpus=2)]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.nodes, b.shortfall, b.resource) for b in blockers] == [
        (Reason.INSUFFICIENT_GPU, 2, 2.0, "gpus")
    ]


def test_more_tasks_than_the_cluster_has_room_for_can_never_fit() -> None:
    outcome, blockers = explain(gang(workers=3, gpus=3), view_of([node("a"), node("b")]))
    assert outcome is Outcome.NO_FIT
    assert blockers[-1].reason is Reason.INSUFFICIENT_GPU
    assert blockers[-1].shortfall == 2.0


def test_taken_gpus_are_waited_for() -> None:
    view = view_of([node("a"), node("b")], [running("r1", "a", [0, 1, 2, 3]), running("r2", "b", [0, 1, 2])])
    outcome, blockers = explain(gang(workers=1, gpus=2), view)
    assert outcome is Outcome.WAIT
    assert [(b.reason, b.nodes, b.shortfall) for b in blockers] == [(Reason.INSUFFICIENT_GPU, 2, 1.0)]


def test_enough_in_sum_and_on_no_node_is_fragmentation() -> None:
    view = view_of([node("a"), node("b")], [running("r1", "a", [0, 1, 2]), running("r2", "b", [0, 1, 2])])
    outcome, blockers = explain(gang(workers=1, gpus=2), view)
    assert outcome is Outcome.WAIT
    assert reasons(blockers) == [Reason.FRAGMENTED, Reason.INSUFFICIENT_GPU]
    assert (blockers[0].nodes, blockers[0].resource) == (2, "gpus")


def test_each_resource_has_its_reason_and_its_least_shortfall() -> None:
    demand = Resources(40, 1, 200, 20, 60)
    job = Job(gang().id, groups=(TaskGroup(Role.WORKER, 1, demand),))
    _, blockers = explain(job, view_of([node("a"), node("b", cpu=36)]))
    found = {(b.reason, b.nodes, b.shortfall) for b in blockers}
    assert found == {
        (Reason.INSUFFICIENT_CPU, 2, 4.0),
        (Reason.INSUFFICIENT_MEMORY, 2, 72.0),
        (Reason.INSUFFICIENT_NETWORK, 2, 10.0),
        (Reason.INSUFFICIENT_GPU_MEMORY, 2, 4.0),
    }


def test_gpu_memory_is_judged_per_gpu() -> None:
    """64 GiB on the node, 16 on each GPU."""
    outcome, blockers = explain(gang(workers=1, gpus=2, gpu_memory_gib=40), view_of([node("a")]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.shortfall) for b in blockers] == [(Reason.INSUFFICIENT_GPU_MEMORY, 4.0)]


def test_what_is_missing_alone_comes_first() -> None:
    """CPU is all that two nodes lack; memory is lacking on one, and not alone."""
    full = Resources(30, 1, 124, 0, 1)
    cpu = Resources(30, 1, 8, 0, 1)
    view = view_of(
        [node("a"), node("b"), node("c")],
        [running("r1", "a", [0], cpu), running("r2", "b", [0], cpu), running("r3", "c", [0], full)],
    )
    _, blockers = explain(gang(workers=1, cpu=4), view)
    assert [r for r in reasons(blockers) if r is not Reason.FRAGMENTED] == [
        Reason.INSUFFICIENT_CPU,
        Reason.INSUFFICIENT_MEMORY,
    ]


def test_an_unknown_extended_resource_names_itself() -> None:
    job = Job(gang().id, groups=(TaskGroup(Role.WORKER, 1, Resources(1, extended={"fpga": 2.0})),))
    outcome, blockers = explain(job, view_of([node("a")]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.resource, b.shortfall, b.nodes) for b in blockers] == [
        (Reason.INSUFFICIENT_EXTENDED, "fpga", 2.0, 1)
    ]


def test_a_known_extended_resource_runs_short() -> None:
    host = replace(node("a"), capacity=replace(node("a").capacity, extended={"fpga": 1.0}))
    job = Job(gang().id, groups=(TaskGroup(Role.WORKER, 1, Resources(1, extended={"fpga": 2.0})),))
    outcome, blockers = explain(job, view_of([host]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.resource, b.shortfall) for b in blockers] == [(Reason.INSUFFICIENT_EXTENDED, "fpga", 1.0)]


def test_selector_and_model_that_no_node_meets() -> None:
    view = view_of([node("a", labels={"zone": "x"})])
    outcome, blockers = explain(gang(group={"node_selector": {"zone": "y"}}), view)
    assert (outcome, reasons(blockers)) == (Outcome.NO_FIT, [Reason.SELECTOR_MISMATCH])
    outcome, blockers = explain(gang(group={"gpu_model": "H100"}), view)
    assert (outcome, reasons(blockers)) == (Outcome.NO_FIT, [Reason.GPU_MODEL_MISMATCH])


def test_nodes_another_model_or_label_excludes_come_last() -> None:
    view = view_of([node("a"), node("b", model="K80"), node("c", model="K80")], [running("r", "a", [0, 1, 2, 3])])
    outcome, blockers = explain(gang(workers=1, group={"gpu_model": "V100"}), view)
    assert outcome is Outcome.WAIT
    assert [(b.reason, b.nodes) for b in blockers] == [
        (Reason.INSUFFICIENT_GPU, 1),
        (Reason.GPU_MODEL_MISMATCH, 2),
    ]


def test_nodes_with_room_that_may_not_be_used_come_first_most_of_them_first() -> None:
    view = view_of(
        [
            node("down1", state=NodeState.DOWN),
            node("down2", state=NodeState.DOWN),
            node("down3", state=NodeState.DOWN),
            node("drain1", state=NodeState.DRAINING),
            node("drain2", state=NodeState.DRAINING),
            node("hot", telemetry=HOT),
            node("full"),
        ],
        [running("r", "full", [0, 1, 2, 3])],
    )
    outcome, blockers = explain(gang(workers=1), view)
    assert outcome is Outcome.WAIT
    assert [(b.reason, b.nodes) for b in blockers] == [
        (Reason.NODE_DOWN, 3),
        (Reason.NODE_DRAINING, 2),
        (Reason.THERMAL_LIMIT, 1),
        (Reason.INSUFFICIENT_GPU, 1),
    ]
    assert blockers[2].shortfall == pytest.approx(5.0)


def test_stale_telemetry_is_named_with_its_age_over_the_limit() -> None:
    outcome, blockers = explain(gang(workers=1), view_of([node("a", telemetry=STALE)]))
    assert outcome is Outcome.WAIT
    assert [(b.reason, b.nodes, b.shortfall) for b in blockers] == [(Reason.STALE_TELEMETRY, 1, 1000 - 100 - 90)]


def test_a_down_node_without_room_is_no_reason() -> None:
    taken = [running("r", "a", [0, 1, 2, 3]), running("s", "b", [0, 1, 2, 3])]
    view = view_of([node("a", state=NodeState.DOWN), node("b")], taken)
    assert Reason.NODE_DOWN not in reasons(explain(gang(workers=1), view)[1])


def test_max_per_node() -> None:
    outcome, blockers = explain(gang(workers=3, group={"max_per_node": 1}), view_of([node("a"), node("b")]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.nodes) for b in blockers] == [(Reason.MAX_PER_NODE, 2)]


def test_slowdown_limit() -> None:
    tolerant, strict = GpuSharing(True, 4.0), GpuSharing(True, 1.05)
    view = view_of(
        [node("a", gpus=1, max_jobs_per_gpu=2)], [running("r", "a", [0], model="resnet50", gpu_sharing=tolerant)]
    )
    job = gang(workers=1, model="resnet50", sharing=strict)
    outcome, blockers = explain(job, view, context(interference=packaged_tables().interference))
    assert (outcome, reasons(blockers)) == (Outcome.WAIT, [Reason.SLOWDOWN_LIMIT])
    assert blockers[0].nodes == 1


def test_the_second_group_is_judged_on_what_the_first_leaves() -> None:
    """Two workers fit, two servers fit, not both."""
    job = gang(workers=2, cpu=12, servers=2)
    outcome, blockers = explain(job, view_of([node("a", cpu=40)]))
    assert outcome is Outcome.NO_FIT
    assert [(b.reason, b.shortfall) for b in blockers] == [(Reason.INSUFFICIENT_CPU, 8.0)]


def test_a_policy_that_found_nothing_where_best_fit_would() -> None:
    outcome, blockers = explain(gang(), view_of([node("a")]))
    assert (outcome, reasons(blockers)) == (Outcome.WAIT, [Reason.FRAGMENTED])


def test_explaining_changes_nothing() -> None:
    view = view_of([node("a"), node("b")], [running("r", "a", [0, 1])])
    before = arrays(view)
    explain(gang(workers=9), view)
    explain(gang(workers=7), view)
    for name, value in arrays(view).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert list(view.jobs) == ["r"]


def test_a_fraction_that_no_gpu_has_left() -> None:
    share = GpuSharing(True, 10.0)
    taken = Resources(1, 0.75, 1)
    host = Node(node("a").id, Resources(32, 1, 64, 16, 10), (Gpu(0, "V100", 16),), max_jobs_per_gpu=4)
    view = view_of([host], [running("r", "a", [0], taken, gpu_sharing=share)])
    outcome, blockers = explain(gang(workers=1, gpus=0.5, sharing=share), view)
    assert outcome is Outcome.WAIT
    assert [(b.reason, b.shortfall) for b in blockers] == [(Reason.INSUFFICIENT_GPU, 0.25)]


def test_among_equals_the_smallest_relative_shortfall_comes_first() -> None:
    """Both are short on the one node there is: a tenth of the memory, half of the CPU."""
    job = Job(gang().id, groups=(TaskGroup(Role.WORKER, 1, Resources(64, 0, 142)),))
    _, blockers = explain(job, view_of([node("a")]))
    assert reasons(blockers) == [Reason.INSUFFICIENT_MEMORY, Reason.INSUFFICIENT_CPU]


def test_the_table_of_reasons_is_complete() -> None:
    table = (Path(__file__).parents[4] / "docs" / "reasons.md").read_text("utf-8")
    reasons = sorted(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE))
    assert reasons == sorted(Reason), "docs/reasons.md has one row for each reason"
