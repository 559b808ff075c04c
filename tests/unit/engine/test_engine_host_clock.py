"""A cluster whose time is its host's: two engines on one store, and a wall clock that hardly moves."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, NodeTelemetry, QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PartitionCommand
from placewise_core.domain.decision import Outcome, Verdict
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import JobId
from placewise_log.record import DecisionRecord, OutcomeRecord, decode_entry
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

WALL_S, HOST_S = 1_000_000.0, 5_000_000.0
SETTINGS = ClusterSettings(host_clock=True, queues={"q": QueueSettings(slot_s=600.0)})


class Cluster:
    """Two replicas of one state."""

    def __init__(self) -> None:
        self.clock = ManualClock(WALL_S)
        self.store = MemoryStore(self.clock)

    async def __aenter__(self) -> tuple[Engine, Engine]:
        self._contexts = [running_engine(nodes=0, store=self.store, clock=self.clock) for _ in range(2)]
        one, other = [await context.__aenter__() for context in self._contexts]
        await one.update_settings(CLUSTER, SETTINGS)
        await one.report_nodes(CLUSTER, [make_node(f"n{i}", 4) for i in range(2)], True, HOST_S)
        return one, other

    async def __aexit__(self, *_: object) -> None:
        for context in self._contexts:
            await context.__aexit__(None, None, None)


async def entries(store: MemoryStore) -> list[object]:
    return [decode_entry(data) for _, data in await store.read_decisions(CLUSTER, "0", 1000)]


async def test_a_reservation_expires_by_the_hosts_time_on_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.engine.engine._EXPIRY_PERIOD_S", 0.02)
    cluster = Cluster()
    async with cluster as (one, other):
        full = make_job("a", workers=8, gpus=1)
        held = await ask_place(one, place(full, now_s=HOST_S + 1, reserve_ttl_s=100.0))
        assert held.decisions[0].expire_time_s == HOST_S + 101
        cluster.clock.advance(1000.0)
        await asyncio.sleep(0.1)  # some sweeps
        waits = await ask_place(other, place(make_job("b", workers=8, gpus=1), now_s=HOST_S + 100))
        assert waits.decisions[0].outcome is Outcome.WAIT
        fits = await ask_place(other, place(make_job("b", workers=8, gpus=1), now_s=HOST_S + 101))
        assert fits.decisions[0].outcome is Outcome.PLACED
        await one.place(place(make_job("c"), now_s=HOST_S + 101))  # and its view hears of all that was before
        views = [(await engine.get_cluster(CLUSTER)).view for engine in (one, other)]
        assert [(view.host_time_s, "a" in view.jobs, "b" in view.jobs) for view in views] == [
            (HOST_S + 101, False, True)
        ] * 2


async def test_an_earlier_time_counts_as_the_latest_one() -> None:
    cluster = Cluster()
    async with cluster as (one, other):
        await ask_place(one, place(make_job("a"), now_s=HOST_S + 50))
        for engine in (one, other):
            await ask_place(engine, place(make_job(f"b{id(engine)}"), now_s=HOST_S + 10))
            assert (await engine.get_cluster(CLUSTER)).view.host_time_s == HOST_S + 50
        await logged(one)
        await logged(other)
        decided = [entry for entry in await entries(cluster.store) if isinstance(entry, DecisionRecord)]
        assert [(record.time_s, record.reads[0].now_s) for record in decided] == [(HOST_S + 50, HOST_S + 50)] * 3


async def test_telemetry_ages_by_the_hosts_time() -> None:
    async with Cluster() as (one, other):
        measured = replace(make_node("n0", 4), telemetry=NodeTelemetry(cpu_util=0.5))
        await one.report_nodes(CLUSTER, [measured], False, HOST_S + 10)
        big = make_job("a", workers=8, gpus=1)
        for engine, at_s, outcome in ((one, 99.0, Outcome.PLACED), (other, 101.0, Outcome.WAIT)):
            command = place(big, now_s=HOST_S + at_s, is_dry_run=True)
            assert (await ask_place(engine, command)).decisions[0].outcome is outcome, at_s
        assert (await one.get_cluster(CLUSTER)).view.host_time_s == HOST_S + 10  # a dry run moves no clock


async def test_slots_heads_and_bounds_go_by_the_hosts_time() -> None:
    cluster = Cluster()
    async with cluster as (one, other):
        now_s = HOST_S + 1000
        started = JobEvent(JobId("r"), JobEventKind.STARTED, job=make_job("r", workers=8, gpus=1))
        held = await ask_place(one, place(make_job("r", workers=8, gpus=1), now_s=now_s))
        await answer_is_on_its_way()
        await one.report_job_events(CLUSTER, [replace(started, reservation_id=held.decisions[0].reservation_id)], now_s)
        head = make_job("h", workers=8, gpus=1, submit_time_s=now_s, queue="q")
        asked = AdmitCommand(CLUSTER, "q", (head,), policy="fifo", now_s=now_s)
        given = await ask_admit(other, asked)
        assert given.plan.admissions[0].verdict is Verdict.WAIT
        state = (await other.get_cluster(CLUSTER)).view.queues["q"]
        assert state.head is not None
        assert (state.head.since_s, state.head.bound_s) == (now_s, now_s + 86_400)
        later = await ask_admit(one, replace(asked, policy="proteus", now_s=now_s + 6000))
        assert later.plan.queue.slot == (now_s + 6000) // 600


async def test_reports_without_a_time_of_their_own_have_the_hosts() -> None:
    cluster = Cluster()
    async with cluster as (one, _):
        held = await ask_place(one, place(make_job("a"), now_s=HOST_S + 5))
        await answer_is_on_its_way()
        reservation = held.decisions[0].reservation_id
        for kind, at_s in ((JobEventKind.STARTED, 5.0), (JobEventKind.PROGRESS, 65.0)):
            event = JobEvent(JobId("a"), kind, speed=0.5, epochs_done=at_s, reservation_id=reservation)
            await one.report_job_events(CLUSTER, [event], HOST_S + at_s)
        running = (await one.get_cluster(CLUSTER)).view.jobs[JobId("a")]
        assert (running.start_time_s, running.epochs_done) == (HOST_S + 5, 65.0)
        await logged(one)
        outcomes = [entry for entry in await entries(cluster.store) if isinstance(entry, OutcomeRecord)]
        assert [outcome.receive_time_s for outcome in outcomes] == [HOST_S + 5, HOST_S + 65]


async def test_a_missing_time_is_refused_and_a_dry_run_takes_the_latest() -> None:
    async with Cluster() as (one, other):
        job, task = make_job("a"), DivisibleTask("t", parallel_scale=1.0)
        for refused in (
            one.place(place(job)),
            other.admit_or_wait(AdmitCommand(CLUSTER, "q", (job,))),
            other.partition(PartitionCommand(CLUSTER, task)),
            one.report_nodes(CLUSTER, [make_node("n0", 4)], False),
            other.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.SUBMITTED)]),
        ):
            with pytest.raises(InvalidRequestError, match="must be given") as caught:
                await refused
            assert caught.value.metadata["field"] == "now"
        assert (await ask_place(one, place(job, is_dry_run=True))).decisions[0].outcome is Outcome.PLACED


async def test_a_time_that_is_not_the_clusters_is_refused() -> None:
    async with running_engine() as engine:
        for refused in (
            engine.place(place(make_job("a"), now_s=HOST_S)),
            engine.report_nodes(CLUSTER, [make_node("n0", 4)], False, HOST_S),
            engine.report_nodes("another", [make_node("n0", 4)], True, HOST_S),
        ):
            with pytest.raises(InvalidRequestError, match="must be left out") as caught:
                await refused
            assert caught.value.metadata["field"] == "now"
        assert await engine.clusters() == [CLUSTER]


async def test_a_cluster_with_jobs_or_queues_keeps_its_clock() -> None:
    async with Cluster() as (one, _):
        await ask_place(one, place(make_job("a"), now_s=HOST_S))
        with pytest.raises(InvalidRequestError, match="cannot change") as caught:
            await one.update_settings(CLUSTER, ClusterSettings())
        assert caught.value.metadata["field"] == "settings.host_clock"
        await one.update_settings(CLUSTER, replace(SETTINGS, place_policy="tetris"))
    async with running_engine() as engine:
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a"),)))
        with pytest.raises(InvalidRequestError, match="cannot change"):
            await engine.update_settings(CLUSTER, SETTINGS)
