"""What callers may invent, names of queues, takes no room without bound."""

import asyncio
from collections.abc import Callable

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, place, running_engine

from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Options
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Verdict
from placewise_core.domain.errors import InvalidRequestError, StateUnavailableError
from placewise_core.domain.events import Event
from placewise_core.domain.job import Job, JobId
from placewise_service.engine import Engine
from placewise_service.engine import engine as engine_module
from placewise_service.state.reference.memory import MemoryStore


class Hanging(MemoryStore):
    """A store that takes a while to fail; `attempts` are those that it failed."""

    hangs = False
    attempts = 0

    async def commit_queue(self, cluster: str, queue: QueueState, expected_seq: int) -> Event | None:
        if not self.hangs:
            return await super().commit_queue(cluster, queue, expected_seq)
        self.attempts += 1
        await asyncio.sleep(0.01)
        raise StateUnavailableError("the store hangs")


def command(queue: str, policy: str = "proteus", is_dry_run: bool = False) -> AdmitCommand:
    return AdmitCommand(CLUSTER, queue, (make_job("a"),), policy=policy, is_dry_run=is_dry_run)


async def test_a_cluster_has_room_for_so_many_queues() -> None:
    async with running_engine() as engine:
        engine._parts.options.most_queues = 2
        for queue in ("q0", "q1", "q0"):
            await ask_admit(engine, command(queue))
        with pytest.raises(InvalidRequestError, match="2 queues"):
            await ask_admit(engine, command("q2"))
        assert set((await engine.get_cluster(CLUSTER)).view.queues) == {"q0", "q1"}
        admitted = await ask_admit(engine, command("q2", "fifo"))
        assert admitted.plan.admissions[0].verdict is Verdict.ADMIT, "what keeps no queue needs no room"


async def test_a_queue_that_is_not_kept_leaves_no_lock_and_no_gauge() -> None:
    async with running_engine() as engine:
        await ask_admit(engine, command("kept"))
        for i in range(50):
            await ask_admit(engine, command(f"fleeting-{i}", "fifo"))
        await asyncio.sleep(0)  # gauges move when the answer is on its way
        assert len(engine._admitting.turns) == 0
        text = engine._parts.telemetry.render().decode()
        assert ('queue="kept"' in text, "fleeting" in text) == (True, False)


async def test_all_who_wait_for_a_queue_share_one_attempt_and_its_failure() -> None:
    """Else each would wait for its own failure behind those of the others: twelve callers for twelve of them."""
    clock = ManualClock(1_000_000.0)
    store = Hanging(clock)
    async with running_engine(store=store, clock=clock) as engine:
        store.hangs = True
        results = await asyncio.gather(
            *[ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job(f"a{i}"),), policy="proteus")) for i in range(12)],
            return_exceptions=True,
        )
        assert {type(result) for result in results} == {StateUnavailableError}
        assert store.attempts <= 2
        assert len(engine._admitting.turns) == 0
        store.hangs = False
        assert (await ask_admit(engine, command("q"))).plan.admissions[0].verdict is Verdict.ADMIT


def shown(engine: Engine) -> list[str]:
    """The lines of the queues' gauges."""
    text = engine._parts.telemetry.render().decode()
    return sorted(line for line in text.splitlines() if line.startswith("placewise_queue_"))


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        while not is_so():  # noqa: ASYNC110 - the change comes through the store's events
            await asyncio.sleep(0.01)


async def test_every_replica_shows_the_queues_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was never asked, one that was asked longest ago, and one that has just started."""
    monkeypatch.setattr(engine_module, "_CLUSTERS_PERIOD_S", 0.01)
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with (
        running_engine(nodes=0, store=store, clock=clock) as silent,
        running_engine(store=store, clock=clock) as first,
        running_engine(nodes=0, store=store, clock=clock) as second,
    ):
        await ask_admit(first, command("q"))
        assert shown(first)
        await eventually(lambda: shown(first) == shown(second) == shown(silent))
        clock.advance(100.0)
        busy = AdmitCommand(CLUSTER, "q", (make_job("a"), make_job("b"), make_job("z")), policy="proteus")
        await ask_admit(second, busy)
        assert shown(second) != []
        await eventually(lambda: shown(first) == shown(second) == shown(silent))
        async with running_engine(nodes=0, store=store, clock=clock) as restarted:
            assert shown(restarted) == shown(second)
        await first.delete_cluster(CLUSTER)
        await eventually(lambda: not (shown(first) or shown(second) or shown(silent)))


async def test_after_each_change_the_shapes_of_the_job_asked_last_are_found_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    search = Pool._options

    def counted(pool: Pool, job: Job) -> Options:
        if not pool._is_whole:
            found.append(job.id)
        return search(pool, job)

    monkeypatch.setattr(Pool, "_options", counted)
    async with running_engine() as engine:
        for name in ("a", "b"):
            asked = AdmitCommand(CLUSTER, "", (make_job(name, 2),), policy="fifo")
            await ask_admit(engine, asked)
            await ask_place(engine, place(*asked.jobs))
            await asyncio.sleep(0.01)
        assert found == ["a", "a", "b"], "asked, then ahead once per gang that was placed"
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.FINISHED)])
        await asyncio.sleep(0.01)
        found.clear()
        await ask_admit(engine, AdmitCommand(CLUSTER, "", (make_job("c", 2),), policy="fifo"))
        assert found == []
