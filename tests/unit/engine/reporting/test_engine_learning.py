"""What hosts report teaches the service: overheads of task kinds, metrics of subtask kinds."""

import dataclasses

from tests.fakes.engine import CLUSTER, ask_place, running_engine

from placewise_core.domain.commands import (
    JobEvent,
    JobEventKind,
    PartitionCommand,
    PlaceCommand,
    Scope,
    ShareOutcome,
    SubtaskOutcome,
)
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job, JobId, Subtask
from placewise_core.subtasks.metrics import KnownMetrics
from placewise_service.engine import Engine

METRICS = {"speedup": 6.0, "gpu_util": 0.2}


def pipeline(name: str, *profiles: dict[str, float]) -> Job:
    subtasks = tuple(
        Subtask(f"s{i}", kind=f"k{i}", has_gpu_version=True, profile=profile) for i, profile in enumerate(profiles)
    )
    return Job(JobId(name), subtasks=subtasks)


async def submit(engine: Engine, *jobs: Job) -> tuple[int, int, int]:
    """Version, and how many events changed something and did not."""
    events = [JobEvent(job.id, JobEventKind.SUBMITTED, job=job) for job in jobs]
    outcome = await engine.report_job_events(CLUSTER, events)
    return outcome.version, outcome.applied, outcome.ignored


async def test_overheads_of_finished_shares_are_the_q_of_the_next_split() -> None:
    async with running_engine() as engine:

        async def q(kind: str) -> float:
            return (
                await engine.partition(PartitionCommand(CLUSTER, DivisibleTask("t", 1000.0, kind=kind)))
            ).plan.overhead_s

        default = await q("render")
        for unit, overhead_s in (("gpu0", 7.0), ("gpu1", 9.0), ("gpu1", 9.0)):  # the last one is a repeat
            share = ShareOutcome("render", "n0", unit, scale=1.0, seconds=5.0, overhead_s=overhead_s)
            await engine.report_job_events(CLUSTER, [JobEvent(JobId("t"), JobEventKind.SHARE_FINISHED, share=share)])
        assert (await q("render"), await q("encode")) == (8.0, default)


async def test_metrics_of_described_subtasks_serve_all_of_their_kind() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        version, *counts = await submit(engine, pipeline("a", METRICS, {}), pipeline("b", {"gpu_util": 0.3}))
        assert counts == [2, 0]
        view = (await engine.get_cluster(CLUSTER)).view
        known = KnownMetrics.from_view(view)
        bare = pipeline("c", {}, {}).subtasks
        assert known.of(bare[0]) == {"speedup": 6.0, "gpu_util": 0.3}
        assert known.of(bare[1]) == {}
        own = dataclasses.replace(bare[0], profile={"speedup": 2.0})
        assert known.of(own)["speedup"] == 2.0, "the request's own value comes first"
        assert (await submit(engine, pipeline("d", {"gpu_util": 0.3})))[0] == version, "nothing new is not written"


async def test_learned_metrics_decide_where_a_subtask_runs() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        question = PlaceCommand(CLUSTER, (pipeline("c", {}, {}),), scope=Scope.NODE, node_id="n0")

        async def on_gpu() -> list[str]:
            decided = (await ask_place(engine, question)).decisions[0].assignments
            return [assignment.subtask for assignment in decided if assignment.gpu_indices]

        await submit(engine, pipeline("a", {"speedup": 0.5}, {"speedup": 9.0}))
        assert await on_gpu() == ["s1"]
        await submit(engine, pipeline("b", {"speedup": 9.0}, {"speedup": 0.5}))
        assert await on_gpu() == ["s0"]


def finished(unit: str, seconds: float, size: float = 0.0, kind: str = "k0") -> JobEvent:
    outcome = SubtaskOutcome("s0", kind, unit, seconds, size, "n0")
    return JobEvent(JobId("a"), JobEventKind.SUBTASK_FINISHED, subtask=outcome)


async def test_seconds_of_finished_subtasks_become_times_and_the_speedup_of_their_kind() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        view = (await engine.get_cluster(CLUSTER)).view
        on_core = [finished("cpu3", 6.0, size=4.0)]
        assert (await engine.report_job_events(CLUSTER, on_core)).applied == 1
        assert view.subtask_profiles["k0"] == {"core_s": 1.5}
        repeated = await engine.report_job_events(CLUSTER, on_core)
        assert (repeated.applied, repeated.ignored) == (0, 1)
        both = [finished("gpu0", 0.5), finished("cpu0", 2.0), finished("cpu0", 1.0, kind="k1")]
        assert (await engine.report_job_events(CLUSTER, both)).applied == 3
        assert view.subtask_profiles["k0"] == {"core_s": 2.0, "gpu_s": 0.5, "speedup": 4.0}
        assert view.subtask_profiles["k1"] == {"core_s": 1.0}


async def test_reported_seconds_decide_where_a_subtask_runs() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        question = PlaceCommand(CLUSTER, (pipeline("c", {}, {}),), scope=Scope.NODE, node_id="n0", policy="pats")
        for fast, slow in (("k0", "k1"), ("k1", "k0")):
            for kind, gpu_s in ((fast, 0.1), (slow, 1.0)):
                await engine.report_job_events(
                    CLUSTER, [finished("cpu0", 1.0, kind=kind), finished("gpu0", gpu_s, kind=kind)]
                )
            decided = (await ask_place(engine, question)).decisions[0].assignments
            assert [a.subtask for a in decided if a.gpu_indices] == [fast.replace("k", "s")]


async def test_ect_knows_the_times_that_were_reported() -> None:
    async with running_engine(nodes=1, gpus=1) as engine:
        question = PlaceCommand(CLUSTER, (pipeline("c", {}),), scope=Scope.NODE, node_id="n0", policy="ect")
        assert "no time is known of k0" in (await ask_place(engine, question)).meta.fallback_reason
        await engine.report_job_events(CLUSTER, [finished("cpu0", 1.0)])
        assert not (await ask_place(engine, question)).meta.fallback_reason
