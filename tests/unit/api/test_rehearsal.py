"""The rehearsal asks everything once, and leaves no trace."""

import asyncio

import pytest
from structlog.testing import capture_logs
from tests.fakes.engine import CLUSTER, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.rehearsal import SCRIPT, MutedTelemetry, rehearse
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

ASKED = {"Place", "AdmitOrWait", "Partition"}


async def rehearsed(engine: Engine, clock: ManualClock) -> list[str]:
    """Runs the rehearsal of an engine; its complaints."""
    twin = engine.twin(MemoryStore(clock), MutedTelemetry())
    with capture_logs() as logs:
        await rehearse(twin, clock)
    await twin.close()
    return [str(line) for line in logs if line["event"] == "rehearsal failed"]


async def test_every_question_is_rehearsed_and_answered() -> None:
    clock = ManualClock(1_000_000.0)
    assert {name for name, _ in SCRIPT} >= ASKED
    assert {name for name, _ in SCRIPT} <= set(RPCS)
    async with running_engine(clock=clock) as engine:
        assert await rehearsed(engine, clock) == []


async def test_a_rehearsal_touches_neither_state_nor_log_nor_metrics() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(store=store, clock=clock) as engine:
        metrics = engine._parts.telemetry
        before = metrics.render()
        version = (await engine.get_cluster(CLUSTER)).view.version
        await rehearsed(engine, clock)
        await asyncio.sleep(0)
        assert await store.clusters() == [CLUSTER]
        assert (await engine.get_cluster(CLUSTER)).view.version == version
        assert len(engine._parts.sink) == 0
        assert counts(metrics.render()) == counts(before)


async def test_an_engine_that_stumbles_in_rehearsal_is_named_and_may_still_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(clock=clock) as engine:
        monkeypatch.setattr(Engine, "partition", None)
        (complaint,) = await rehearsed(engine, clock)
        assert "Partition" in complaint


def test_muted_telemetry_counts_nothing() -> None:
    muted, loud = MutedTelemetry(), Telemetry()
    for telemetry in (muted, loud):
        telemetry.rpc("Place", "OK", 0.1)
        telemetry.decision("Place", "tetris", "PLACED", is_fallback=True, seconds=0.1)
        telemetry.in_flight(3)
        telemetry.log_drops(2)
        telemetry.view_lag("c", 1.0)
    assert not [line for line in counts(muted.render()) if line.startswith("placewise_")]
    assert "placewise_fallbacks_total" in "".join(counts(loud.render()))


def counts(rendered: bytes) -> list[str]:
    """The samples that Placewise itself counts."""
    return [line for line in rendered.decode().splitlines() if line.startswith("placewise_") and "_created" not in line]
