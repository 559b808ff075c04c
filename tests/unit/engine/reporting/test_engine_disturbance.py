"""Disturbance learned from reports of progress: on every replica, and where it is shown."""

import math
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_place, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, QueueSettings
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role
from placewise_service.api.convert.convert_cluster import totals
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

NOW_S = 1_000_000.0


def usual(queue: str) -> QueueSettings:
    return QueueSettings()


def gang(name: str) -> Job:
    return replace(make_job(name, workers=2), dataset_size=1000, batch_size=64, total_epochs=10.0)


async def started(engine: Engine, name: str, *spots: tuple[str, int]) -> None:
    """A host started the gang there."""
    tasks = [
        Assignment(f"worker-{i}", Role.WORKER, NodeId(node), (gpu,), Resources(gpus=1.0))
        for i, (node, gpu) in enumerate(spots)
    ]
    event = JobEvent(JobId(name), JobEventKind.STARTED, job=gang(name), placement=tuple(tasks))
    await engine.report_job_events(CLUSTER, [event])


async def progressed(engine: Engine, name: str, speed: float, epochs: float) -> None:
    event = JobEvent(JobId(name), JobEventKind.PROGRESS, speed=speed, epochs_done=epochs)
    await engine.report_job_events(CLUSTER, [event])


async def loss(engine: Engine) -> tuple[float, float]:
    known = (await engine.get_cluster(CLUSTER)).view.estimates.disturbance
    return known.loss, known.weight


async def reported(engine: Engine) -> None:
    """The gang `a` reports alone, then with half of its speed beside `b`."""
    await started(engine, "a", ("n0", 0), ("n1", 0))
    await progressed(engine, "a", 0.5, 1.0)
    await started(engine, "b", ("n1", 1), ("n2", 0))
    await progressed(engine, "a", 0.25, 2.0)


async def test_a_gang_that_slows_down_beside_another_shows_the_loss_on_every_replica() -> None:
    clock = ManualClock(NOW_S)
    store = MemoryStore(clock)
    async with (
        running_engine(store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        guess, _ = await loss(one)
        await reported(one)
        found, weight = await loss(one)
        pairs = 1.0 * 0.5 / 1.5
        assert weight == pytest.approx(pairs)
        assert found == pytest.approx(1.0 - math.exp(-(pairs * math.log(2.0) + 0.25 * 0.3) / (pairs + 0.25)))
        assert found > guess
        version = (await one.get_cluster(CLUSTER)).view.version
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < version:
            await live.wait_changed(1.0)
        assert await loss(other) == (found, weight)


async def test_a_report_that_comes_twice_counts_once() -> None:
    async with running_engine(clock=ManualClock(NOW_S)) as engine:
        await reported(engine)
        before = await loss(engine)
        await progressed(engine, "a", 0.25, 2.0)
        assert await loss(engine) == before


async def test_the_policy_of_the_same_name_keeps_gangs_apart() -> None:
    async with running_engine(clock=ManualClock(NOW_S)) as engine:
        await started(engine, "a", ("n0", 0), ("n1", 0))
        wide = replace(gang("new"), groups=(replace(gang("new").groups[0], count=6),))
        decision = await ask_place(engine, place(wide, policy="consolidate-apart"))
        await answer_is_on_its_way()
        nodes = {task.node for task in decision.decisions[0].assignments}
        assert nodes.isdisjoint({"n0", "n1"})
        assert decision.meta.policy == "consolidate-apart"


async def test_the_cluster_shows_what_it_has_learned_once_jobs_have_reported() -> None:
    async with running_engine(clock=ManualClock(NOW_S)) as engine:
        shown = await engine.get_cluster(CLUSTER)
        assert not totals(shown.view, False, NOW_S, usual).HasField("disturbance")
        await reported(engine)
        message = totals((await engine.get_cluster(CLUSTER)).view, False, NOW_S, usual).disturbance
        assert (message.loss, message.pairs) == await loss(engine)
