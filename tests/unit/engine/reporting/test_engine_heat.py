"""Heat learned from reports of nodes: on every replica, in the answer, and on the page."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import make_node
from tests.fakes.engine import CLUSTER, running_engine

from placewise.v1 import cluster_pb2
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, Node, NodeTelemetry
from placewise_core.domain.commands import PartitionCommand
from placewise_core.domain.divisible import DivisibleTask
from placewise_service.api.convert.convert_cluster import changed_settings, settings
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

NOW_S = 1_000_000.0
ON = ClusterSettings(learn_heat=True)
TASK = DivisibleTask("t", 20.0, 0.0, 1.0)


def reports(time_s: float, celsius: float, nodes: int = 2) -> list[Node]:
    telemetry = NodeTelemetry(
        gpu_util=0.9, gpu_celsius=celsius, power_watts=1000.0, ambient_celsius=25.0, observe_time_s=time_s
    )
    return [make_node(f"n{i}", telemetry=telemetry) for i in range(nodes)]


async def warmed(engine: Engine, nodes: int = 2) -> None:
    for i in range(5):
        await engine.report_nodes(CLUSTER, reports(NOW_S + 5.0 * i, 85.0, nodes), full=False)


async def test_reports_count_while_the_setting_is_on_and_every_replica_computes_the_same() -> None:
    clock = ManualClock(NOW_S)
    store = MemoryStore(clock)
    async with (
        running_engine(store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await warmed(one)
        assert not list((await one.get_cluster(CLUSTER)).view.estimates.heat.kinds)
        await one.update_settings(CLUSTER, ON)
        await one.report_nodes(CLUSTER, reports(NOW_S + 20.0, 85.0), full=False)  # a repeat
        assert (await one.get_cluster(CLUSTER)).heat == ()
        for i in range(5, 10):
            await one.report_nodes(CLUSTER, reports(NOW_S + 5.0 * i, 85.0), full=False)
        shown = await one.get_cluster(CLUSTER)
        (found,) = shown.heat
        assert (found.node_type, found.unit, found.reports) == ("4 V100, 32 cores", "gpu", 10.0)
        assert found.rise_celsius > found.shipped_celsius
        version = shown.view.version
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < version:
            await live.wait_changed(1.0)
        assert (await other.get_cluster(CLUSTER)).heat == (found,)


async def test_a_split_says_by_which_constants_it_forecasts() -> None:
    async with running_engine(clock=ManualClock(NOW_S)) as engine:
        assert (await engine.partition(PartitionCommand(CLUSTER, TASK))).meta.heat == ()
        await engine.update_settings(CLUSTER, ON)
        await warmed(engine)
        decision = await engine.partition(PartitionCommand(CLUSTER, TASK))
        assert decision.meta.heat == (await engine.get_cluster(CLUSTER)).heat != ()
        printed = await engine.partition(PartitionCommand(CLUSTER, TASK, policy="heat-island-paper"))
        assert printed.meta.heat == ()


async def test_a_large_report_counts_each_of_its_nodes() -> None:
    async with running_engine(nodes=0, clock=ManualClock(NOW_S)) as engine:
        await engine.report_nodes(CLUSTER, reports(NOW_S - 5.0, 85.0, 300), full=True)
        await engine.update_settings(CLUSTER, ON)
        await warmed(engine, 300)
        (found,) = (await engine.get_cluster(CLUSTER)).heat
        assert found.reports == pytest.approx(1500.0)


def test_the_setting_is_changed_alone() -> None:
    message = settings(ON)
    assert message.learn_heat
    request = cluster_pb2.UpdateClusterSettingsRequest(settings=message)
    request.update_mask.paths.append("learn_heat")
    current = ClusterSettings(learn_durations=True)
    assert changed_settings(request, current, lambda _: pytest.fail("no queue")) == replace(current, learn_heat=True)
