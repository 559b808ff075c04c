"""An answer can be written while the store is asked; the view and the store agree in the end, even if nobody waits for
it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import AdmitDecision, Outcome, PlaceDecision
from placewise_core.domain.events import Event
from placewise_core.domain.job import ElasticRange, Job, JobId
from placewise_service.engine import Engine
from placewise_service.engine.pending import Pending
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import Conflict, ReserveRequest, ReserveResult


class SlowStore(MemoryStore):
    """Says nothing before it may; refuses the first `conflicts` reservations."""

    conflicts = 0

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.may_answer = asyncio.Event()

    async def reserve(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        await self.may_answer.wait()
        if self.conflicts:
            self.conflicts -= 1
            return Conflict("n0", "GPU_TAKEN")
        return await super().reserve(cluster, request)

    async def commit_queue(self, cluster: str, queue: QueueState, expected_seq: int) -> Event | None:
        await self.may_answer.wait()
        return await super().commit_queue(cluster, queue, expected_seq)


@contextlib.asynccontextmanager
async def _slow() -> AsyncIterator[tuple[Engine, SlowStore]]:
    clock = ManualClock(1_000_000.0)
    store = SlowStore(clock)
    async with running_engine(nodes=1, store=store, clock=clock) as engine:
        yield engine, store


def _admission(*names: str) -> AdmitCommand:
    jobs = [Job(JobId(name), model="ResNet-50", single_gpu_s=600.0, elastic=ElasticRange(1, 4)) for name in names]
    return AdmitCommand(CLUSTER, "q", tuple(jobs), policy="proteus")


async def _place_and_wait(engine: Engine, command: PlaceCommand) -> None:
    pending = await engine.place(command)
    await asyncio.sleep(3600.0)
    await pending.settled()


async def _admit_and_wait(engine: Engine, command: AdmitCommand) -> None:
    pending = await engine.admit_or_wait(command)
    await asyncio.sleep(3600.0)
    await pending.settled()


async def _cancelled(call: asyncio.Task[None]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def _rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_decision_is_known_before_the_store_has_agreed_to_it() -> None:
    async with _slow() as (engine, store):
        pending = await engine.place(place(make_job("a"), reserve_ttl_s=30.0))
        drafted = pending.decision.decisions[0]
        assert (drafted.outcome, drafted.expire_time_s) == (Outcome.PLACED, 0.0)
        assert drafted.predicted_speed > 0.0
        store.may_answer.set()
        (final,) = (await pending.settled()).decisions
        assert (final.assignments, final.reservation_id) == (drafted.assignments, drafted.reservation_id)
        assert final.expire_time_s == pytest.approx(1_000_030.0)


async def test_a_caller_that_is_cancelled_before_it_waits_leaves_what_the_store_holds() -> None:
    async with _slow() as (engine, store):
        await _cancelled(asyncio.create_task(_place_and_wait(engine, place(make_job("a"), request_id="r"))))
        store.may_answer.set()
        await _rounds()
        live = await engine._parts.views.get(CLUSTER)
        assert not live._assumed
        assert live.view.jobs.keys() == {"a"}
        again = await ask_place(engine, place(make_job("a"), request_id="r"))
        assert again.meta.is_repeated
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("a"), JobEventKind.CANCELLED)])
        assert int(live.view.usage.free_gpus.sum()) == 4


async def test_a_caller_that_is_cancelled_before_it_waits_leaves_nothing_that_the_store_refused() -> None:
    async with _slow() as (engine, store):
        store.conflicts = 3
        await _cancelled(asyncio.create_task(_place_and_wait(engine, place(make_job("a")))))
        store.may_answer.set()
        live = await engine._parts.views.get(CLUSTER)
        async with asyncio.timeout(10.0):
            while live._assumed:
                await live.wait_changed(0.01)
        assert int(live.view.usage.free_gpus.sum()) == 4


async def test_a_caller_that_is_cancelled_while_it_waits_gives_back_what_was_assumed() -> None:
    async with _slow() as (engine, _):
        await _cancelled(asyncio.create_task(ask_place_and_drop(engine)))
        live = await engine._parts.views.get(CLUSTER)
        assert not live._assumed
        assert int(live.view.usage.free_gpus.sum()) == 4


async def ask_place_and_drop(engine: Engine) -> None:
    await ask_place(engine, place(make_job("a")))


async def test_a_cancelled_admission_lets_the_next_one_have_its_turn() -> None:
    async with _slow() as (engine, store):
        await _cancelled(asyncio.create_task(_admit_and_wait(engine, _admission("a"))))
        store.may_answer.set()
        decision = await asyncio.wait_for(ask_admit(engine, _admission("a", "b")), 10.0)
        assert {admission.job_id for admission in decision.plan.admissions} == {"a", "b"}
        assert not engine._admitting.turns


async def test_an_admission_is_known_before_the_store_has_agreed_to_it() -> None:
    async with _slow() as (engine, store):
        pending: Pending[AdmitDecision] = await engine.admit_or_wait(_admission("a"))
        assert not pending.is_settled
        store.may_answer.set()
        assert await pending.settled() is pending.decision


async def test_what_asks_nothing_of_the_store_is_settled_at_once() -> None:
    async with running_engine() as engine:
        tried: Pending[PlaceDecision] = await engine.place(place(make_job("a"), is_dry_run=True))
        assert tried.is_settled
        assert await tried.settled() is tried.decision
