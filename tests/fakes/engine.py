"""A real engine on the in-memory store and a manual clock."""

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.fakes.cluster import make_job, make_node

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.commands import AdmitCommand, PlaceCommand
from placewise_core.domain.decision import AdmitDecision, PlaceDecision
from placewise_core.domain.job import Job
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ReserveRequest, ReserveResult, StateStore
from placewise_service.telemetry import Telemetry

CLUSTER = "c"


class ConflictOnce(MemoryStore):
    """Another replica takes a GPU between the decision and its reservation, without this replica's knowledge."""

    conflicts = 0

    async def reserve(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        if self.conflicts < 1:
            self.conflicts += 1
            taken = dataclasses.replace(request.jobs[0], job=make_job("other"), reservation_id="other")
            await super().reserve(cluster, ReserveRequest((taken,), ttl_s=60.0))
        return await super().reserve(cluster, request)


@asynccontextmanager
async def running_engine(
    nodes: int = 4,
    gpus: int = 4,
    store: StateStore | None = None,
    clock: ManualClock | None = None,
    **shares: float,
) -> AsyncIterator[Engine]:
    """An engine that knows cluster "c" of `nodes` equal nodes n0, n1, …; `shares` are options of the engine."""
    clock = clock or ManualClock(1_000_000.0)
    options = replace(EngineOptions(queue=QueueSettings(slot_s=10.0)), **shares)
    engine = build_engine(store or MemoryStore(clock), clock, Telemetry(), options)
    await engine.start()
    if nodes:
        await engine.report_nodes(CLUSTER, [make_node(f"n{i}", gpus) for i in range(nodes)], full=True)
    try:
        yield engine
    finally:
        await engine.close()


async def logged(engine: Engine) -> bool:
    """Everything decided so far is in the store's log, and read for drift. Records are made after the answers."""
    engine._parts.telemetry.afterwards.run()
    await engine._mixing.finish()
    await engine._studying.finish()
    await engine._shadowed.finish()
    is_written = await engine._parts.sink.flush()
    while engine._drift.read_one():
        pass
    return is_written


def place(*jobs: Job, **changes: object) -> PlaceCommand:
    return dataclasses.replace(PlaceCommand(CLUSTER, jobs), **changes)  # type: ignore[arg-type]


async def ask_place(engine: Engine, command: PlaceCommand, deadline_s: float = math.inf) -> PlaceDecision:
    """The answer, once the store has agreed."""
    return await (await engine.place(command, deadline_s)).settled()


async def ask_admit(engine: Engine, command: AdmitCommand, deadline_s: float = math.inf) -> AdmitDecision:
    """The answer, once the store has agreed."""
    return await (await engine.admit_or_wait(command, deadline_s)).settled()


async def answer_is_on_its_way() -> None:
    """Then the view hears that the store has agreed. A host's next word comes later still; a test's would not."""
    await asyncio.sleep(0)
