"""A canary answers its share of Partition and AdmitOrWait: arms, log, mixtures, guards, failures."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_admit, logged

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, QueueSettings, QueueState
from placewise_core.domain.commands import AdmitCommand, PartitionCommand
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    AdmitPlan,
    LearnedCapability,
    LearnedHeat,
    LearnedSpeed,
    Outcome,
    PartitionPlan,
    Verdict,
)
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job
from placewise_core.partition.policy import PartitionContext
from placewise_core.policies.trial.arms import Arm, Arms, Unit
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ChangeKind
from placewise_service.telemetry import Telemetry

SLOT_S = 10.0
TASKS = [f"task-{i}" for i in range(30)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000.0)


@pytest.fixture
async def pair(tmp_path: Path, clock: ManualClock) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two replicas with a canary on 0.4 of the cluster."""
    for name in ("default", "next"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    store, options = MemoryStore(clock), EngineOptions(queue=QueueSettings(slot_s=SLOT_S))
    engines = [build_engine(store, clock, Telemetry(), options, tmp_path) for _ in range(2)]
    await engines[0].report_nodes(CLUSTER, [make_node(f"n{i}", 4) for i in range(3)], full=True)
    await engines[0].bundles.set_canary("next", CLUSTER, Arms("", 0.4))
    await engines[1].bundles.refresh()
    yield engines[0], engines[1]
    for engine in engines:
        await engine.close()


class SplitsNone:
    """A partition policy that finds no unit."""

    name = "heat-island"

    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        return PartitionPlan(Outcome.NO_FIT)

    def learned(self, view: ClusterView) -> tuple[LearnedHeat, ...]:
        return ()

    def capabilities(self, view: ClusterView, task_kind: str | None) -> tuple[LearnedCapability, ...]:
        return ()


class Fails(SplitsNone):
    def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> PartitionPlan:
        raise RuntimeError("as the test asked")


class AdmitsNone(AdmissionPolicy):
    """An admission policy that lets every job wait."""

    name = "fifo-strict"

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        return AdmitPlan(tuple([Admission(job.id, Verdict.WAIT) for job in jobs]), queue)


class FailsToAdmit(AdmitsNone):
    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        raise RuntimeError("as the test asked")


def canary_decides(engine: Engine, partition: SplitsNone | None = None, admission: AdmitsNone | None = None) -> None:
    """As if the canary's bundle had these policies in place of its own."""
    policies = engine._parts.registry.canaries[CLUSTER].serving.policies
    if partition is not None:
        policies.partition[partition.name] = partition  # type: ignore[index]
    if admission is not None:
        policies.admission[admission.name] = admission  # type: ignore[index]


def rule_of(engine: Engine) -> Arms:
    return engine._parts.registry.canaries[CLUSTER].rule


async def split(engine: Engine, task: str, **more: object) -> str:
    """The bundle that answered."""
    command = PartitionCommand(CLUSTER, DivisibleTask(task, 1000.0, serial_scale=10.0, overhead_s=1.0), **more)  # type: ignore[arg-type]
    return (await engine.partition(command)).meta.bundle


async def admit(engine: Engine, *jobs: str, **more: object) -> AdmitDecision:
    asked = tuple([make_job(name) for name in jobs])
    return await ask_admit(engine, AdmitCommand(CLUSTER, "q", asked, policy="fifo-strict", **more))  # type: ignore[arg-type]


async def records_of(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    entries = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 10_000)]
    return [entry for entry in entries if isinstance(entry, DecisionRecord)]


async def evidence_of(engine: Engine) -> dict[str, int]:
    """Sums of all replicas, by guard, arm and events, over all scopes."""
    await engine._watching.look()
    sums = await engine._parts.store.add_evidence(rule_of(engine).salt, {})
    found: dict[str, int] = {}
    for name, count in sums.items():
        rest = name.partition("|")[2]
        found[rest] = found.get(rest, 0) + count
    return found


async def test_a_task_has_one_arm_on_every_replica_and_keeps_it_at_a_larger_share(
    pair: tuple[Engine, Engine],
) -> None:
    rule = rule_of(pair[0])
    wanted = {task for task in TASKS if rule.of(f"Partition\n{task}", 0.0) is Arm.CANARY}
    assert 0 < len(wanted) < len(TASKS)
    for engine in pair:
        assert {task for task in TASKS if await split(engine, task, is_dry_run=True) == "next"} == wanted
    await pair[0].bundles.set_canary("next", CLUSTER, Arms("", 0.8))
    assert wanted < {task for task in TASKS if await split(pair[0], task, is_dry_run=True) == "next"}


async def test_all_questions_of_a_slot_have_one_arm_and_slots_have_both(
    pair: tuple[Engine, Engine], clock: ManualClock
) -> None:
    rule, found = rule_of(pair[0]), []
    for _ in range(20):
        slot = int(clock.now_s() // SLOT_S)
        wanted = "next" if rule.of(f"AdmitOrWait\nq\n{slot}", 0.0) is Arm.CANARY else "default"
        answers = [await admit(engine, *jobs, is_dry_run=True) for engine in pair for jobs in ("a", "bc")]
        assert {answer.meta.bundle for answer in answers} == {wanted}
        found.append(wanted)
        clock.advance(SLOT_S)
    assert set(found) == {"next", "default"}


async def test_learned_speeds_are_those_that_the_arm_of_the_answer_read(
    pair: tuple[Engine, Engine], clock: ManualClock
) -> None:
    engine, found = pair[0], set()
    await engine.update_settings(CLUSTER, ClusterSettings(learn_throughput=True))
    registry = engine._parts.registry
    for name, policies in (
        ("default", registry.policies_of(CLUSTER)),
        ("next", registry.canaries[CLUSTER].serving.policies),
    ):
        known = LearnedSpeed("a", "V100", 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, name)
        object.__setattr__(policies, "learned_speed", lambda *_, known=known: known)
    for _ in range(20):
        meta = (await admit(engine, "a", is_dry_run=True)).meta
        assert [speed.source for speed in meta.speeds] == [meta.bundle]
        found.add(meta.bundle)
        clock.advance(SLOT_S)
    assert found == {"next", "default"}


async def test_the_log_has_arm_and_mixture_of_a_partition(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    for task in TASKS:
        await split(engine, task)
        await logged(engine)
        engine._mixing._rests_until_s = 0.0
    canary_decides(engine, SplitsNone())
    for task in TASKS:
        await split(engine, f"{task}-again")
        await logged(engine)
        engine._mixing._rests_until_s = 0.0
    arms = {"same": set(), "other": set()}  # type: dict[str, set[tuple[str, float | None, str]]]
    for record in await records_of(engine):
        assert record.canary is not None
        assert record.task is not None
        (arm,) = record.canary.arms
        assert arm.job_id == record.task.id
        assert (record.meta.bundle == "next") == (arm.arm == "canary")
        arms["other" if arm.job_id.endswith("again") else "same"].add((arm.arm, arm.mixed_propensity, arm.unknown))
    assert arms["same"] == {("canary", 1.0, ""), ("incumbent", 1.0, "")}, "both arms give the same shares"
    assert arms["other"] == {("canary", 0.4, ""), ("incumbent", 0.6, "")}
    row = row_of(CLUSTER, "1-0", encode(record))[2]
    assert (row["canary_bundle"], row["canary_share"], row["job_ids"]) == ("next", 0.4, [])
    assert row["job_mixed_propensities"] == [record.canary.arms[0].mixed_propensity]


async def test_the_log_has_arm_and_mixture_of_each_job_of_an_admission(
    pair: tuple[Engine, Engine], clock: ManualClock
) -> None:
    engine = pair[0]
    canary_decides(engine, admission=AdmitsNone())
    for i in range(20):
        await admit(engine, f"a{i}", f"b{i}")
        await logged(engine)
        engine._mixing._rests_until_s = 0.0
        clock.advance(SLOT_S)
    found = set()
    for record in await records_of(engine):
        assert record.canary is not None
        assert record.admit is not None
        assert [arm.job_id for arm in record.canary.arms] == [job.id for job in record.jobs]
        verdicts = {given.verdict for given in record.admit.plan.admissions}
        found |= {(arm.arm, *verdicts, arm.mixed_propensity) for arm in record.canary.arms}
    assert found == {("canary", Verdict.WAIT, 0.4), ("incumbent", Verdict.ADMIT, 0.6)}
    assert row_of(CLUSTER, "1-0", encode(record))[2]["job_arms"] == [arm.arm for arm in record.canary.arms]


async def test_a_drawn_admission_and_one_without_time_have_no_mixture(
    pair: tuple[Engine, Engine], clock: ManualClock
) -> None:
    engine = pair[0]
    await engine.update_settings(CLUSTER, ClusterSettings(admit_exploration_rate=0.5))
    await admit(engine, "a")
    await engine.update_settings(CLUSTER, ClusterSettings())
    await logged(engine)
    engine._mixing._rests_until_s = clock.monotonic_s() + 60.0
    clock.advance(SLOT_S)
    await admit(engine, "b")
    whys = [arm.unknown for record in await records_of(engine) for arm in (record.canary.arms if record.canary else ())]
    assert whys == ["the answer was drawn", "busy"]


async def test_the_incumbent_answers_in_place_of_a_policy_that_fails_and_ten_failures_end_the_canary(
    pair: tuple[Engine, Engine],
) -> None:
    engine = pair[0]
    canary_decides(engine, Fails())
    rule = rule_of(engine)
    tasks = [f"t{i}" for i in range(200) if rule.of(f"Partition\nt{i}", 0.0) is Arm.CANARY][:10]
    for task in tasks:
        answer = await engine.partition(PartitionCommand(CLUSTER, DivisibleTask(task, 1000.0, serial_scale=10.0)))
        assert (answer.plan.outcome, answer.meta.bundle) == (Outcome.PLACED, "default")
        assert (answer.meta.is_fallback, answer.meta.fallback_reason) == (True, "heat-island: RuntimeError")
    for record in await records_of(engine):
        assert record.canary is not None
        assert [(arm.arm, arm.unknown) for arm in record.canary.arms] == [("canary", "heat-island: RuntimeError")]
    await engine._watching.look()
    assert CLUSTER not in engine.bundles.canaries
    assert next(iter(await engine.bundles.history(CLUSTER, 1))).kind is ChangeKind.CANARY_ROLLED_BACK


async def test_an_admission_is_the_incumbents_if_the_canarys_policy_fails(
    pair: tuple[Engine, Engine], clock: ManualClock
) -> None:
    engine = pair[0]
    canary_decides(engine, admission=FailsToAdmit())
    while rule_of(engine).of(f"AdmitOrWait\nq\n{int(clock.now_s() // SLOT_S)}", 0.0) is not Arm.CANARY:
        clock.advance(SLOT_S)
    answer = await admit(engine, "a")
    assert [given.verdict for given in answer.plan.admissions] == [Verdict.ADMIT]
    assert (answer.meta.bundle, answer.meta.fallback_reason) == ("default", "fifo-strict: RuntimeError")


async def test_a_policy_of_the_incumbent_that_fails_fails_as_without_a_canary(pair: tuple[Engine, Engine]) -> None:
    engine, rule = pair[0], rule_of(pair[0])
    engine._parts.registry.policies_of(CLUSTER).partition["heat-island"] = Fails()  # type: ignore[index]
    task = next(task for task in TASKS if rule.of(f"Partition\n{task}", 0.0) is Arm.INCUMBENT)
    with pytest.raises(RuntimeError, match="as the test asked"):
        await split(engine, task)


async def test_the_guard_ends_a_canary_that_splits_fewer_tasks(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    canary_decides(engine, SplitsNone())
    for i in range(60):
        await split(engine, f"t{i}")
        await split(engine, f"t{i}")  # a task counts once
    assert await logged(engine)
    await engine._watching.look()
    assert CLUSTER not in engine.bundles.canaries
    change = next(iter(await engine.bundles.history(CLUSTER, 1)))
    assert (change.kind, change.reason.partition(":")[0]) == (ChangeKind.CANARY_ROLLED_BACK, "no fit")
    assert "0 of" in change.reason


async def test_jobs_of_admission_count_by_time_and_not_by_job(pair: tuple[Engine, Engine], clock: ManualClock) -> None:
    engine = pair[0]
    for i in range(6):
        await admit(engine, f"a{i}")
        clock.advance(SLOT_S)
    assert await logged(engine)
    assert await evidence_of(engine) == {}
    await engine.bundles.set_canary("next", CLUSTER, Arms("", 0.5, Unit.TIME, period_s=4 * SLOT_S))
    for i in range(6):
        await admit(engine, f"b{i}")
        await admit(engine, f"b{i}")
        clock.advance(SLOT_S)
    assert await logged(engine)
    found = await evidence_of(engine)
    assert found["NO_FIT|canary"] + found["NO_FIT|incumbent"] == 6
    assert not [name for name in found if name.startswith("NO_FIT") and name.endswith("events")]


async def test_dry_runs_are_no_part_of_the_trial(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    await split(engine, "t", is_dry_run=True)
    await admit(engine, "a", is_dry_run=True)
    assert [record.canary for record in await records_of(engine)] == [None, None]
    assert await evidence_of(engine) == {}


async def test_a_kill_switch_comes_before_the_canary(pair: tuple[Engine, Engine]) -> None:
    engine = pair[0]
    await engine.bundles.set_kill_switch("consolidate", CLUSTER)
    assert {await split(engine, task) for task in TASKS} == {"default"}


async def test_jobs_are_split_in_slices_with_a_canary_too(pair: tuple[Engine, Engine]) -> None:
    engine, rule = pair[0], rule_of(pair[0])
    task = next(task for task in TASKS if rule.of(f"Partition\n{task}", 0.0) is Arm.CANARY)
    nodes = [make_node(f"m{i}", 1) for i in range(2100)]
    await engine.report_nodes(CLUSTER, nodes, full=True)
    command = PartitionCommand(CLUSTER, DivisibleTask(task, 1000.0, serial_scale=10.0, overhead_s=1.0))
    answer, plain = await asyncio.gather(
        engine.partition(command), engine.partition(replace(command, task=replace(command.task, id="other")))
    )
    assert answer.meta.bundle == "next"
    assert answer.plan.outcome is plain.plan.outcome is Outcome.PLACED
