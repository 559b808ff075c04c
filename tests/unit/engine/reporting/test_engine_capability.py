"""Capabilities learned from shares that ended: on every replica, in the answer, and each share once."""

from dataclasses import replace

import pytest
from tests.fakes.engine import CLUSTER, running_engine

from placewise.v1 import cluster_pb2
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import JobEvent, JobEventKind, PartitionCommand, ShareOutcome
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import JobId
from placewise_service.api.convert.convert_cluster import changed_settings, settings
from placewise_service.engine import Engine
from placewise_service.engine.reporting.reports import ReportOutcome
from placewise_service.state.reference.memory import MemoryStore

NOW_S = 1_000_000.0
ON = ClusterSettings(learn_capability=True)
TASK = DivisibleTask("t", 20.0, 0.0, 1.0, "sort")


async def end(engine: Engine, *tasks: str, overhead_s: float = 0.0) -> ReportOutcome:
    share = ShareOutcome("sort", "n0", "gpu0", 30.0, 10.0, overhead_s)
    events = [JobEvent(JobId(task), JobEventKind.SHARE_FINISHED, share=share) for task in tasks]
    return await engine.report_job_events(CLUSTER, events)


async def test_shares_count_once_while_the_setting_is_on_and_every_replica_computes_the_same() -> None:
    clock = ManualClock(NOW_S)
    store = MemoryStore(clock)
    async with (
        running_engine(store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        assert (await end(one, "a")).applied == 0
        await one.update_settings(CLUSTER, ON)
        assert (await one.get_cluster(CLUSTER)).capabilities == ()
        assert (await end(one, "a", "b")).applied == 2
        assert (await end(one, "a", "b")).applied == 0
        assert (await end(one, "c", overhead_s=1.0)).applied == 1
        assert (await end(one, "c", overhead_s=1.0)).applied == 0
        shown = await one.get_cluster(CLUSTER)
        (found,) = shown.capabilities
        assert (found.task_kind, found.node_type, found.unit) == ("sort", "4 V100, 32 cores", "gpu")
        assert found.reports == 3.0
        assert found.per_second == pytest.approx(3.0, rel=0.1)
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < shown.view.version:
            await live.wait_changed(1.0)
        assert (await other.get_cluster(CLUSTER)).capabilities == (found,)


async def test_a_split_says_by_which_capabilities_it_shares() -> None:
    async with running_engine(clock=ManualClock(NOW_S)) as engine:
        assert (await engine.partition(PartitionCommand(CLUSTER, TASK))).meta.capabilities == ()
        await engine.update_settings(CLUSTER, ON)
        await end(engine, "a")
        decision = await engine.partition(PartitionCommand(CLUSTER, TASK))
        assert decision.meta.capabilities == (await engine.get_cluster(CLUSTER)).capabilities != ()
        printed = await engine.partition(PartitionCommand(CLUSTER, TASK, policy="heat-island-paper"))
        assert printed.meta.capabilities == ()
        other_kind = await engine.partition(PartitionCommand(CLUSTER, replace(TASK, kind="join")))
        assert other_kind.meta.capabilities == ()


def test_the_setting_is_changed_alone() -> None:
    message = settings(ON)
    assert message.learn_capability
    request = cluster_pb2.UpdateClusterSettingsRequest(settings=message)
    request.update_mask.paths.append("learn_capability")
    current = ClusterSettings(learn_heat=True)
    changed = changed_settings(request, current, lambda _: pytest.fail("no queue"))
    assert changed == replace(current, learn_capability=True)
