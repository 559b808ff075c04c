"""The reservation of a queue's head is state: every replica obeys it, and a Place without a queue does, too."""

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Outcome, Reason, Verdict
from placewise_core.domain.job import Job, JobId
from placewise_service.engine import Engine
from placewise_service.engine import engine as engine_module
from placewise_service.state.reference.memory import MemoryStore


def lasting(name: str, workers: int, length_s: float) -> Job:
    """One GPU per worker; `length_s` on all of them, by the pessimistic gain of a GPU that heads assume."""
    return replace(make_job(name, workers=workers), single_gpu_s=length_s * (1.0 + 0.5 * (workers - 1)))


def admission(*jobs: Job, queue: str = "q") -> AdmitCommand:
    return AdmitCommand(CLUSTER, queue, jobs, policy="fifo")


async def admitted(engine: Engine, *jobs: Job, queue: str = "q") -> set[str]:
    plan = (await ask_admit(engine, admission(*jobs, queue=queue))).plan
    return {a.job_id for a in plan.admissions if a.verdict is Verdict.ADMIT}


async def test_a_head_binds_the_other_replica_other_queues_and_a_direct_place() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    gang, long, short = lasting("gang", 8, 100.0), lasting("long", 1, 5000.0), lasting("short", 1, 500.0)
    async with running_engine(2, 4, store, clock) as one, running_engine(0, 0, store, clock) as other:
        await ask_place(one, place(lasting("runs", 2, 1000.0)))
        assert await admitted(one, gang, long, short) == {"short"}
        live = await other._parts.views.get(CLUSTER)
        await other._parts.catch_up(live)
        assert live.view.heads["q"].job == "gang"
        assert await admitted(other, long, queue="another") == set()
        refused, let_through = (await ask_place(other, place(long, short))).decisions
        assert (refused.outcome, refused.blockers[0].reason) == (Outcome.WAIT, Reason.BEHIND_IN_QUEUE)
        assert let_through.outcome is Outcome.PLACED


async def test_a_job_admitted_past_the_head_is_placed_though_time_has_passed() -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(2, 4, clock=clock) as engine:
        await ask_place(engine, place(lasting("runs", 2, 1000.0)))
        just_short = lasting("just-short", 1, 1000.0)
        assert await admitted(engine, lasting("gang", 8, 100.0), just_short) == {"just-short"}
        clock.advance(5.0)
        decision = await ask_place(engine, place(just_short))
        assert decision.decisions[0].outcome is Outcome.PLACED


@pytest.mark.parametrize(("policy", "before"), [("fifo", "fifo-strict"), ("proteus", "proteus-paper")])
async def test_a_cluster_whose_policy_has_another_order_now_is_told_once(
    policy: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    await store.update_settings(CLUSTER, ClusterSettings(admit_policy=policy))
    await store.update_settings("other", ClusterSettings(admit_policy="qos"))
    monkeypatch.setattr(engine_module, "_CLUSTERS_PERIOD_S", 0.0)
    with capture_logs() as lines:
        async with running_engine(store=store, clock=clock):
            for _ in range(20):  # rounds in which clusters are met again
                await asyncio.sleep(0)
    assert [line["cluster"] for line in lines if before in line["event"]] == [CLUSTER]


@pytest.mark.parametrize("kind", [JobEventKind.CANCELLED, JobEventKind.FAILED])
async def test_a_head_that_is_cancelled_gives_its_nodes_up_at_once(kind: JobEventKind) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    gang, long = lasting("gang", 8, 100.0), lasting("long", 1, 5000.0)
    async with running_engine(2, 4, store, clock) as one, running_engine(0, 0, store, clock) as other:
        await ask_place(one, place(lasting("runs", 2, 1000.0)))
        assert await admitted(one, gang, long) == set()
        await one.report_job_events(CLUSTER, [JobEvent(gang.id, kind)])
        assert await admitted(one, long, queue="another") == {"long"}
        await other._parts.catch_up(await other._parts.views.get(CLUSTER))
        assert (await ask_place(other, place(long))).decisions[0].outcome is Outcome.PLACED


async def test_a_replica_that_loads_later_knows_no_head_that_has_ended() -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    gang = lasting("gang", 8, 100.0)
    async with running_engine(2, 4, store, clock) as one:
        await ask_place(one, place(lasting("runs", 2, 1000.0)))
        assert await admitted(one, gang) == set()
        await one.report_job_events(CLUSTER, [JobEvent(JobId("runs"), JobEventKind.FINISHED)])
        assert await admitted(one, gang) == {"gang"}
        assert (await ask_place(one, place(gang))).decisions[0].outcome is Outcome.PLACED
        await one.report_job_events(CLUSTER, [JobEvent(gang.id, JobEventKind.FINISHED)])
        async with running_engine(0, 0, store, clock) as fresh:
            assert (await fresh._parts.views.get(CLUSTER)).view.heads == {}
            assert (await ask_place(fresh, place(lasting("long", 1, 5000.0)))).decisions[0].outcome is Outcome.PLACED
