"""Clusters and their nodes: reported, removed, deleted. On every store (conftest.py)."""

import asyncio
import math
from dataclasses import replace

import pytest
from tests.fakes.servers.redis_server import wait_until
from tests.fakes.state import (
    CLUSTER,
    Harness,
    collect,
    ended,
    hold,
    job,
    node,
    position,
    records,
    same,
    started,
    tailed,
    task,
)

from placewise_core.domain.cluster import ClusterSettings, Gpu, NodeState, NodeTelemetry, QueueState
from placewise_core.domain.events import Event, NodesReported
from placewise_service.state.store import Reserved, ReserveRequest, StateStore


async def test_the_store_has_a_clock(harness: Harness) -> None:
    first = await harness.store.ping()
    await harness.advance(0.01)
    assert await harness.store.ping() >= first + 0.01 > 0


async def test_a_cluster_begins_with_its_first_report(harness: Harness) -> None:
    assert await harness.store.load(CLUSTER) is None
    assert await harness.store.clusters() == []
    await harness.store.report_nodes(CLUSTER, [node()], full=False)
    await harness.store.update_settings("alps", ClusterSettings())
    assert await harness.store.clusters() == ["alps", CLUSTER]


async def test_nodes_come_back_as_reported(harness: Harness) -> None:
    telemetry = NodeTelemetry(cpu_util=0.25, gpu_celsius=71.5, observe_time_s=1_700_000_000.125)
    reported = replace(
        node(), telemetry=telemetry, labels={"zone": "é"}, rack="r1", gpus=(Gpu(0, "T4", 16.0, util=0.5), Gpu(2, "T4"))
    )
    result = await harness.store.report_nodes(CLUSTER, [reported], full=False)
    loaded = await records(harness.store)
    assert same(loaded.nodes, (reported,))
    assert math.isnan(loaded.nodes[0].telemetry.power_watts)
    assert loaded.version == result.version == 1
    assert same(result.events, (Event(1, loaded.epoch, NodesReported((reported,))),))


async def test_a_full_report_removes_the_other_nodes(store: StateStore) -> None:
    result = await store.report_nodes(CLUSTER, [node("n1")], full=True)
    assert [n.id for n in (await records(store)).nodes] == ["n1"]
    change = result.events[0].change
    assert isinstance(change, NodesReported)
    assert set(change.removed) == {"n0", "s0"}


async def test_a_partial_report_keeps_the_other_nodes(store: StateStore) -> None:
    await store.report_nodes(CLUSTER, [node("n0", state=NodeState.DOWN), node("n1")], full=False)
    assert {n.id: n.state for n in (await records(store)).nodes} == {
        "n0": NodeState.DOWN,
        "n1": NodeState.READY,
        "s0": NodeState.READY,
    }


async def test_a_large_report_is_one_event(harness: Harness) -> None:
    many = [node(f"n{i}") for i in range(600)]
    await harness.store.update_settings(CLUSTER, ClusterSettings())
    start = await position(harness.store)
    result = await harness.store.report_nodes(CLUSTER, many, full=True)
    assert result.version == 2
    events = await collect(harness.store, start, 1)
    assert same(events[0].change, NodesReported(tuple(many)))


async def test_clusters_do_not_touch_each_other(store: StateStore) -> None:
    await store.report_nodes("alps", [node("n0")], full=True)
    assert isinstance(await hold(store, job("a")), Reserved)
    assert isinstance(await store.reserve("alps", ReserveRequest((job("a"),), 60.0)), Reserved)
    await store.delete_cluster("alps")
    assert [j.id for j in (await records(store)).jobs] == ["a"]


async def test_a_deleted_cluster_leaves_nothing_and_may_begin_anew(harness: Harness, store: StateStore) -> None:
    await store.report_jobs(CLUSTER, [started(job("a")), ended("z")])
    await hold(store, job("b", task(gpus=(1,))), request_id="q", answer=b"x")
    await store.commit_queue(CLUSTER, QueueState("q"), 0)
    await store.learn_overhead(CLUSTER, "o", "k", 1.0)
    await store.profile_subtask(CLUSTER, "k", {"a": 1.0})
    await store.append_decisions(CLUSTER, [b"r"])
    await store.mark_exported(CLUSTER, "1-0")
    old = await records(store)
    assert await store.delete_cluster(CLUSTER)
    assert await store.load(CLUSTER) is None
    assert await store.clusters() == []
    assert harness.leftover_keys() == set()
    await store.report_nodes(CLUSTER, [node()], full=True)
    new = await records(store)
    assert new.epoch != old.epoch
    assert new.version == 1
    assert new.jobs == ()
    assert new.queues == {}
    assert isinstance(await hold(store, job("a"), request_id="q", answer=b"y"), Reserved)


async def test_tails_leave_no_connection_behind(harness: Harness) -> None:
    if harness.raw is None:
        pytest.skip("there are no connections to a memory")
    store, names = harness.store, [f"c{i}" for i in range(4)]

    async def follow(name: str, start: str) -> None:
        async for _ in tailed(store, name, start):
            pass

    raw = harness.raw
    servers = [server.redis_connection for server in raw.get_nodes()] if harness.kind == "cluster" else [raw]

    def readings() -> int:
        """Connections that wait for a stream. One that waits no longer is the pool's, for anybody's command."""
        clients = [client for server in servers for client in server.client_list()]
        return sum(client["cmd"].startswith("xread") and "b" in client["flags"] for client in clients)

    for name in names:
        await store.report_nodes(name, [node("n0")], full=True)
    tails = [asyncio.create_task(follow(name, await position(store, name))) for name in names]
    await asyncio.to_thread(wait_until, lambda: readings() > 0)
    tails[0].cancel()
    for name in names[1:]:
        assert await store.delete_cluster(name)
    await asyncio.wait_for(asyncio.gather(*tails, return_exceptions=True), 10.0)
    await asyncio.to_thread(wait_until, lambda: readings() == 0)
    for _ in range(10):  # between two waits a tail rests
        await asyncio.sleep(0.05)
        assert readings() == 0
