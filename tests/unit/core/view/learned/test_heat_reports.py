"""Which reports of nodes say how they warm up, and what Partition makes of it."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import make_node
from tests.fakes.proteus_queue import bundled, cluster_of

from placewise_core.domain.cluster import ClusterSettings, Node, NodeTelemetry
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import NodesReported, SubtaskProfiled
from placewise_core.partition.policy import PartitionContext
from placewise_core.partition.registry import partition_policies
from placewise_core.speed.learned.heat import HALVING_S
from placewise_core.speed.learned.sums import Addition, Sums, sums_of
from placewise_core.view.learned.heat import heat_additions, type_of
from placewise_core.view.view import ClusterView

BUSY = NodeTelemetry(
    gpu_util=0.9, cpu_util=0.1, gpu_celsius=50.0, cpu_celsius=40.0, power_watts=1000.0, ambient_celsius=25.0,
    limit_celsius=120.0, observe_time_s=1000.0,
)  # fmt: skip


def at(time_s: float, celsius: float = 50.0, **changes: float) -> Node:
    return make_node("n0", telemetry=replace(BUSY, observe_time_s=time_s, gpu_celsius=celsius, **changes))


def kinds(*additions: Addition) -> set[tuple[str, str]]:
    return {(parts[3], parts[5]) for each in additions if (parts := each.kind.split("\x1f"))}


def test_two_reports_of_equal_load_count_for_gpu_and_cpu() -> None:
    found = heat_additions([(at(1000.0), at(1010.0, 52.0))])
    steps = {(unit, name) for unit in ("gpu", "cpu") for name in ("flow", "change", "balance")}
    assert kinds(*found) == steps | {("gpu", "busy")}


@pytest.mark.parametrize(
    "later",
    [
        at(1000.0),  # the same report
        at(999.0),  # an older one
        replace(at(1010.0), capacity=replace(at(0.0).capacity, cpu_cores=8.0)),  # another type of node
    ],
)
def test_what_says_nothing_adds_nothing(later: Node) -> None:
    assert not heat_additions([(at(1000.0), later)])


@pytest.mark.parametrize("later", [at(1010.0, power_watts=600.0), at(1061.0), at(1010.0, 900.0, cpu_celsius=900.0)])
def test_other_loads_long_gaps_and_broken_sensors_show_no_step(later: Node) -> None:
    assert {name for _, name in kinds(*heat_additions([(at(1000.0), later)]))} <= {"busy"}


def test_without_power_the_load_is_the_utilisation() -> None:
    unknown = float("nan")
    found = heat_additions([(at(1000.0, power_watts=unknown), at(1005.0, power_watts=unknown))])
    busy = [each for each in found if each.kind.endswith("busy")]
    assert [each.value for each in busy] == [pytest.approx(0.2 + 0.8 * 0.9)]
    assert all("utilisation" in each.kind for each in found)


def test_additions_of_many_nodes_keep_the_sums_of_each_row() -> None:
    pairs = [(at(1000.0, 50.0), at(1005.0, 50.0 + i, power_watts=1000.0 + i)) for i in range(30)]
    each = [addition for pair in pairs for addition in heat_additions([pair])]
    together = heat_additions(pairs)
    assert len(together) <= 2 * len({addition.kind for addition in each})
    for kind in {addition.kind for addition in each}:
        one, all_at_once = (_sums(kind, some) for some in (each, together))
        assert (one.count, one.sum) == (pytest.approx(all_at_once.count), pytest.approx(all_at_once.sum))
        assert one.squares == pytest.approx(all_at_once.squares)


def _sums(kind: str, additions: list[Addition]) -> Sums:
    sums = Sums()
    for each in additions:
        if each.kind == kind:
            sums = sums.added(each.value, 0.0, HALVING_S, each.weight)
    return sums


def hot_view(*, is_learning: bool) -> ClusterView:
    """Nodes whose GPUs rise 80 °C under load, more than the bundle thinks."""
    view = cluster_of([replace(at(1000.0), id=at(0.0).id)])
    view.settings = ClusterSettings(learn_heat=is_learning)
    for i in range(40):
        pair = at(1000.0, 105.0), at(1005.0, 105.0)
        for addition in heat_additions([pair]):
            row = sums_of(view.estimates.row(addition.kind)).added(addition.value, float(i), HALVING_S, addition.weight)
            view.apply_change(SubtaskProfiled(addition.kind, row.row))
    return view


def test_partition_forecasts_by_the_learned_constants_if_the_setting_is_on() -> None:
    policy = partition_policies(bundled("capability.json"))["heat-island"]
    task = DivisibleTask("t", 20.0, 0.0, 1.0)
    off, on = (hot_view(is_learning=how) for how in (False, True))
    context = PartitionContext(1001.0, ("n0/gpu0",))
    cool, hot = (policy.partition(task, view, context).shares[0].predicted_peak_celsius for view in (off, on))
    assert hot > cool
    assert policy.learned(off) == ()
    (gpu,) = [each for each in policy.learned(on) if each.unit == "gpu"]
    assert gpu.node_type == type_of(at(0.0)) == "4 V100, 32 cores"
    assert gpu.rise_celsius == pytest.approx(80.0, rel=0.05)
    assert gpu.low_celsius < gpu.rise_celsius < gpu.high_celsius
    assert gpu.shipped_celsius == pytest.approx(41.4, abs=0.1)
    assert gpu.shipped_s == 60.0


def test_a_change_of_the_sums_or_of_the_setting_changes_the_forecast_at_once() -> None:
    policy = partition_policies(bundled("capability.json"))["heat-island"]
    view, task = hot_view(is_learning=False), DivisibleTask("t", 20.0, 0.0, 1.0)
    context = PartitionContext(1001.0)
    before = policy.partition(task, view, context)
    view.settings = ClusterSettings(learn_heat=True)
    assert policy.partition(task, view, context) != before


def test_the_printed_method_reads_no_heat() -> None:
    policy = partition_policies(bundled("capability.json"))["heat-island-paper"]
    assert policy.learned(hot_view(is_learning=True)) == ()


def test_a_node_that_comes_later_is_of_its_type() -> None:
    policy = partition_policies(bundled("capability.json"))["heat-island"]
    view = hot_view(is_learning=True)
    view.apply_change(NodesReported((replace(at(1000.0), id=make_node("n1").id),)))
    shares = policy.partition(DivisibleTask("t", 20.0, 0.0, 1.0), view, PartitionContext(1001.0, ("n1/gpu0",))).shares
    assert shares[0].predicted_peak_celsius > 55.0
