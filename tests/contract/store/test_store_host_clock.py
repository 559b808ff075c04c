"""The clock of a cluster whose time is its host's. On every store (conftest.py)."""

from dataclasses import replace

from tests.fakes.state import CLUSTER, Harness, collect, hold, job, position, records, same, started

from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.events import ClockMoved, JobsEnded
from placewise_core.domain.job import JobId
from placewise_service.state.store import Reserved, StateStore

ON = ClusterSettings(host_clock=True)


async def test_the_hosts_time_moves_and_never_goes_back(harness: Harness, store: StateStore) -> None:
    await store.update_settings(CLUSTER, ON)
    assert (await records(store)).host_time_s == 0.0
    start, times_s = await position(store), (1_500_000_000.123456789, 1_500_000_001.0)
    for time_s in (*times_s, 1_500_000_000.5, 1_500_000_001.0):
        await harness.other().expire(CLUSTER, time_s)
    assert [event.change for event in await collect(store, start, 2)] == [ClockMoved(time_s) for time_s in times_s]
    loaded = await records(store)
    assert (loaded.host_time_s, loaded.version) == (times_s[-1], int(start.rpartition(":")[2].partition("-")[0]) + 2)


async def test_reservations_expire_by_the_hosts_time(harness: Harness, store: StateStore) -> None:
    await store.update_settings(CLUSTER, ON)
    await store.expire(CLUSTER, 5000.0)
    held = await hold(store, job("a"), ttl_s=0.05)
    assert isinstance(held, Reserved)
    assert held.expire_time_s == 5000.05
    await harness.advance(0.2)
    assert not (await store.expire(CLUSTER)).applied
    assert (await store.look_up(CLUSTER, [JobId("a")]))[JobId("a")] is not None
    result = await store.expire(CLUSTER, 5000.05)
    assert [event.change for event in result.events] == [
        ClockMoved(5000.05),
        JobsEnded((JobId("a"),), is_expiry=True),
    ]
    assert (result.applied, result.version) == (1, result.events[-1].version)
    assert not await store.look_up(CLUSTER, [JobId("a")])
    assert (await store.report_jobs(CLUSTER, [replace(started(job("a")), running=None)])).applied == 1


async def test_a_cluster_without_the_hosts_clock_hears_no_time(store: StateStore) -> None:
    before = await records(store)
    assert before.host_time_s is None
    assert not (await store.expire(CLUSTER, 5000.0)).events
    assert same(await records(store), before)


async def test_the_hosts_time_ends_with_its_setting(store: StateStore) -> None:
    await store.update_settings(CLUSTER, ON)
    await store.expire(CLUSTER, 5000.0)
    await store.update_settings(CLUSTER, replace(ON, place_policy="tetris"))
    assert (await records(store)).host_time_s == 5000.0
    await store.update_settings(CLUSTER, ClusterSettings())
    assert (await records(store)).host_time_s is None
    await store.update_settings(CLUSTER, ON)
    assert (await records(store)).host_time_s == 0.0
