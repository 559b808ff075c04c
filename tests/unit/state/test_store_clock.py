"""The clock that replicas share: the store's, not their machines' own."""

import pytest
from structlog.testing import capture_logs
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, running_engine

from placewise_core.basics.clock import Clock, ManualClock
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.errors import StateUnavailableError
from placewise_service.state.clock import StoreClock
from placewise_service.state.reference.memory import MemoryStore

HOUR_S = 3600.0


class Source:
    """A store at `clock`'s time, whose answers are `way_s` on their way, half of it each."""

    def __init__(self, clock: ManualClock, own: ManualClock) -> None:
        self.clock, self.own = clock, own
        self.way_s = 0.0
        self.is_away = False

    async def ping(self) -> float:
        if self.is_away:
            raise StateUnavailableError("away")
        self.pass_time(self.way_s / 2)
        told_s = self.clock.now_s()
        self.pass_time(self.way_s / 2)
        return told_s

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.own.advance(seconds)


@pytest.fixture
def source() -> Source:
    return Source(ManualClock(1_000_000.0), ManualClock(1_000_000.0 + HOUR_S))


async def test_the_time_is_the_stores_and_no_jump_of_the_machine_moves_it(source: Source) -> None:
    clock = StoreClock(source, source.own)
    assert clock.now_s() == source.own.now_s(), "until the store was heard of"
    with capture_logs() as logs:
        await clock.look()
    assert [entry["ahead_s"] for entry in logs] == [HOUR_S]
    source.own.jump(0.0)
    source.pass_time(5.0)
    assert clock.now_s() == pytest.approx(source.clock.now_s())
    source.clock.jump(2_000_000.0)
    await clock.look()
    assert clock.now_s() == pytest.approx(2_000_000.0)


async def test_what_is_long_on_its_way_is_believed_only_at_first(source: Source) -> None:
    clock = StoreClock(source, source.own)
    source.way_s = 4.0
    await clock.look()
    assert clock.now_s() == pytest.approx(source.clock.now_s()), "half of the way back has passed"
    source.clock.jump(2_000_000.0)
    await clock.look()
    assert clock.now_s() < 1_100_000.0
    source.way_s = 0.01
    await clock.look()
    assert clock.now_s() == pytest.approx(source.clock.now_s())


async def test_a_store_that_is_away_leaves_the_time_as_it_goes(source: Source) -> None:
    clock = StoreClock(source, source.own)
    source.is_away = True
    with pytest.raises(StateUnavailableError):
        await clock.start()
    source.is_away = False
    await clock.start()
    source.is_away = True
    source.pass_time(60.0)
    assert clock.now_s() == pytest.approx(source.clock.now_s())
    await clock.close()
    await clock.close()


async def test_replicas_whose_machines_differ_by_an_hour_take_turns_in_one_queue() -> None:
    shared = ManualClock(1_000_000.0)
    store = MemoryStore(shared)
    own = [ManualClock(1_000_000.0), ManualClock(1_000_000.0 + HOUR_S)]
    clocks = [StoreClock(store, clock) for clock in own]
    question = AdmitCommand(CLUSTER, "q", (make_job("a"), make_job("b")), policy="proteus")
    for clock in clocks:
        await clock.look()

    def pass_slot() -> None:
        for clock in (shared, *own):
            clock.advance(10.0)

    async with (
        running_engine(store=store, clock=as_manual(clocks[0])) as slow,
        running_engine(store=store, clock=as_manual(clocks[1]), nodes=0) as fast,
    ):
        slots = []
        for engine in (fast, slow, fast):
            slots.append((await ask_admit(engine, question)).plan.queue.slot)
            pass_slot()
        assert slots == [100_000, 100_001, 100_002]


def as_manual(clock: Clock) -> ManualClock:
    return clock  # type: ignore[return-value]  # an engine only reads it
