"""An unchanged refusal that a second replica logged as well is one refusal for every reader."""

from dataclasses import replace
from pathlib import Path

from tests.fakes.declog import NOON_S, FakeRing, decision_id, job_rows, outcome, run

from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import AdmitCommand, JobEventKind
from placewise_core.domain.decision import Admission, AdmitDecision, AdmitPlan, DecisionMeta, Verdict
from placewise_core.domain.job import Job, JobId
from placewise_log.record import AdmitSeen, DecisionRecord
from placewise_service.declog.problems import Problems
from placewise_service.declog.upkeep.stats import stats_of


def refusal(n: int, *jobs: str, first: str = "") -> DecisionRecord:
    given = tuple(Admission(JobId(job), Verdict.WAIT) for job in jobs)
    answer = AdmitDecision(AdmitPlan(given, QueueState("q")), DecisionMeta(decision_id(n), "fifo"))
    command = AdmitCommand("c", "q", tuple(Job(JobId(job)) for job in jobs))
    made = DecisionRecord.of_admit(command, answer, time_s=NOON_S, seed=0, latency_ms=0.5)
    return replace(made, seen=AdmitSeen(refused_before=dict.fromkeys(jobs, first) if first else {}))


async def test_join_and_stats_have_it_once(tmp_path: Path) -> None:
    ring = FakeRing(
        refusal(1, "j1", "j2"),
        refusal(2, "j1", "j2", first=decision_id(1)),
        refusal(3, "j1"),
        outcome(2, JobEventKind.CANCELLED, NOON_S + 1),  # names the second record
    )
    report = await run(ring, tmp_path)
    assert [(row["decision_id"], row["job_id"]) for row in job_rows(tmp_path, decision_id=decision_id(1))] == [
        (decision_id(1), "j1"),
        (decision_id(1), "j2"),
    ]
    assert {row["decision_id"] for row in job_rows(tmp_path)} == {decision_id(1), decision_id(3)}
    (heard,) = job_rows(tmp_path, decision_id=decision_id(1), job_id="j2")
    assert (heard["status"], heard["end"]) == ("OBSERVED", "CANCELLED")
    assert (report.joined["REFUSED_AGAIN"], report.joined["ORPHANS"], report.notes) == (2, 0, [])
    stats = stats_of(tmp_path, Problems())
    assert (stats.decisions, stats.refusals_left_out) == ({"AdmitOrWait WAIT": 2}, 1)
    assert sum(stats.statuses["AdmitOrWait"].values()) == 3


async def test_a_bucket_of_repeats_alone_has_no_row(tmp_path: Path) -> None:
    await run(FakeRing(refusal(2, "j1", first=decision_id(1))), tmp_path)
    assert job_rows(tmp_path) == []


async def test_a_job_that_is_refused_again_beside_a_new_one_has_one_row(tmp_path: Path) -> None:
    again = refusal(2, "j1", "j2")
    again = replace(again, seen=AdmitSeen(refused_before={"j1": decision_id(1)}))
    ended = replace(outcome(1, JobEventKind.CANCELLED, NOON_S + 1), decision_id=decision_id(2))
    ring = FakeRing(refusal(1, "j1"), again, ended)
    report = await run(ring, tmp_path)
    found = {(row["decision_id"], row["job_id"]): row["end"] for row in job_rows(tmp_path)}
    assert found == {(decision_id(1), "j1"): "CANCELLED", (decision_id(2), "j2"): ""}
    assert (report.joined["REFUSED_AGAIN"], report.joined["ORPHANS"], report.notes) == (1, 0, [])
    stats = stats_of(tmp_path, Problems())
    assert (stats.decisions, stats.refusals_left_out) == ({"AdmitOrWait WAIT": 2}, 0)
