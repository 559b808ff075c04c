"""Which shares say how fast units work, and what Partition makes of it."""

import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_node
from tests.fakes.proteus_queue import bundled, cluster_of

from placewise_core.domain.cluster import ClusterSettings, NodeTelemetry
from placewise_core.domain.commands import JobEvent, JobEventKind, ShareOutcome
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import NodesReported, SubtaskProfiled
from placewise_core.domain.job import JobId
from placewise_core.partition.heat_island import HeatIsland
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policies
from placewise_core.speed.learned.capability import HALVING_S, group_of
from placewise_core.speed.learned.sums import sums_of
from placewise_core.view.learned.capability import capability_additions, capability_of
from placewise_core.view.view import ClusterView

NODES = [make_node("n0", gpus=1), make_node("n1", gpus=1), make_node("c0", gpus=0)]
GPU_SHARE = ShareOutcome("sort", "n0", "gpu0", 30.0, 10.0)
TASK = DivisibleTask("t", 600.0, 0.0, 1.0, "sort")
NOW_S = 1001.0


def policy(name: str = "heat-island") -> HeatIsland:
    found = partition_policies(bundled("capability.json"))[name]
    assert isinstance(found, HeatIsland)
    return found


def ended(*shares: ShareOutcome, is_learning: bool = True) -> ClusterView:
    """A view on which these shares have ended."""
    view = cluster_of(NODES)
    view.settings = ClusterSettings(learn_capability=is_learning)
    for share in shares:
        learn(view, share)
    return view


def learn(view: ClusterView, share: ShareOutcome) -> None:
    addition = capability_of(share, view)
    assert addition is not None
    row = sums_of(view.estimates.row(addition.kind)).added(addition.value, 0.0, HALVING_S, addition.weight)
    view.apply_change(SubtaskProfiled(addition.kind, row.row))


def scales(view: ClusterView, task: DivisibleTask = TASK, name: str = "heat-island") -> dict[str, float]:
    plan = policy(name).partition(task, view, PartitionContext(NOW_S))
    return {f"{share.node}/{share.unit}": share.scale for share in plan.shares}


def test_a_share_is_of_its_kind_its_unit_and_the_type_of_its_node() -> None:
    view = cluster_of(NODES)
    addition = capability_of(GPU_SHARE, view)
    assert addition is not None
    group = group_of(addition.kind)
    assert (group.task_kind, group.node_type, group.unit) == ("sort", "1 V100, 32 cores", "gpu")
    assert addition.value == pytest.approx(math.log(3.0))
    cpu = capability_of(replace(GPU_SHARE, node="c0", unit="cpu"), view)
    assert cpu is not None
    assert (group_of(cpu.kind).node_type, group_of(cpu.kind).unit) == ("32 cores", "cpu")


@pytest.mark.parametrize(
    "changes",
    [{"node": "gone"}, {"unit": "gpu1"}, {"unit": "x"}, {"seconds": 0.0}, {"scale": 0.0}, {"seconds": 1e-300}],
)
def test_what_says_nothing_adds_nothing(changes: dict[str, object]) -> None:
    assert capability_of(replace(GPU_SHARE, **changes), cluster_of(NODES)) is None  # type: ignore[arg-type]


def test_only_ends_of_shares_count_and_each_share_once() -> None:
    view = cluster_of(NODES)
    events = [
        JobEvent(JobId("t"), JobEventKind.SHARE_FINISHED, share=GPU_SHARE),
        JobEvent(JobId("t"), JobEventKind.SHARE_MOVE_REQUESTED, share=GPU_SHARE),
        JobEvent(JobId("u"), JobEventKind.SHARE_FINISHED, share=GPU_SHARE),
        JobEvent(JobId("t"), JobEventKind.FINISHED),
    ]
    found = capability_additions(events, view)
    assert [each.once for each in found] == ["capability t/n0/gpu0/30.0", "capability u/n0/gpu0/30.0"]


def test_a_unit_that_was_faster_than_the_weights_say_gets_more() -> None:
    before, after = scales(ended()), scales(ended(*[GPU_SHARE] * 10))
    assert after["n0/gpu0"] / after["n0/cpu"] > before["n0/gpu0"] / before["n0/cpu"]
    assert sum(after.values()) == pytest.approx(TASK.parallel_scale)
    assert scales(ended(*[GPU_SHARE] * 10, is_learning=False)) == before
    assert scales(ended(*[GPU_SHARE] * 10), replace(TASK, kind="join")) == before


def test_shares_end_together_once_their_units_are_known() -> None:
    rates = {"n0/gpu0": 3.0, "n1/gpu0": 3.0, "n0/cpu": 0.2, "n1/cpu": 0.2, "c0/cpu": 0.7}
    shares = [
        ShareOutcome("sort", node, unit, rate, 1.0)
        for (node, unit), rate in ((name.split("/"), rate) for name, rate in rates.items())
        for _ in range(200)
    ]
    seconds = [scale / rates[name] for name, scale in scales(ended(*shares)).items()]
    assert max(seconds) / min(seconds) < 1.01


def test_the_answer_says_what_it_rests_on() -> None:
    view = ended(*[GPU_SHARE] * 10)
    (shown,) = policy().capabilities(view, "sort")
    assert (shown.task_kind, shown.node_type, shown.unit, shown.reports) == ("sort", "1 V100, 32 cores", "gpu", 10.0)
    assert shown.per_second == pytest.approx(3.0, rel=0.02)
    assert shown.low_per_second < shown.per_second < shown.high_per_second
    assert shown.shipped_per_second < 2.0
    learn(view, replace(GPU_SHARE, task_kind="join"))
    assert [each.task_kind for each in policy().capabilities(view, None)] == ["join", "sort"]
    assert policy().capabilities(view, "scan") == ()
    assert policy().capabilities(ended(GPU_SHARE, is_learning=False), None) == ()


def test_the_first_32_are_shown() -> None:
    kinds = [f"k{i:02}" for i in range(40)]
    shown = policy().capabilities(ended(*[replace(GPU_SHARE, task_kind=kind) for kind in kinds]), None)
    assert [each.task_kind for each in shown] == kinds[:32]


def test_the_printed_method_reads_none() -> None:
    name = "heat-island-paper"
    assert policy(name).capabilities(ended(GPU_SHARE), None) == ()
    assert scales(ended(*[GPU_SHARE] * 10), name=name) == scales(ended(), name=name)


def test_a_report_or_another_kind_or_the_setting_changes_the_next_answer_of_the_same_policy() -> None:
    view, served, context = ended(), policy(), PartitionContext(NOW_S)
    before = served.partition(TASK, view, context)
    learn(view, GPU_SHARE)
    one = served.partition(TASK, view, context)
    learn(view, replace(GPU_SHARE, seconds=5.0))
    two = served.partition(TASK, view, context)
    assert before != one != two
    assert served.partition(replace(TASK, kind="join"), view, context) == before
    assert served.partition(TASK, view, context) == two
    named = PartitionContext(NOW_S, ("n0", "n1", "c0"))
    assert served.partition(TASK, view, named).shares == two.shares
    view.settings = ClusterSettings()
    assert served.partition(TASK, view, context) == before


def test_a_unit_that_is_used_in_full_gets_nothing_still() -> None:
    view = ended(*[GPU_SHARE] * 10)
    busy = replace(NODES[0], telemetry=NodeTelemetry(gpu_util=1.0, gpu_memory_util=1.0, observe_time_s=1000.0))
    view.apply_change(NodesReported((busy,)))
    assert set(scales(view)) == {"n0/cpu", "n1/gpu0", "n1/cpu", "c0/cpu"}


def test_a_utilisation_of_the_share_before_makes_a_unit_no_weaker() -> None:
    known, warm = ended(*[GPU_SHARE] * 10), ended(*[GPU_SHARE] * 10)
    was_busy = replace(NODES[0], telemetry=NodeTelemetry(gpu_util=0.9, observe_time_s=1000.0))
    warm.apply_change(NodesReported((was_busy,)))
    assert scales(warm) == scales(known)
