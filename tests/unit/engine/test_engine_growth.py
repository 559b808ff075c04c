"""The number of things that callers make is bounded, and unused ones are deleted."""

import asyncio
import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_admit, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, HeadReservation, QueueSettings, QueueState
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import JobId, Subtask
from placewise_service.engine.growth import used_until_s
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry


async def test_one_cluster_too_many_is_refused_and_room_is_made_by_deleting() -> None:
    async with running_engine() as engine:
        engine._parts.options.most_clusters = 2
        await engine.report_nodes("second", [make_node("n0")], full=True)
        await engine.report_nodes("second", [make_node("n1")], full=False)
        for ask in (
            lambda: engine.report_nodes("third", [make_node("n0")], full=True),
            lambda: engine.update_settings("third", ClusterSettings()),
        ):
            with pytest.raises(InvalidRequestError, match="the limit is 2"):
                await ask()
        assert await engine.clusters() == [CLUSTER, "second"]
        await engine.delete_cluster("second")
        await engine.report_nodes("third", [make_node("n0")], full=True)


async def test_an_idle_queue_is_forgotten_by_every_replica_and_a_used_one_stays() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(store=store, clock=clock) as engine, running_engine(0, store=store, clock=clock) as other:
        for queue in ("idle", "used"):
            await ask_admit(engine, AdmitCommand(CLUSTER, queue, (make_job("a"),)))
        clock.advance(engine._parts.options.queue_idle_s - 5.0)
        await engine._forget_idle()
        assert len((await engine.get_cluster(CLUSTER)).view.queues) == 2
        await ask_admit(engine, AdmitCommand(CLUSTER, "used", (make_job("a"),)))
        clock.advance(20.0)
        await engine._forget_idle()
        await other._forget_idle()
        version = (await engine.get_cluster(CLUSTER)).view.version
        for replica in (engine, other):
            live = await replica._parts.views.get(CLUSTER)
            while live.view.version < version:
                await live.wait_changed(1.0)
            assert set(live.view.queues) == {"used"}
        await ask_admit(engine, AdmitCommand(CLUSTER, "idle", (make_job("b"),)))
        assert set((await engine.get_cluster(CLUSTER)).view.queues) == {"idle", "used"}


async def test_a_running_service_forgets_from_time_to_time_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.engine.engine._EXPIRY_PERIOD_S", 0.01)
    monkeypatch.setattr("placewise_service.engine.engine._FORGETTING_ROUNDS", 2)
    clock = ManualClock(1_000_000.0)
    async with running_engine(clock=clock) as engine:
        await ask_admit(engine, AdmitCommand(CLUSTER, "idle", (make_job("a"),)))
        job = replace(make_job("b"), subtasks=(Subtask("s", kind="kind", profile={"cpu": 1.0}),))
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("b"), JobEventKind.SUBMITTED, job=job)])
        live = await engine._parts.views.get(CLUSTER)
        assert (set(live.view.queues), set(live.view.subtask_profiles)) == ({"idle"}, {"kind"})
        clock.advance(engine._parts.options.profile_idle_s + 20.0)
        async with asyncio.timeout(60.0):
            while live.view.queues or live.view.subtask_profiles:
                await live.wait_changed(1.0)


async def test_a_cluster_that_is_deleted_meanwhile_does_not_end_the_sweep() -> None:
    async with running_engine() as engine:
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a"),)))
        live = await engine._parts.views.get(CLUSTER)
        live.view.subtask_profiles["k"] = {"a": 1.0}
        engine._parts.options.queue_idle_s = -math.inf
        await engine._parts.store.delete_cluster(CLUSTER)
        await engine._growth.forget_idle_queues(live, lambda queue: QueueSettings())
        await engine._growth.forget_idle_profiles(live)


def test_a_queue_was_used_until_its_slot_ended() -> None:
    settings = QueueSettings(slot_s=10.0)
    assert used_until_s(QueueState("q", slot=4), settings) == 50.0
    assert used_until_s(QueueState("q", admitted={"j": (1, 1, 7)}), settings) == 80.0
    assert used_until_s(QueueState("q"), settings) is None
    head = HeadReservation("j", (), 0.0, 0.0, 0.0, expire_s=90.0)
    assert used_until_s(QueueState("q", head=head), settings) == 90.0
    assert used_until_s(QueueState("q", seq=2), settings) == 0.0  # its head has started


def test_queues_beyond_those_named_are_one_series() -> None:
    telemetry = Telemetry()
    queues = [("c", QueueState(f"q{i}", backlog_s=float(i), waiting={"j": 1.0})) for i in range(5)]
    telemetry.show_queues(lambda: [*queues, ("d", QueueState("alone", backlog_s=9.0))], 3)
    lines = [line for line in telemetry.render().decode().splitlines() if line.startswith("placewise_queue")]
    assert 'placewise_queue_backlog_seconds{cluster="c",queue="q2"} 2.0' in lines
    assert 'placewise_queue_backlog_seconds{cluster="c",queue="(others)"} 7.0' in lines
    assert 'placewise_queue_waiting_jobs{cluster="c",queue="(others)"} 2.0' in lines
    assert 'placewise_queue_backlog_seconds{cluster="d",queue="alone"} 9.0' in lines
    assert len(lines) == 3 * 5
