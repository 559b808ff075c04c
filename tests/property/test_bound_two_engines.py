"""The bound on a head's wait, on two running engines and one real Redis: one-GPU jobs without end, a gang as large as
the cluster behind them, each declares a tenth of its length."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, place

from placewise_core.basics.clock import SystemClock
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Outcome, Verdict
from placewise_core.domain.job import Job, JobId
from placewise_service.engine import Engine
from placewise_service.engine.build import build_engine
from placewise_service.engine.parts import EngineOptions
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import EmbeddedRedis
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.telemetry import Telemetry

pytestmark = pytest.mark.process

TOLD_S, TRUE_S, BOUND_S = 0.1, 1.0, 3.0
STEP_S, NODES, GPUS = 0.05, 2, 2
MOST_S = BOUND_S + TRUE_S + 6.0  # bound, longest true remaining time, and a machine with other work


@contextlib.asynccontextmanager
async def engine_on(url: str, bound_s: float) -> AsyncIterator[Engine]:
    store = RedisStore(RedisOptions(url, timeout_s=30.0))
    options = EngineOptions(queue=QueueSettings(slot_s=1.0, bound_s=bound_s))
    engine = build_engine(store, SystemClock(), Telemetry(), options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


class Host:
    """A scheduler in front of two replicas: it asks either of them, and places by the other."""

    def __init__(self, engines: tuple[Engine, Engine], policy: str, seed: int) -> None:
        self._engines, self._policy, self._rng = engines, policy, np.random.default_rng(seed)
        self._clock, self._ends_s = SystemClock(), dict[JobId, float]()
        self._names = itertools.count()
        self._waiting: list[Job] = []
        self.started = 0

    async def gang_waits_s(self) -> float:
        """How long the gang waits; MOST_S if it has not started by then."""
        began_s = self._clock.now_s()
        gang = replace(make_job("gang", workers=NODES * GPUS), single_gpu_s=TOLD_S, submit_time_s=began_s)
        while (now_s := self._clock.now_s()) < began_s + MOST_S:
            await self._finish(now_s)
            while len(self._waiting) < 6:
                new = make_job(f"j{next(self._names)}")
                self._waiting.append(replace(new, single_gpu_s=TOLD_S, submit_time_s=now_s))
            if gang.id in await self._start([*self._waiting, gang]):
                return self._clock.now_s() - began_s
            await asyncio.sleep(STEP_S)
        return MOST_S

    async def _finish(self, now_s: float) -> None:
        ended = [name for name, end_s in self._ends_s.items() if end_s <= now_s]
        for name in ended:
            del self._ends_s[name]
        if ended:
            events = [JobEvent(name, JobEventKind.FINISHED) for name in ended]
            await self._engines[int(self._rng.integers(2))].report_job_events(CLUSTER, events)

    async def _start(self, jobs: list[Job]) -> set[JobId]:
        asked = int(self._rng.integers(2))
        plan = (
            await ask_admit(self._engines[asked], AdmitCommand(CLUSTER, "q", tuple(jobs), policy=self._policy))
        ).plan
        admitted = {given.job_id for given in plan.admissions if given.verdict is Verdict.ADMIT}
        started = set()
        for job in [job for job in jobs if job.id in admitted]:
            (decision,) = (await ask_place(self._engines[1 - asked], place(job))).decisions
            if decision.outcome is Outcome.PLACED:
                started.add(job.id)
                self._ends_s[job.id] = self._clock.now_s() + TRUE_S
        self._waiting = [job for job in self._waiting if job.id not in started]
        self.started += len(started)
        return started


async def waited_s(folder: Path, policy: str, bound_s: float) -> tuple[float, int]:
    """The gang's wait, and the number of jobs that started."""
    with EmbeddedRedis(folder / "state") as redis:
        async with engine_on(redis.url, bound_s) as one, engine_on(redis.url, bound_s) as other:
            await one.report_nodes(CLUSTER, [make_node(f"n{i}", GPUS) for i in range(NODES)], full=True)
            host = Host((one, other), policy, seed=7)
            return await asyncio.wait_for(host.gang_waits_s(), 6 * MOST_S), host.started


@pytest.mark.parametrize("policy", ["fifo", "proteus", "qos"])
async def test_a_gang_starts_within_its_bound_on_two_engines(policy: str, tmp_path: Path) -> None:
    wait_s, started = await waited_s(tmp_path, policy, BOUND_S)
    assert started > NODES * GPUS, "jobs passed it"
    assert wait_s < MOST_S


async def test_without_the_bound_it_would_still_wait(tmp_path: Path) -> None:
    """The test above can fail."""
    wait_s, started = await waited_s(tmp_path, "fifo", 86_400.0)
    assert (wait_s, started > NODES * GPUS) == (MOST_S, True)
