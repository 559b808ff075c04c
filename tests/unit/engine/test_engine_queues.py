"""What callers may invent, names of queues, takes no room without bound."""

import asyncio
from collections.abc import Callable

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import Verdict
from placewise_core.domain.errors import InvalidRequestError
from placewise_service.engine import Engine
from placewise_service.engine import engine as engine_module
from placewise_service.state.reference.memory import MemoryStore


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
