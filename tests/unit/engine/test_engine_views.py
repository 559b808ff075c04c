"""LiveView: events in order, own events early, assumptions that end, a store that goes and comes back."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.errors import NotFoundError, StaleSnapshotError, StateUnavailableError
from placewise_core.domain.events import Change, Event, JobsChanged, JobsEnded
from placewise_core.domain.job import JobId, NodeId, Resources, Role
from placewise_service.engine import views
from placewise_service.engine.views import LiveView, Views
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import Reserved, ReserveRequest


def _running(name: str, gpu: int) -> RunningJob:
    assignment = Assignment("worker-0", Role.WORKER, NodeId("n0"), (gpu,), Resources(cpu_cores=1.0, gpus=1.0))
    return RunningJob(make_job(name), (assignment,), RunState.RESERVED, reservation_id=f"r-{name}")


async def _live() -> LiveView:
    clock = ManualClock(1000.0)
    store = MemoryStore(clock)
    await store.report_nodes("c", [make_node("n0")], full=True)
    live = LiveView("c", store, clock, stale_telemetry_after_s=90.0)
    assert await live.load()
    return live


def _event(live: LiveView, ahead: int, *jobs: RunningJob) -> Event:
    return Event(live.view.version + ahead, live.view.epoch, JobsChanged(jobs))


async def test_events_are_applied_once_and_in_order() -> None:
    live = await _live()
    first, second = _event(live, 1, _running("a", 0)), _event(live, 2, _running("b", 1))
    live.apply([second])
    assert not live.view.jobs, "the second event must wait for the first"
    live.apply([first])
    assert set(live.view.jobs) == {"a", "b"}
    live.apply([first, second])
    assert live.view.usage.free_gpus[0] == 2


async def test_an_own_event_that_is_shown_soon_is_there_for_the_next_look() -> None:
    live = await _live()
    live.show_soon(_event(live, 1, _running("a", 0)))
    assert set(live.view.jobs) == {"a"}
    event = _event(live, 1, _running("b", 1))
    waiting = asyncio.create_task(live.wait_changed(60.0))
    await asyncio.sleep(0)
    live.show_soon(event)
    await asyncio.wait_for(waiting, 1.0)  # also if nobody looks
    assert set(live.view.jobs) == {"a", "b"}


async def test_own_events_and_assumptions_keep_their_order() -> None:
    live = await _live()
    first, second, third = _running("a", 0), _running("b", 1), _running("c", 2)
    event = _event(live, 1, second)
    live.assume([first])
    live.show_soon(event)
    live.assume([third])
    assert list(live.view.jobs.values()) == [first, second, third]


async def test_an_own_event_of_another_life_is_passed_over() -> None:
    live = await _live()
    live.show_soon(Event(1, "another epoch", JobsChanged((_running("a", 0),))))
    assert not live.view.jobs


async def test_a_reload_forgets_what_was_due() -> None:
    live = await _live()
    live.show_soon(_event(live, 1, _running("a", 0)))
    await live.load()
    assert not live.view.jobs, "the store knows no such job"


async def test_an_assumption_that_fails_leaves_nothing() -> None:
    live = await _live()
    job = _running("a", 0)
    live.assume([job])
    assert live.view.usage.free_gpus[0] == 3
    live.settle([job], is_held=False)
    assert live.view.usage.free_gpus[0] == 4
    assert not live.view.jobs


async def test_an_event_takes_the_place_of_the_assumption() -> None:
    live = await _live()
    job = _running("a", 0)
    live.assume([job])
    live.apply([_event(live, 1, _running("a", 0))])
    live.settle([job], is_held=True)
    assert live.view.usage.free_gpus[0] == 3
    live.settle([job], is_held=False)
    assert live.view.usage.free_gpus[0] == 3, "a late failure frees nothing that the store holds"


def _elsewhere(name: str) -> RunningJob:
    return replace(_running(name, 1), reservation_id=f"elsewhere-{name}")


@pytest.mark.parametrize("change", [JobsChanged((_elsewhere("a"),)), JobsEnded((JobId("a"),))])
async def test_a_refused_gang_is_noted_though_another_event_of_its_job_came_first(change: Change) -> None:
    """A decision may have read the view with the gang on it: its log has to know the gang."""
    live = await _live()
    job = _running("a", 0)
    live.assume([job])
    assert [name for name, _ in live.notes.read(live.view, 0.0).assumed] == ["r-a"]
    live.apply([Event(live.view.version + 1, live.view.epoch, change)])
    await live.give_back([job])
    assert list(live.notes.refused) == [job]
    assert live.notes.read(live.view, 0.0).assumed == ()


async def test_a_gang_assumed_twice_does_not_take_the_place_of_the_one_that_the_store_holds() -> None:
    """A large request assumes each gang when it is decided, and all of them before the store is asked."""
    live = await _live()
    job, holder = _running("a", 0), _elsewhere("a")
    live.assume([job])
    live.apply([Event(live.view.version + 1, live.view.epoch, JobsChanged((holder,)))])
    live.assume([job])
    assert live.view.jobs == {"a": holder}
    assert live.notes.read(live.view, 0.0).assumed == ()
    await live.give_back([job])
    assert live.view.jobs == {"a": holder}


async def test_a_refused_gang_is_noted_beside_another_of_the_same_job() -> None:
    live = await _live()
    first, second = _running("a", 0), _elsewhere("a")
    live.assume([first])
    live.notes.read(live.view, 0.0)
    live.assume([second])
    await live.give_back([first])
    assert list(live.notes.refused) == [first]
    assert live.view.jobs == {"a": second}
    assert [name for name, _ in live.notes.read(live.view, 0.0).assumed] == ["elsewhere-a"]


async def test_another_life_of_the_state_is_told() -> None:
    live = await _live()
    with pytest.raises(StaleSnapshotError):
        live.apply([Event(1, "another epoch", JobsChanged(()))])


async def test_an_assumption_survives_a_reload() -> None:
    live = await _live()
    job = _running("a", 0)
    live.assume([job])
    await live.load()
    assert live.view.usage.free_gpus[0] == 3


async def test_unknown_clusters_are_not_kept() -> None:
    clock = ManualClock()
    views = Views(MemoryStore(clock), clock, stale_telemetry_after_s=90.0)
    with pytest.raises(NotFoundError):
        await views.get("nowhere")
    assert list(views) == []


async def test_a_cluster_begun_anew_right_after_its_end_keeps_its_new_view() -> None:
    store = MemoryStore(ManualClock(1000.0))
    await store.report_nodes("c", [make_node("n0")], full=True)
    opened = Views(store, ManualClock(1000.0), stale_telemetry_after_s=90.0)
    try:
        await opened.get("c")
        await asyncio.sleep(0.01)  # its follower is at work
        opened.drop("c")
        anew = await opened.get("c")
        await asyncio.sleep(0.01)  # the follower has ended
        assert opened.find("c") is anew
    finally:
        await opened.close()


async def test_a_decision_that_waits_for_the_tail_ends_its_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for period in ("_FOLLOW_EVERY_S", "_FOLLOW_QUIET_EVERY_S"):
        monkeypatch.setattr(views, period, 60.0)
    store = MemoryStore(ManualClock(1000.0))
    await store.report_nodes("c", [make_node("n0")], full=True)
    opened = Views(store, ManualClock(1000.0), stale_telemetry_after_s=90.0)
    try:
        live = await opened.get("c")
        for name, gpu in (("a", 0), ("b", 1), ("c", 2)):  # after the first of them at the latest, the tail rests
            await store.reserve("c", ReserveRequest((_running(name, gpu),), ttl_s=60.0))
            async with asyncio.timeout(5.0):
                while name not in live.view.jobs:
                    await live.wait_changed(1.0)
    finally:
        await opened.close()


async def test_the_tail_is_in_the_way_of_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_FOLLOW_EVERY_S", 60.0)
    monkeypatch.setattr(views, "_FOLLOW_QUIET_EVERY_S", 0.0)
    store = MemoryStore(ManualClock(1000.0))
    await store.report_nodes("c", [make_node("n0")], full=True)
    opened = Views(store, ManualClock(1000.0), stale_telemetry_after_s=90.0)
    try:
        live = await opened.get("c")
        await asyncio.sleep(0.01)  # its tail waits for events
        job, version = _running("a", 0), live.view.version
        live.assume([job])
        result = await store.reserve("c", ReserveRequest((job,), ttl_s=60.0))
        await asyncio.sleep(0.01)
        assert live.view.version == version, "the tail has heard of it, but the decision is not answered yet"
        assert isinstance(result, Reserved)
        live.settle([job], is_held=True)
        live.apply([result.event])
        await store.reserve("c", ReserveRequest((_running("b", 1),), ttl_s=60.0))
        async with asyncio.timeout(5.0):
            while "b" not in live.view.jobs:
                await live.wait_changed(1.0)
        assert live.view.usage.free_gpus[0] == 2
    finally:
        await opened.close()


async def test_who_waits_for_a_view_shares_one_attempt_to_load_it_and_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(ManualClock(1000.0))
    await store.report_nodes("c", [make_node("n0")], full=True)
    loads = []
    load, is_away = store.load, True

    async def counted(cluster: str) -> object:
        loads.append(cluster)
        await asyncio.sleep(0)
        if is_away:
            raise StateUnavailableError("away")
        return await load(cluster)

    monkeypatch.setattr(store, "load", counted)
    loaded = Views(store, ManualClock(1000.0), 90.0)
    failed = await asyncio.gather(*(loaded.get("c") for _ in range(12)), return_exceptions=True)
    assert {type(error) for error in failed} == {StateUnavailableError}
    assert loads == ["c"]
    is_away = False
    one, other = await asyncio.gather(loaded.get("c"), loaded.get("c"))
    assert one is other
    assert loads == ["c", "c"]
    await loaded.close()
