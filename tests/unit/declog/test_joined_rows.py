"""Rows of the joined table: admissions, subtasks, repeats, orphans, weighted speeds; reports in any order."""

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.fakes.declog import NOON_S, FakeRing, decision, decision_id, job_rows, outcome, run, task_on

from placewise_core.domain.cluster import Assignment, QueueState
from placewise_core.domain.commands import AdmitCommand, JobEventKind, PlaceCommand, Scope, SubtaskOutcome
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    AdmitDraw,
    AdmitPlan,
    DecisionMeta,
    JobDecision,
    Outcome,
    PlaceDecision,
    Verdict,
)
from placewise_core.domain.job import Job, JobId, NodeId, Role
from placewise_log.record import FAILED, CanarySeen, DecisionRecord, Draw, JobArm, PlaceSeen
from placewise_service.declog.dataset import Dataset
from placewise_service.declog.outcomes import Fate, Fates, Key, Report

ADMITTED = 77


def admission(*verdicts: Verdict) -> DecisionRecord:
    """An AdmitOrWait decision about j1, j2, …, one second before the Place decisions of `decision`."""
    plan = AdmitPlan(
        tuple(
            Admission(JobId(f"j{n}"), verdict, gpus=2 * (verdict is Verdict.ADMIT))
            for n, verdict in enumerate(verdicts, 1)
        ),
        QueueState("q"),
    )
    jobs = tuple(Job(JobId(f"j{n}"), submit_time_s=NOON_S - 9) for n in range(1, len(verdicts) + 1))
    answer = AdmitDecision(plan, DecisionMeta(decision_id(ADMITTED), "fifo"))
    command = AdmitCommand("c", "q", jobs)
    return DecisionRecord.of_admit(command, answer, time_s=NOON_S - 1, seed=1, latency_ms=0.5)


async def test_an_admission_has_a_row_for_each_job_and_finds_the_place_that_followed(tmp_path: Path) -> None:
    placed = replace(decision(1), asked=PlaceSeen(admit_decisions={"j1": decision_id(ADMITTED)}))
    ring = FakeRing(
        admission(Verdict.ADMIT, Verdict.WAIT),
        placed,
        outcome(1, JobEventKind.STARTED, NOON_S + 1),
        outcome(1, JobEventKind.FINISHED, NOON_S + 11),
    )
    report = await run(ring, tmp_path)
    admitted, waiting = (job_rows(tmp_path, rpc="AdmitOrWait", job_id=job_id)[0] for job_id in ("j1", "j2"))
    (place,) = job_rows(tmp_path, rpc="Place")
    assert (admitted["outcome"], admitted["status"], admitted["gpus"]) == ("ADMIT", "OBSERVED", 2)
    assert (admitted["place_decision_id"], place["admit_decision_id"]) == (decision_id(1), decision_id(ADMITTED))
    assert (admitted["queueing_s"], admitted["jct_s"], admitted["end"]) == (10.0, 20.0, "FINISHED")
    assert (waiting["outcome"], waiting["status"], waiting["gpus"], waiting["jct_s"]) == ("WAIT", "NOT_HELD", 0, None)
    assert report.joined["OBSERVED"] == 2


@pytest.mark.parametrize("tried", ["dry run", "shadow"])
async def test_a_trial_is_not_the_place_that_followed_an_admission(tmp_path: Path, tried: str) -> None:
    links = PlaceSeen(admit_decisions={"j1": decision_id(ADMITTED)})
    trial = replace(decision(2, job_id="j1", time_s=NOON_S - 0.5, dry=tried == "dry run"), asked=links)
    if tried == "shadow":
        trial = replace(trial, shadow_of=decision_id(1))
    placed = replace(decision(1), asked=links)
    ring = FakeRing(
        admission(Verdict.ADMIT), trial, placed, outcome(1, JobEventKind.FINISHED, NOON_S + 11, epochs_done=1.0)
    )
    await run(ring, tmp_path)
    (admitted,) = job_rows(tmp_path, rpc="AdmitOrWait")
    assert (admitted["status"], admitted["place_decision_id"]) == ("OBSERVED", decision_id(1))
    rows = {row["decision_id"]: row["status"] for row in job_rows(tmp_path, rpc="Place")}
    assert rows == {decision_id(1): "OBSERVED", trial.decision_id: "NOT_HELD"}


async def test_an_explored_admission_has_its_propensity_and_one_without_a_choice_has_1(tmp_path: Path) -> None:
    made = admission(Verdict.ADMIT, Verdict.WAIT)
    assert made.admit is not None
    drawn, spared = made.admit.plan.admissions
    draw = AdmitDraw(0.1, 0.0, "chance", 0.2, "")
    plan = replace(made.admit.plan, admissions=(replace(drawn, draw=draw), spared))
    await run(FakeRing(replace(made, admit=replace(made.admit, plan=plan))), tmp_path)
    found = {row["job_id"]: row for row in job_rows(tmp_path)}
    names = ("propensity", "own_propensity", "explorer", "exploration_rate", "is_explored")
    assert [found["j1"][name] for name in names] == [0.1, 0.0, "chance", 0.2, True]
    assert [found["j2"][name] for name in names] == [1.0, None, None, None, False]


async def test_a_job_that_a_fallback_placed_while_the_cluster_explored_has_no_propensity(tmp_path: Path) -> None:
    failed = replace(decision(1), draws=(Draw("j1", guard=FAILED, fallback_reason="consolidate: RuntimeError"),))
    report = await run(FakeRing(failed, replace(decision(2), draws=(Draw("j2", 0.5),))), tmp_path)
    names = ("propensity", "own_propensity", "guard", "is_fallback")
    found = {row["job_id"]: [row[name] for name in names] for row in job_rows(tmp_path)}
    assert found == {"j1": [None, None, "FAILED", True], "j2": [1.0, 0.5, "", False]}
    assert report.problems == []


async def test_a_host_that_names_the_admission_itself_is_understood(tmp_path: Path) -> None:
    started = replace(outcome(1, JobEventKind.STARTED, NOON_S + 1), decision_id=decision_id(ADMITTED))
    await run(FakeRing(admission(Verdict.ADMIT), started), tmp_path)
    (row,) = job_rows(tmp_path, rpc="AdmitOrWait")
    assert (row["status"], row["start_time_s"], row["place_decision_id"]) == ("OPEN", NOON_S + 1, None)


async def test_outcomes_of_unknown_decisions_are_counted_also_on_days_without_decisions(tmp_path: Path) -> None:
    unknown = outcome(5, JobEventKind.FINISHED, NOON_S + 1)
    other_day = outcome(6, JobEventKind.FINISHED, NOON_S + 1, decided_s=NOON_S - 86_400)
    nameless = replace(outcome(7, JobEventKind.FINISHED, NOON_S + 1), decision_id="")
    ring = FakeRing(decision(1), outcome(1, JobEventKind.STARTED, NOON_S + 1), unknown, other_day, nameless)
    assert (await run(ring, tmp_path)).joined["ORPHANS"] == 3
    assert len(job_rows(tmp_path)) == 1


def pipeline(n: int = 1) -> DecisionRecord:
    """A Place decision of scope NODE that puts subtask s of a job on cpu1 of node n1."""
    task = Assignment("s", Role.WORKER, NodeId("n1"), cpu_unit="cpu1", subtask="s")
    answer = PlaceDecision((JobDecision(JobId("j1"), Outcome.PLACED, (task,)),), DecisionMeta(decision_id(n), "iawp"))
    command = PlaceCommand("c", (Job(JobId("j1")),), scope=Scope.NODE, node_id="n1")
    return DecisionRecord.of_place(command, answer, time_s=NOON_S, seed=1, latency_ms=0.5)


@pytest.mark.parametrize("named", [1, 9])
@pytest.mark.parametrize(("unit", "is_overridden"), [("cpu1", False), ("gpu0", True)])
async def test_a_subtask_has_a_row_that_its_end_meets_under_either_decision(
    tmp_path: Path, named: int, unit: str, is_overridden: bool
) -> None:
    end = outcome(1, JobEventKind.SUBTASK_FINISHED, NOON_S + 4, subtask=SubtaskOutcome("s", "k", unit, 2.5, node="n1"))
    ring = FakeRing(decision(9, job_id="j1"), pipeline(), replace(end, decision_id=decision_id(named)))
    await run(ring, tmp_path)
    (row,) = job_rows(tmp_path, subtask="s")
    assert (row["unit"], row["status"], row["actual_s"]) == ("n1/cpu1", "OBSERVED", 2.5)
    assert (row["end"], row["actual"], row["is_overridden"]) == ("SUBTASK_FINISHED", [f"n1/{unit}"], is_overridden)


REPORTS = (
    Report(Key("d", "j"), "STARTED", 10.0, ("n1",), ("n1",)),
    Report(Key("d", "j"), "PROGRESS", 20.0, speed=1.0),
    Report(Key("d", "j"), "PROGRESS", 50.0, speed=3.0, epochs_done=100.0),
    Report(Key("d", "j"), "FINISHED", 60.0),
    Report(Key("d", "j"), "FINISHED", 61.0),  # reported again
    Report(Key("d", "j"), "STARTED", 12.0, ("n2",), ("n2",)),  # reported again, of another node
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(REPORTS))))[::37])
def test_reports_may_come_in_any_order(order: tuple[int, ...]) -> None:
    fate = Fate()
    for i in order:
        fate.add(REPORTS[i])
    assert (fate.start_time_s, fate.placement) == (10.0, ("n1",))
    assert (fate.end, fate.end_time_s) == ("FINISHED", 60.0)
    assert fate.mean_speed(0.0) == pytest.approx((1.0 * 10 + 3.0 * 30) / 40)
    assert (fate.epochs_done(0.0), fate.last_heard_time_s) == (100.0, 61.0)


def test_speeds_of_one_moment_count_alike() -> None:
    fate = Fate()
    fate.add(Report(Key("d", "j"), "STARTED", 20.0))
    for speed in (1.0, 2.0):
        fate.add(Report(Key("d", "j"), "PROGRESS", 20.0, speed=speed))
    assert fate.mean_speed(20.0) is None
    assert fate.mean_speed(19.0) == 1.5


def test_epochs_count_before_speeds() -> None:
    """A host may report the speed of the moment: of a job that a neighbour slows down, half of the one before."""
    fate = Fate()
    for kind, time_s, speed, epochs in (
        ("STARTED", 10.0, None, None), ("PROGRESS", 10.0, 1.0, None), ("PROGRESS", 110.0, 0.5, 100.0),
        ("FINISHED", 210.0, 0.75, 150.0),
    ):  # fmt: skip
        fate.add(Report(Key("d", "j"), kind, time_s, speed=speed, epochs_done=epochs))
    assert fate.mean_speed(10.0) == 0.75


def test_without_a_start_the_mean_begins_with_the_decision() -> None:
    fate = Fate()
    for time_s, speed in ((20.0, 1.0), (50.0, 3.0)):
        fate.add(Report(Key("d", "j"), "PROGRESS", time_s, speed=speed))
    assert fate.mean_speed(0.0) == pytest.approx((1.0 * 20 + 3.0 * 30) / 50)


async def test_a_request_of_several_jobs_has_a_row_for_each(tmp_path: Path) -> None:
    first, second = decision(1), decision(2)
    assert first.place is not None
    assert second.place is not None
    both = PlaceDecision((*first.place.decisions, *second.place.decisions), DecisionMeta(decision_id(1), "tetris"))
    record = replace(first, jobs=(*first.jobs, *second.jobs), place=both)
    end = replace(outcome(2, JobEventKind.FINISHED, NOON_S + 3), decision_id=decision_id(1))
    await run(FakeRing(record, end), tmp_path)
    assert {row["job_id"]: row["status"] for row in job_rows(tmp_path)} == {"j1": "OPEN", "j2": "OBSERVED"}


async def test_the_join_of_many_buckets_is_that_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry
        for n in range(1, 60)
        for entry in (
            decision(n),
            outcome(n, JobEventKind.STARTED, NOON_S + n, placement=(task_on(f"n{n % 3}", 0),)),
            outcome(n, JobEventKind.FINISHED, NOON_S + 2 * n, speed=1.0, epochs_done=float(n)),
        )
    ]
    whole = await run(FakeRing(*entries), tmp_path / "one")
    monkeypatch.setattr("placewise_service.declog.join.buckets._ROWS", 10)
    split = await run(FakeRing(*entries), tmp_path / "many")
    assert split.joined == whole.joined
    assert not list((tmp_path / "many").glob(".join-*"))
    by_id = [{str(row["decision_id"]): row for row in job_rows(tmp_path / name)} for name in ("one", "many")]
    assert by_id[0] == by_id[1]


def on_trial(record: DecisionRecord, *arms: JobArm) -> DecisionRecord:
    return replace(record, canary=CanarySeen("next", "d1", "5a17", 0.3, "job", False, arms))


async def test_rows_of_a_canary_have_arm_and_mixture_and_those_without_one_have_neither(tmp_path: Path) -> None:
    of_canary = on_trial(decision(1), JobArm("j1", "canary", 0.25, ""))
    unknown = on_trial(decision(2), JobArm("j2", "incumbent", None, "busy"))
    again = on_trial(decision(4))  # placed before: no arm decided it
    await run(FakeRing(of_canary, decision(3), unknown, again, admission(Verdict.ADMIT)), tmp_path)
    found = {row["job_id"]: row for row in job_rows(tmp_path, rpc="Place")}
    names = ("canary_bundle", "canary_salt", "canary_share", "is_washout", "arm", "mixed_propensity")
    assert {job: [row[name] for name in names] for job, row in found.items()} == {
        "j1": ["next", "5a17", 0.3, False, "canary", 0.25],
        "j2": ["next", "5a17", 0.3, False, "incumbent", None],
        "j3": [None] * 6,
        "j4": ["next", "5a17", 0.3, False, None, None],
    }
    (admitted,) = job_rows(tmp_path, rpc="AdmitOrWait")
    assert [admitted[name] for name in names] == [None] * 6


async def test_files_of_before_the_canary_join_as_they_did(tmp_path: Path) -> None:
    await run(FakeRing(on_trial(decision(1), JobArm("j1", "canary", 0.25, ""))), tmp_path)
    (file,) = (tmp_path / "decisions").glob("date=*/*.parquet")
    table = pq.read_table(file)
    old = [name for name in table.column_names if "canary" in name or name in ("is_washout", "job_arms")]
    pq.write_table(table.drop_columns([*old, "job_mixed_propensities", "job_mixtures_unknown"]), file)
    Dataset(tmp_path).join_all(now_s=NOON_S + 60, dangling_after_s=3600.0)
    (row,) = job_rows(tmp_path)
    assert (row["job_id"], row["arm"], row["canary_bundle"], row["outcome"]) == ("j1", None, None, "PLACED")


@pytest.mark.parametrize(("kind", "count"), [(JobEventKind.SUBMITTED, 0), (JobEventKind.FINISHED, 1)])
def test_a_job_that_was_submitted_waits_for_its_decision_and_is_no_orphan(kind: JobEventKind, count: int) -> None:
    fates = Fates(())
    fates.add(Report(Key("", "j"), kind, NOON_S))
    assert len(fates.orphans) == count
