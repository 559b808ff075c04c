"""Shadows of AdmitOrWait, Partition and scope NODE: on the inputs that were answered, logged beside the answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_admit, ask_place, logged

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import NodeTelemetry
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, PlaceCommand, Scope
from placewise_core.domain.decision import Verdict
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Job, JobId, Subtask
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.cli import invoke
from placewise_service.declog.export import export
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry as Metrics

PIPELINE = Job(JobId("p"), subtasks=tuple(Subtask(f"s{i}", f"k{i}", has_gpu_version=i % 2 == 0) for i in range(6)))
TASK = DivisibleTask("t", 1000.0, serial_scale=10.0, overhead_s=1.0)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    for name in ("default", "next"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    clock = ManualClock(1_000_000.0)
    made = build_engine(MemoryStore(clock), clock, Metrics(), EngineOptions(), tmp_path)
    await made.start()
    await made.report_nodes(CLUSTER, [make_node(f"n{i}", 4) for i in range(3)], full=True)
    yield made
    await made.close()


async def ask_all(engine: Engine) -> None:
    """One question of each call, with a rest before it."""
    jobs = (make_job("a", workers=12, gpus=1), make_job("b"))
    for asked in (
        lambda: ask_admit(engine, AdmitCommand(CLUSTER, "q", jobs, policy="fifo-strict", seed=1)),
        lambda: engine.partition(PartitionCommand(CLUSTER, TASK)),
        lambda: ask_place(engine, PlaceCommand(CLUSTER, (PIPELINE,), scope=Scope.NODE, node_id="n0")),
        lambda: ask_place(engine, PlaceCommand(CLUSTER, (make_job("c"),))),
    ):
        engine._shadowed._rests_until_s = 0.0
        await asked()
        await logged(engine)


async def records_of(engine: Engine) -> tuple[dict[str, DecisionRecord], dict[str, DecisionRecord]]:
    """The answers and the shadows, by call and scope."""
    entries = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    found = [entry for entry in entries if isinstance(entry, DecisionRecord)]
    answers = {each.rpc + each.scope: each for each in found if not each.shadow_of}
    return answers, {each.rpc + each.scope: each for each in found if each.shadow_of}


def counted(engine: Engine, metric: str) -> dict[str, float]:
    lines = engine._parts.telemetry.render().decode().splitlines()
    return {
        line.split("{")[1].split("}")[0]: float(line.split()[-1]) for line in lines if line.startswith(metric + "{")
    }


@pytest.mark.parametrize(
    ("policy", "call"),
    [
        ("proteus", "AdmitOrWait"),
        ("heat-island-paper", "Partition"),
        ("iawp-paper", "PlaceNODE"),
        ("tetris", "PlaceCLUSTER"),
    ],
)
async def test_a_policy_is_a_shadow_of_its_own_call_alone(engine: Engine, policy: str, call: str) -> None:
    await engine.bundles.set_shadow("", policy=policy)
    await ask_all(engine)
    answers, shadows = await records_of(engine)
    assert shadows.keys() == {call}
    record, answered = shadows[call], answers[call]
    assert record.shadow_of == answered.decision_id != record.decision_id
    assert (record.meta.policy, record.requested_policy) == (policy, policy)
    assert (record.meta.bundle_digest, record.time_s) == (answered.meta.bundle_digest, answered.time_s)
    assert record.meta.snapshot_version == answered.meta.snapshot_version
    assert len(record.compared) == max(1, len(answered.jobs))
    left_out = {"call": 5.0 - len(record.compared)}
    assert counted(engine, "placewise_shadow_left_out_total") == {f'reason="{k}"': v for k, v in left_out.items()}


@pytest.mark.parametrize("policy", ["qos", "proteus", "fifo-strict"])
async def test_a_shadow_of_admission_logs_the_state_and_its_own_candidates(engine: Engine, policy: str) -> None:
    await engine.bundles.set_shadow("", policy=policy)
    await ask_all(engine)
    answers, shadows = await records_of(engine)
    row, answered = (row_of(CLUSTER, "1-0", encode(each["AdmitOrWait"]))[2] for each in (shadows, answers))
    state = ("queue", "free_gpus", "free_nodes")
    assert [row[name] for name in state] == [answered[name] for name in state]
    assert any(row["job_shapes"])
    assert any(row["job_shape_scores"]) == (policy == "proteus")
    assert row["job_is_repeat"] == [None] * len(row["job_ids"])


async def test_a_policy_of_two_calls_is_a_shadow_of_both(engine: Engine) -> None:
    await engine.bundles.set_shadow("", policy="random")
    await ask_all(engine)
    assert (await records_of(engine))[1].keys() == {"PlaceCLUSTER", "PlaceNODE"}


async def test_a_bundle_decides_by_the_policy_that_answered_if_that_rests_on_it(engine: Engine) -> None:
    await engine.bundles.set_shadow("next")
    await ask_all(engine)
    answers, shadows = await records_of(engine)
    assert shadows.keys() == answers.keys() == {"AdmitOrWait", "Partition", "PlaceNODE", "PlaceCLUSTER"}
    for call in ("AdmitOrWait", "Partition", "PlaceNODE"):
        assert shadows[call].meta.policy == answers[call].meta.policy
        assert shadows[call].meta.bundle == "next"
        assert [each.is_same for each in shadows[call].compared] == [True] * len(shadows[call].compared), "equal nets"
    engine._shadowed._rests_until_s = 0.0
    await ask_place(engine, PlaceCommand(CLUSTER, (PIPELINE,), scope=Scope.NODE, node_id="n0", policy="pats"))
    assert counted(engine, "placewise_shadow_left_out_total") == {'reason="call"': 1.0}
    with pytest.raises(InvalidRequestError, match="no net for"):
        await engine.bundles.set_shadow("next", policy="pats")


async def test_it_decides_on_the_queue_and_the_view_that_were_answered(engine: Engine) -> None:
    await engine.bundles.set_shadow("", policy="min-min")
    first, second = make_job("a", workers=12, gpus=1), make_job("b")
    await ask_admit(engine, AdmitCommand(CLUSTER, "q", (first, second), policy="fifo-strict"))
    held = await ask_place(engine, PlaceCommand(CLUSTER, (first,)))  # before the shadow decides
    assert held.decisions[0].assignments
    await logged(engine)
    answers, shadows = await records_of(engine)
    answer, shadow = answers["AdmitOrWait"].admit, shadows["AdmitOrWait"].admit
    assert answer is not None
    assert shadow is not None
    assert Verdict.ADMIT in [given.verdict for given in shadow.plan.admissions], "all nodes were free then"
    after = (await engine.get_cluster(CLUSTER)).view.queues.get("q")
    assert after == answer.plan.queue or not after, "the shadow moves no queue"


async def test_compare_says_how_often_the_other_calls_agree(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await engine.bundles.set_shadow("next")
    await ask_all(engine)
    await engine.bundles.set_shadow("", policy="heat-island-paper")
    await ask_all(engine)
    (pair,) = (await records_of(engine))[1]["Partition"].compared
    await export(engine._parts.store, tmp_path / "log")
    for a, b, expected in (
        ("default", "next", {"AdmitOrWait": (2, 1.0), "Partition": (1, 1.0), "Place NODE": (1, 1.0)}),
        ("heat-island", "heat-island-paper", {"Partition": (1, float(pair.is_same))}),
    ):
        asked = ["bundle", "compare", a, b, "--log", str(tmp_path / "log")]
        capsys.readouterr()
        assert await asyncio.to_thread(invoke, [*asked, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert {row["call"]: (row["jobs"], row["same"]) for row in figures["other_calls"]} == expected
        assert figures.get("jobs") == (1 if b == "next" else None), "of Place"
        assert await asyncio.to_thread(invoke, asked) == 0
        assert "same answer in other calls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("policy", "call", "where", "why"),
    [
        (
            "min-min",
            "AdmitOrWait",
            {"only A admits the job": 1, "only B admits the job": 1},
            {"A waits: INSUFFICIENT_GPU": 1, "B waits: INSUFFICIENT_GPU": 1},
        ),
        ("heat-island-paper", "Partition", {"B on more units": 1}, {"A leaves units out: THERMAL_LIMIT": 1}),
        ("pats", "Place NODE", {"B runs fewer subtasks on GPUs": 1}, {"no forecast by both sides": 1}),
    ],
)
async def test_compare_says_where_and_why_the_other_calls_differ(
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    call: str,
    where: dict[str, int],
    why: dict[str, int],
) -> None:
    """A long job that takes all cool nodes before a short one, a node above its limit, subtasks of unknown speed."""
    await engine.bundles.set_shadow("", policy=policy)
    hot = NodeTelemetry(cpu_celsius=99.0, gpu_celsius=99.0, limit_celsius=60.0, observe_time_s=1_000_000.0)
    await engine.report_nodes(CLUSTER, [replace(make_node("n0", 4), telemetry=hot)], full=False)
    known = {"cpu_s": 3.0, "speedup": 0.7}
    stages = tuple(replace(each, profile={} if i % 3 else known) for i, each in enumerate(PIPELINE.subtasks))
    jobs = (make_job("a", workers=8, single_gpu_s=36_000.0), make_job("b", single_gpu_s=60.0))
    await ask_admit(engine, AdmitCommand(CLUSTER, "q", jobs, policy="fifo-strict", seed=1))
    await logged(engine)
    await engine.partition(PartitionCommand(CLUSTER, TASK))
    await logged(engine)
    pipeline = replace(PIPELINE, subtasks=stages)
    await ask_place(engine, PlaceCommand(CLUSTER, (pipeline,), scope=Scope.NODE, node_id="n1"))
    await logged(engine)
    await export(engine._parts.store, tmp_path / "log")
    asked = ["bundle", "compare", "default", policy, "--log", str(tmp_path / "log")]
    capsys.readouterr()
    assert await asyncio.to_thread(invoke, [*asked, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["other_calls"]
    assert (row["call"], row["same"]) == (call, 0.0)
    assert {each["what"]: each["jobs"] for each in row["differences"]} == where
    assert {each["what"]: each["jobs"] for each in row["reasons"]} == why
    assert await asyncio.to_thread(invoke, asked) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in (*where, *why))


async def test_what_fails_or_finds_no_time_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.bundles.set_shadow("", policy="proteus")
    policy = engine._parts.registry.shadows.active.admission["proteus"]

    def torn(*_: object) -> None:
        raise RuntimeError("torn")

    monkeypatch.setattr(policy, "admit", torn)
    await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a"),), policy="fifo-strict"))
    await logged(engine)
    engine._shadowed._rests_until_s = 1e12
    await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("b"), make_job("c")), policy="fifo-strict"))
    await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("d"),), policy="fifo-strict", is_dry_run=True))
    await logged(engine)
    expected = {'reason="failed"': 1.0, 'reason="busy"': 2.0}
    assert counted(engine, "placewise_shadow_left_out_total") == expected
    assert not (await records_of(engine))[1]
