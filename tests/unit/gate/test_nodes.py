"""The nodes that the paired simulation plays on."""

from pathlib import Path

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import PlaceCommand
from placewise_log.store import LogError, LogStore
from placewise_service.declog.export import export
from placewise_training.gate.site import nodes_at
from placewise_training.log.nodes import gpu_models

HOST_S = 500_000.0  # of the host's clock, a week behind that of the service


async def test_nodes_are_those_that_decisions_saw_by_the_clusters_own_time(tmp_path: Path) -> None:
    """A cluster has its settings before its nodes, so the first snapshot has none; later its nodes change."""
    clock = ManualClock(HOST_S + 7 * 86_400.0)
    async with running_engine(nodes=0, clock=clock) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(host_clock=True))
        await engine._view_log.write()
        for number, time_s in ((1, HOST_S), (3, HOST_S + 3600.0)):
            nodes = [make_node(f"n{i}") for i in range(number)]
            await engine.report_nodes(CLUSTER, nodes, full=True, now_s=time_s)
            await engine._view_log.write()
            command = place(make_job(f"j{number}"))
            await ask_place(engine, PlaceCommand(command.cluster, command.jobs, now_s=time_s))
            clock.advance(60.0)
        assert await logged(engine)
        await engine._view_log.write()
        await export(engine._parts.store, tmp_path)
    store = LogStore(tmp_path)
    assert [len(nodes_at(store, CLUSTER, HOST_S + after_s)) for after_s in (-1.0, 60.0, 7200.0)] == [1, 3, 3]
    assert {key.node for key in gpu_models(store)} >= {"n0"}
    with pytest.raises(LogError, match="lacks the nodes of cluster 'other'"):
        nodes_at(store, "other", HOST_S)
