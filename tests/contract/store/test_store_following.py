"""Following a cluster: every event, in order, or an error that says why not. On every store (conftest.py)."""

import asyncio

import pytest
from tests.fakes.state import (
    CLUSTER,
    Harness,
    collect,
    demand,
    ended,
    hold,
    job,
    node,
    position,
    progress,
    records,
    same,
    started,
    tailed,
    task,
    third,
)

from placewise_core.domain.cluster import ClusterSettings, NodeState
from placewise_core.domain.errors import StaleSnapshotError
from placewise_core.domain.events import ClusterDeleted, Event, SettingsChanged
from placewise_core.view.view import ClusterView
from placewise_service.state.store import Reserved, StateStore


async def test_a_tail_gives_every_later_event_in_order(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    made = []
    reserved = await hold(store, job("a"))
    assert isinstance(reserved, Reserved)
    made.append(reserved.event)
    made += (await store.report_jobs(CLUSTER, [started(job("a")), progress("a", 1.0, 2.0), ended("a")])).events
    made.append(await store.update_settings(CLUSTER, ClusterSettings("lif")))
    made += (await store.report_nodes(CLUSTER, [node("n9")], full=True)).events
    assert same(await collect(harness.other(), start, len(made)), made)
    assert [e.version for e in made] == list(range(2, 2 + len(made)))


async def test_a_tail_goes_on_from_any_position(store: StateStore) -> None:
    start = await position(store)
    for i in range(3):
        await store.update_settings(CLUSTER, ClusterSettings(f"p{i}"))
    places = []
    async for place, events in tailed(store, CLUSTER, start):
        places.append(place)
        if events:
            break
    await store.update_settings(CLUSTER, ClusterSettings("last"))
    (event,) = await collect(store, places[-1], 1)
    assert event.change == SettingsChanged(ClusterSettings("last"))


async def test_a_quiet_tail_tells_that_the_store_is_alive(store: StateStore) -> None:
    start = await position(store)
    async with asyncio.timeout(5):
        async for place, events in tailed(store, CLUSTER, start):
            assert (place, list(events)) == (start, [])
            break


async def test_a_tail_hears_at_once(harness: Harness, store: StateStore) -> None:
    waiting = asyncio.create_task(collect(harness.other(), await position(store), 1))
    await asyncio.sleep(0.05)
    await store.update_settings(CLUSTER, ClusterSettings("now"))
    assert len(await waiting) == 1


async def test_a_tail_that_fell_behind_says_so(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    for i in range(3):
        await store.update_settings(CLUSTER, ClusterSettings(f"p{i}"))
    await harness.trim()
    with pytest.raises(StaleSnapshotError):
        await collect(store, start, 1)
    assert await collect_nothing(store, await position(store))


async def collect_nothing(store: StateStore, start: str) -> bool:
    async for _, events in tailed(store, CLUSTER, start):
        return not events
    return False


async def test_a_tail_of_another_life_says_so(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    await store.delete_cluster(CLUSTER)
    await store.report_nodes(CLUSTER, [node()], full=True)
    with pytest.raises(StaleSnapshotError):
        await collect(store, start, 1)


async def test_a_tail_ends_with_the_cluster(harness: Harness, store: StateStore) -> None:
    start = await position(store)
    other = harness.other()

    async def follow() -> list[Event]:
        return [event async for _, events in tailed(other, CLUSTER, start) for event in events]

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    await store.delete_cluster(CLUSTER)
    async with asyncio.timeout(5):
        events = await following
    assert [event.change for event in events] == [ClusterDeleted()]


async def test_a_view_that_follows_equals_a_view_built_anew(harness: Harness, store: StateStore) -> None:
    loaded = await store.load(CLUSTER)
    assert loaded is not None
    view = ClusterView(loaded[0])
    await hold(store, job("a", task(gpus=(0, 3), ask=demand(2.5, 2.0, 3.0))), third("b"))
    await hold(store, third("c"), ttl_s=0.0, expected_tenants={"s0/0": ("b",)})
    await store.expire(CLUSTER)
    await store.report_jobs(CLUSTER, [started(job("a", task("s0", (3,)))), progress("a", 1.0, 1.0)])
    await store.report_nodes(CLUSTER, [node("n2"), node("n0", state=NodeState.DOWN)], full=False)
    anew = ClusterView(await records(store))
    for event in await collect(harness.other(), loaded[1], anew.version - view.version):
        view.apply(event)
    assert view.version == anew.version
    assert set(view.nodes.index) == set(anew.nodes.index)
    for name, m in view.nodes.index.items():
        assert (view.usage.free[:, m] == anew.usage.free[:, anew.nodes.index[name]]).all()
        assert (view.usage.gpu_fraction_free[m] == anew.usage.gpu_fraction_free[anew.nodes.index[name]]).all()
    assert same(sorted(view.jobs.values(), key=lambda j: j.id), sorted(anew.jobs.values(), key=lambda j: j.id))
