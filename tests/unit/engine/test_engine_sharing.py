"""GPU sharing of models that only the site has measured, by the service as it ships."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.job import CoRun, GpuSharing, Job
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

# Its neighbours on a GPU wait for it: it is fast beside them, and they are slow.
HUNGRY = (CoRun("LM", 0.95, 0.5, "V100"), CoRun("CycleGAN", 0.9, 0.45, "V100"))


def sharing(name: str, model: str, limit: float, *co_runs: CoRun) -> Job:
    return dataclasses.replace(make_job(name), model=model, gpu_sharing=GpuSharing(True, limit, co_runs))


async def place(engine: Engine, job: Job, *, dry_run: bool = False) -> JobDecision:
    command = PlaceCommand(CLUSTER, (job,), is_dry_run=dry_run)
    decided = (await ask_place(engine, command)).decisions[0]
    await asyncio.sleep(0)  # the view hears of it when the answer is on its way
    return decided


async def two_tenants(engine: Engine, models: Sequence[tuple[str, float]]) -> None:
    """One node whose two GPUs serve one job each, in this order; each may serve two."""
    await engine.report_nodes(CLUSTER, [make_node("n0", len(models), max_jobs_per_gpu=2)], full=True)
    for g, (model, limit) in enumerate(models):
        decision = await place(engine, sharing(f"tenant{g}", model, limit))
        assert decision.assignments[0].gpu_indices == (g,)


def gpu_of(decision: JobDecision) -> int:
    [assignment] = decision.assignments
    return assignment.gpu_indices[0]


async def test_two_co_runs_find_the_neighbour_that_a_name_does_not() -> None:
    async with running_engine(nodes=0) as engine:
        await two_tenants(engine, [("Transformer", 3.0), ("Recommendation", 1.5)])
        by_name = await place(engine, sharing("a", "resnet-ours", 1.5), dry_run=True)
        assert gpu_of(by_name) == 1, "a ResNet suits the recommender, and the Transformer slows it down"
        reported = await place(engine, sharing("a", "resnet-ours", 1.5, *HUNGRY), dry_run=True)
        assert gpu_of(reported) == 0, "the recommender would wait too long; the Transformer does not mind"
        [slowed] = [n for n in reported.neighbours if n.job_id == "tenant0"]
        assert 1 / 3 <= slowed.speed_after / slowed.speed_before < 0.66, "beside a ResNet it would be 0.68"


async def test_a_measured_pair_stands_before_everything() -> None:
    async with running_engine(nodes=0) as engine:
        await two_tenants(engine, [("Transformer", 3.0), ("Recommendation", 1.5)])
        for own, placed in ((0.7, True), (0.6, False)):
            co_runs = (CoRun("Transformer", own, 0.9), CoRun("Recommendation", 0.1, 0.1))
            decision = await place(engine, sharing("a", "resnet-ours", 1.5, *co_runs), dry_run=True)
            assert (decision.outcome is Outcome.PLACED) == placed


async def test_steps_that_are_longer_than_assumed_count() -> None:
    async with running_engine(nodes=0) as engine:
        await two_tenants(engine, [("Recommendation", 1.3)])
        for step_s, placed in ((0.01, True), (10.0, False)):
            job = sharing("a", "ours", 9.0, CoRun("LM", 0.7, 0.7, step_s=step_s))
            decision = await place(engine, job, dry_run=True)
            assert (decision.outcome is Outcome.PLACED) == placed, "the recommender would wait for long steps"


async def test_a_tenants_co_runs_count_for_whoever_comes_while_it_runs() -> None:
    async with running_engine(nodes=0) as engine:
        await two_tenants(engine, [("Transformer", 3.0), ("Recommendation", 1.5)])
        assert gpu_of(await place(engine, sharing("b", "resnet-ours", 1.5), dry_run=True)) == 1
        await engine.report_nodes(CLUSTER, [make_node("n1", 1, gpu_model="A100")], full=False)
        teller = sharing("teller", "ResNet-Ours", 1.5, *HUNGRY)
        teller = dataclasses.replace(teller, groups=(dataclasses.replace(teller.groups[0], gpu_model="A100"),))
        assert (await place(engine, teller)).assignments[0].node == "n1"
        assert gpu_of(await place(engine, sharing("b", "resnet-ours", 1.5), dry_run=True)) == 0
        await engine.report_job_events(CLUSTER, [JobEvent(teller.id, JobEventKind.FINISHED)])
        newcomer = sharing("b", "resnet-ours", 1.5)
        newcomer = dataclasses.replace(newcomer, groups=(dataclasses.replace(newcomer.groups[0], gpu_model="V100"),))
        assert gpu_of(await place(engine, newcomer, dry_run=True)) == 1


@pytest.mark.parametrize("kind", [JobEventKind.SUBMITTED, JobEventKind.FINISHED])
async def test_co_runs_of_a_described_job_are_kept_for_all_of_its_model(kind: JobEventKind) -> None:
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    async with running_engine(nodes=0, store=store, clock=clock) as engine:
        await two_tenants(engine, [("Transformer", 3.0), ("Recommendation", 1.5)])
        described = sharing("gone", "resnet_ours", 2.0, *HUNGRY)
        outcome = await engine.report_job_events(CLUSTER, [JobEvent(described.id, kind, job=described)])
        again = await engine.report_job_events(CLUSTER, [JobEvent(described.id, kind, job=described)])
        assert again.version == outcome.version, "nothing new is not written"
        assert gpu_of(await place(engine, sharing("b", "resnet-ours", 1.5), dry_run=True)) == 0
    async with running_engine(nodes=0, store=store, clock=clock) as other:
        assert gpu_of(await place(other, sharing("b", "resnet-ours", 1.5), dry_run=True)) == 0
