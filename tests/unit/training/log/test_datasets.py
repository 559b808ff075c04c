"""Typed rows of an exported log, each as its trainer takes them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.declog import DAY_S, NOON_S, FakeRing, decision, decision_id, files, outcome, run
from tests.fakes.logs.simulated_log import Logging, simulated_log

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind, PlaceCommand, Scope, ShareOutcome, SubtaskOutcome
from placewise_core.domain.decision import (
    DecisionMeta,
    JobDecision,
    Outcome,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Share,
)
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Architecture, Job, JobId, NodeId, Role, Subtask
from placewise_core.speed.linear_speed import linear_speed, workers_of
from placewise_log.record import DecisionRecord, Entry, OutcomeRecord, Steps, Tensor
from placewise_log.store import LogError, LogStore
from placewise_service.declog.upkeep.publish import Store
from placewise_training.log.co_runs import CoRunRows
from placewise_training.log.index import LogIndex
from placewise_training.log.places import Places
from placewise_training.log.policy_steps import PolicyStepRows
from placewise_training.log.throughput_rows import ThroughputRows
from placewise_training.log.units import at_least_s, share_heat, subtask_times
from placewise_training.reward.data import collate
from placewise_training.reward.from_log import RewardRows
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import NodeLoad, Spot
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SEED = 3


def workload(count: int = 40) -> list[SimJob]:
    return HarmonyWorkload(jobs=count, per_interval=1.0).generate(make_truth("site", SEED), SEED)


def true_rate(job: SimJob) -> float:
    """Samples per second of a gang without servers that has a node to itself."""
    nodes = {spec.id: NodeLoad(spec) for spec in harmony_cluster(1)}
    workers, truth = workers_of(job.job), make_truth("site", SEED, noisy=False)
    footprint = truth.footprint(job, [Spot("server0", workers, 0, tuple(range(workers)))], nodes)
    nodes["server0"].add(job.id, footprint.parts[0])
    return truth.rate(footprint, nodes, {job.id: footprint})


async def made(folder: Path, **options: object) -> Logging:
    truth = make_truth("site", SEED, noisy=False)
    return await simulated_log(folder, harmony_cluster(6), workload(), truth, seed=SEED, **options)  # type: ignore[arg-type]


async def test_samples_of_the_reward_model_have_the_true_speeds_of_a_job_and_its_neighbours(tmp_path: Path) -> None:
    await made(tmp_path)
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        rows = RewardRows(store, index)
        found = list(rows)
    assert rows.counts["placed"] == len(found) == 40
    jobs = {job.submit_time_s: job for job in workload()}
    compared = 0
    for row in found:
        sample = row.sample
        if (sample.job == 0).all() and len(sample.job) == 1:  # alone on one node, as its length was declared
            job = next(job for at_s, job in sorted(jobs.items(), reverse=True) if NOON_S + at_s <= row.time_s + 1e-3)
            if job.job.model == row.model and job.job.architecture is not Architecture.PARAMETER_SERVER:
                per_epoch = job.samples / job.job.total_epochs
                wanted = true_rate(job) / per_epoch / linear_speed(job.job, workers_of(job.job))
                assert sample.speed[0] == pytest.approx(wanted, rel=0.02)
                compared += 1
    assert compared > 3
    beside = [row.sample for row in found if (row.sample.speed[row.sample.job > 0] > 0).any()]
    assert len(beside) > 5
    batch = collate([row.sample for row in found])
    assert batch["tokens"].shape[:2] == batch["speed"].shape == batch["bound"].shape
    assert {row.policy for row in found} == {"consolidate", "load-balance"}
    assert {row.propensity for row in found} == {0.5, 1.0}


async def test_overrides_dry_runs_and_shadows_are_counted_and_only_the_first_are_given(tmp_path: Path) -> None:
    def changed(entry: Entry) -> Entry:
        if isinstance(entry, DecisionRecord) and entry.jobs[0].id == "job00001":
            return replace(entry, is_dry_run=True)
        if isinstance(entry, DecisionRecord) and entry.jobs[0].id == "job00002":
            return replace(entry, shadow_of="d")
        is_moved = isinstance(entry, OutcomeRecord) and entry.event.job_id == "job00003"
        if is_moved and entry.event.kind is JobEventKind.STARTED:  # type: ignore[union-attr]
            tasks = tuple(replace(task, node=NodeId("elsewhere")) for task in entry.event.placement)  # type: ignore[union-attr]
            return replace(entry, event=replace(entry.event, placement=tasks))  # type: ignore[union-attr,type-var]
        return entry

    logging = await made(tmp_path, changed=changed)
    answered = {entry.jobs[0].id: entry for entry in logging.entries if isinstance(entry, DecisionRecord)}
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        places = Places(store, index)
        found = {placed.job.id: placed for placed in places}
        rows = RewardRows(store, index)
        assert len(list(rows)) == 37
    counts = {name: places.counts[name] for name in ("placed", "dry run", "shadow", "overridden")}
    assert counts == {"placed": 38, "dry run": 1, "shadow": 1, "overridden": 1}
    assert rows.counts["ran elsewhere"] == 1
    moved = found["job00003"]
    assert moved.outcome.is_overridden
    assert moved.run is not None
    assert moved.run.run.nodes == {"elsewhere"}
    assert moved.decided.assignments == answered["job00003"].place.decisions[0].assignments  # type: ignore[union-attr]


async def test_a_job_whose_host_fell_silent_counts_as_dangling_and_keeps_its_row(tmp_path: Path) -> None:
    entries: list[Entry] = []
    for n in (1, 2, 3):
        made_by = decision(n)
        placement = made_by.place.decisions[0].assignments  # type: ignore[union-attr]
        entries += [made_by, outcome(n, JobEventKind.STARTED, NOON_S, placement=placement)]
    entries.append(outcome(1, JobEventKind.FINISHED, NOON_S + 100.0))
    entries.append(outcome(3, JobEventKind.PROGRESS, NOON_S + 2000.0, epochs_done=1.0))
    ring = FakeRing(*entries)
    ring.now_s = NOON_S + DAY_S + 1000.0  # a day after the last word on the second job, not on the third
    await run(ring, tmp_path)
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        places = Places(store, index)
        found = {placed.job.id: placed.outcome.status for placed in places}
    assert found == {"j1": "OBSERVED", "j2": "DANGLING", "j3": "OPEN"}
    assert {name: places.counts[name] for name in ("placed", "dangling", "unfinished")} == {
        "placed": 3, "dangling": 1, "unfinished": 2,
    }  # fmt: skip


async def test_steps_of_throughput_are_those_of_jobs_that_were_alone_on_a_known_gpu(tmp_path: Path) -> None:
    await made(tmp_path)
    store = LogStore(tmp_path)
    all_reduce = [job for job in workload() if job.job.architecture is not Architecture.PARAMETER_SERVER]
    jobs = {(job.job.model, job.job.batch_size): job for job in all_reduce}
    with LogIndex(store) as index:
        rows = ThroughputRows(store, index)
        found = list(rows)
    assert len(found) > 3
    assert rows.counts["placed"] == len(found) + sum(
        rows.counts[name] for name in ("beside others", "of another architecture, or without batch and data set")
    )
    single = [row.step for row in found if row.step.placement in ("1", "2")]
    assert single
    for step in single:
        job = jobs[step.model, round(step.local_batch * int(step.placement))]
        samples_per_s = job.job.batch_size / step.step_s
        assert samples_per_s == pytest.approx(true_rate(job), rel=0.02)
    assert {row.step.gpu_type for row in found} == {"1080TI"}


async def test_steps_of_the_net_keep_the_answered_node_of_each_task_and_the_reward(tmp_path: Path) -> None:
    tokens = np.arange(6, dtype=np.float32).reshape(1, 3, 2)

    def changed(entry: Entry) -> Entry:
        if not isinstance(entry, DecisionRecord) or entry.place is None:
            return entry
        (task, *others) = entry.place.decisions[0].assignments
        if others:
            return entry
        nodes = ("server9", task.node, "server8")
        return replace(entry, steps=(Steps(entry.jobs[0].id, (task.task,), (0.25,), nodes, Tensor.pack(tokens)),))

    await made(tmp_path, changed=changed)
    store = LogStore(tmp_path)
    with LogIndex(store, "reward_5min") as index:
        rows = PolicyStepRows(store, index)
        found = list(rows)
    assert len(found) + rows.counts["without the net's steps"] == rows.counts["placed"] == 40
    assert len(found) > 3
    for each in found:
        assert each.tokens.tolist() == tokens.tolist()
        assert (each.action.tolist(), each.probability.tolist()) == ([1], [0.25])
        assert each.reward is not None
        assert each.reward > 0


async def test_pairs_on_one_gpu_have_speeds_over_those_declared_alone(tmp_path: Path) -> None:
    entries: list[Entry] = []
    for n, (start_s, model) in enumerate(((0.0, "resnet50"), (100.0, "vgg16")), start=1):
        at_s = NOON_S + start_s
        made_by = decision(n, time_s=at_s)
        job = made_by.jobs[0]
        job = replace(job, model=model, batch_size=32, total_epochs=10.0, single_gpu_s=1000.0)
        job = replace(job, gpu_sharing=replace(job.gpu_sharing, allowed=True))
        entries.append(replace(made_by, jobs=(job,)))
        placement = made_by.place.decisions[0].assignments  # type: ignore[union-attr]
        entries.append(outcome(n, JobEventKind.STARTED, at_s, decided_s=at_s, placement=placement))
    for n, first_s, epochs in ((1, 0.0, 1.0), (1, 0.0, 7.0), (2, 100.0, 8.0)):
        at_s = 100.0 if epochs == 1.0 else 1100.0
        entries.append(outcome(n, JobEventKind.PROGRESS, NOON_S + at_s, decided_s=NOON_S + first_s, epochs_done=epochs))
    ring = FakeRing(*entries)
    ring.now_s = NOON_S + 2000.0
    await run(ring, tmp_path)
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        (row,) = CoRunRows(store, index)
    assert (row.pair.model_a, row.pair.model_b, row.pair.batch_a) == ("vgg16", "resnet50", 32.0)
    assert (row.pair.norm_a, row.pair.norm_b) == pytest.approx((0.8, 0.6))


async def test_shares_of_a_task_have_the_seconds_that_they_took(tmp_path: Path) -> None:
    task = DivisibleTask("t", 8.0, kind="render")
    shares = (Share(NodeId("n1"), "gpu0", 3.0, 6.0, 60.0, 1.0), Share(NodeId("n2"), "cpu1", 1.0, 6.0, 60.0, 1.0))
    plan = PartitionPlan(Outcome.PLACED, shares)
    record = DecisionRecord(
        "Partition",
        NOON_S,
        "c",
        task=task,
        partition=PartitionDecision(plan, DecisionMeta(decision_id(1), "heat-island")),
    )
    done = ShareOutcome("render", "n1", "gpu0", 3.0, 7.5, 0.5, 71.0)
    ended = outcome(1, JobEventKind.SHARE_FINISHED, NOON_S + 8, share=done)
    ended = replace(ended, event=replace(ended.event, job_id=JobId("t")))
    await run(FakeRing(record, ended), tmp_path)
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        ended, running = (index.share(decision_id(1), "t", unit) for unit in ("n1/gpu0", "n2/cpu1"))
        assert ended.seconds == 7.5
        assert running.seconds is None
        assert at_least_s(running, NOON_S, index) == 8.0, "still running as the log ends"
    (heat,) = share_heat(store)
    assert (heat.unit, heat.scale, heat.seconds, heat.overhead_s, heat.peak_celsius) == ("n1/gpu0", 3.0, 7.5, 0.5, 71.0)


async def test_subtasks_have_their_kind_size_version_and_seconds(tmp_path: Path) -> None:
    stages = (Subtask("s", "detect", has_gpu_version=True, size=2.0), Subtask("u", "store", size=3.0))
    tasks = tuple(
        Assignment(name, Role.WORKER, NodeId("n1"), cpu_unit=unit, subtask=name)
        for name, unit in (("s", "gpu0"), ("u", "cpu1"))
    )
    decided = JobDecision(JobId("j1"), Outcome.PLACED, tasks)
    command = PlaceCommand("c", (Job(JobId("j1"), subtasks=stages),), scope=Scope.NODE, node_id="n1")
    answer = PlaceDecision((decided,), DecisionMeta(decision_id(1), "iawp"))
    record = DecisionRecord.of_place(command, answer, time_s=NOON_S, seed=1, latency_ms=1.0)
    done = SubtaskOutcome("s", "detect", "gpu0", 2.5, 2.0, node="n1")
    await run(FakeRing(record, outcome(1, JobEventKind.SUBTASK_FINISHED, NOON_S + 4, subtask=done)), tmp_path)
    store = LogStore(tmp_path)
    with LogIndex(store) as index:
        on_gpu, on_core = subtask_times(store, index)
    assert (on_gpu.kind, on_gpu.size, on_gpu.unit, on_gpu.is_on_gpu, on_gpu.actual_s) == (
        "detect", 2.0, "n1/gpu0", True, 2.5,
    )  # fmt: skip
    assert (on_core.kind, on_core.is_on_gpu, on_core.actual_s) == ("store", False, None)


async def test_a_log_in_a_store_of_fsspec_gives_the_rows_of_the_folder(tmp_path: Path) -> None:
    await made(tmp_path)
    Store("memory://datasets/log").publish(tmp_path)
    given = []
    for where in (tmp_path, "memory://datasets/log", tmp_path.as_uri()):
        store = LogStore(where)
        with LogIndex(store) as index:
            given.append([(row.time_s, row.sample.speed.tolist()) for row in RewardRows(store, index)])
    assert given[0] == given[1] == given[2] != []


async def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"decisions does not exist: `placewise log export"):
        list(LogStore(tmp_path).batches("decisions", ("record",)))
    with pytest.raises(LogError, match="nowhere://x"):
        LogStore("nowhere://x")
    await made(tmp_path)
    path = files(tmp_path, "runs/*/*.parquet")[0]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LogError, match=r"runs.parquet.*export the log again"), LogIndex(LogStore(tmp_path)):
        pass
