"""The adapter skeleton on the reference host: shows that the conformance suite can be kept."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from tests.contract.adapters.adapter_conformance import AdapterConformance
from tests.contract.adapters.suite.adapter_world import SETTINGS, Clock, World
from tests.fakes.schedulers.memory_host import MemoryHost
from tests.fakes.servers.oracle import OracleServer, SmallService

from placewise.v1.cluster_pb2 import JobEvent, Node
from placewise_client.adapter.book import Book
from placewise_client.adapter.native import End, NativeJob, Stage


class TestMemoryHost(AdapterConformance):
    not_here: ClassVar = {"test_what_cannot_be_read_holds_up_nothing_else": "its jobs are objects in memory"}

    @pytest.fixture
    async def host(self) -> MemoryHost:
        return MemoryHost()

    @pytest.mark.parametrize("stage", [Stage.APPLIED, Stage.WAITING])
    async def test_a_start_that_the_host_has_lost_is_over_and_the_next_one_is_told(
        self, world: World, host: MemoryHost, stage: Stage
    ) -> None:
        """slurmctld loses a job's launch if it is killed then: the job waits again, under the same name."""
        key = await host.submit(1, 8)
        await world.step()
        first = await host.where(key)
        await host.set_node_state(first[0], Node.DRAINING)
        placement = host.jobs[key].placement if stage is Stage.APPLIED else ()
        host.jobs[key] = dataclasses.replace(host.jobs[key], stage=stage, placement=placement)
        await world.loop.run_pass(full=True)
        assert host.jobs[key].stage is not Stage.RUNNING
        for _ in range(3):
            world.clock.advance(2)
            await world.step()
        assert await host.where(key) == world.decided_nodes(key) != first
        await host.end(key, End.FINISHED)
        await world.step()
        told = [(event.kind, event.decision_id) for event in world.oracle.reported if event.job_id == key]
        kinds = [kind for kind, _ in told if kind != JobEvent.SUBMITTED]
        assert kinds == [JobEvent.STARTED, JobEvent.CANCELLED, JobEvent.STARTED, JobEvent.FINISHED]
        assert len({decision for kind, decision in told if kind == JobEvent.STARTED}) == 2
        assert world.oracle.held == {}

    @pytest.mark.parametrize("is_told", [True, False])
    async def test_after_a_restart_only_an_end_that_was_not_told_lets_others_be_asked_about_again(
        self, world: World, host: MemoryHost, monkeypatch: pytest.MonkeyPatch, is_told: bool
    ) -> None:
        key = await host.submit(1, 8)
        await world.step()
        if is_told:
            await host.end(key, End.FINISHED)
            await world.step()
        world.start_adapter()
        if not is_told:
            await host.end(key, End.FINISHED)
        woken: list[Book] = []

        def wake(book: Book) -> None:
            woken.append(book)

        monkeypatch.setattr(Book, "wake", wake)
        await world.loop.run_pass(full=True)
        assert world.kinds(key)[-1] == "FINISHED"
        assert bool(woken) is not is_told


class HostWithNews(MemoryHost):
    """Is looked at on its own request, not all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.news = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        await self.news.wait()
        self.news.clear()
        return True


class SlowReports:
    """The service's client, whose reports of events take until `gate` is set."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.gate = asyncio.Event()
        self.is_asked = False

    async def report_job_events(self, *args: Any, **options: Any) -> Any:
        self.is_asked = True
        await self.gate.wait()
        return await self._client.report_job_events(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_true():  # noqa: ASYNC110 - the adapter has no event for it
            await asyncio.sleep(0.005)


async def test_a_report_that_takes_long_holds_up_no_decision() -> None:
    clock = Clock()
    server = await OracleServer(SmallService(now=clock)).start()
    host = HostWithNews()
    world = World(host, server, clock)
    await host.add_nodes(4, 8)
    slow = SlowReports(world.loop.client)
    world.loop.reporter.client = slow  # type: ignore[assignment]  # all of a client that is used here
    running = asyncio.create_task(world.loop.run())
    first = await host.submit(1, 4)
    host.news.set()
    await until(lambda: host.jobs[first].stage is Stage.APPLIED)
    await host.run_scheduler()
    host.news.set()
    await until(lambda: slow.is_asked)
    second = await host.submit(1, 4)
    host.news.set()
    await until(lambda: host.jobs[second].stage is Stage.APPLIED)
    assert world.kinds(first) == []
    slow.gate.set()
    await until(lambda: world.kinds(first) == ["STARTED"])
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await world.loop.client.close()
    await server.stop()


class Sleeper(MemoryHost):
    """Sleeps as long as its argument says; nothing happens meanwhile."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.changed_at_s: list[float] = []

    def _set(self, job: NativeJob, **changes: object) -> None:
        self.changed_at_s.append(self.clock())
        super()._set(job, **changes)

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.sleep(0)
        self.clock.advance(timeout_s)
        return False


async def test_a_placement_that_does_not_start_is_taken_back_when_it_is_due_without_any_news() -> None:
    clock = Clock()
    server = await OracleServer(SmallService(now=clock)).start()
    host = Sleeper(clock)
    world = World(host, server, clock)
    world.start_adapter(dataclasses.replace(SETTINGS, resync_s=600.0))
    await host.add_nodes(4, 8)
    key = await host.submit(1, 4)
    running = asyncio.create_task(world.loop.run())
    await until(lambda: ("withdraw", key) in host.changes)
    applied_s, withdrawn_s = host.changed_at_s[:2]
    assert SETTINGS.start_timeout_s < withdrawn_s - applied_s <= SETTINGS.start_timeout_s + 2 * SETTINGS.retry_s
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    for client in world.clients:
        await client.close()
    await server.stop()
