"""Where and why two answers of AdmitOrWait, Partition or scope NODE differ."""

from dataclasses import replace

import pytest
from tests.fakes.declog import decision_id, task_on

from placewise_core.domain.cluster import QueueState
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, PlaceCommand, Scope
from placewise_core.domain.decision import (
    Admission,
    AdmitDecision,
    AdmitPlan,
    Blocker,
    DecisionMeta,
    Excluded,
    JobDecision,
    Outcome,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Reason,
    Share,
    Verdict,
)
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job, JobId
from placewise_log.record import DecisionRecord
from placewise_service.declog.shadows.differences import NO_FORECAST, difference

META = DecisionMeta(decision_id(1), "p")
JOB = Job(JobId("j"))
A_EARLIER, B_EARLIER = (f"{side} forecasts the earlier end, each by its own model" for side in "AB")


def admission(gpus: int, nodes: int = 1, end_s: float = 0.0) -> DecisionRecord:
    given = Admission(JOB.id, Verdict.ADMIT, gpus, nodes, gpus // nodes, expected_finish_time_s=end_s)
    if not gpus:
        given = Admission(JOB.id, Verdict.WAIT, blockers=(Blocker(Reason.BEHIND_IN_QUEUE),))
    answer = AdmitDecision(AdmitPlan((given,), QueueState("q")), META)
    return DecisionRecord.of_admit(AdmitCommand("c", "q", (JOB,)), answer, time_s=1.0, seed=0, latency_ms=0.0)


def split(*units: str, seconds: float = 0.0, scale: float = 1.0, hot: tuple[str, ...] = ()) -> DecisionRecord:
    shares = tuple(Share("n", unit, scale, 1.0, 0.0, 1.0) for unit in units)
    excluded = tuple(Excluded("n", unit, Reason.THERMAL_LIMIT) for unit in hot)
    blockers = () if units else (Blocker(Reason.THERMAL_LIMIT),)
    plan = PartitionPlan(Outcome.PLACED, shares, predicted_s=seconds, excluded=excluded, blockers=blockers)
    command = PartitionCommand("c", DivisibleTask("t", 1.0))
    return DecisionRecord.of_partition(command, PartitionDecision(plan, META), time_s=1.0, latency_ms=0.0)


def subtasks(*units: str, is_fallback: bool = False) -> DecisionRecord:
    tasks = tuple(replace(task_on("n"), subtask=f"s{i}", cpu_unit=unit) for i, unit in enumerate(units))
    given = JobDecision(JOB.id, Outcome.PLACED, tasks, blockers=(Blocker(Reason.INSUFFICIENT_GPU),))
    answer = PlaceDecision((given,), replace(META, is_fallback=is_fallback))
    command = PlaceCommand("c", (JOB,), scope=Scope.NODE, node_id="n")  # type: ignore[arg-type]
    return DecisionRecord.of_place(command, answer, time_s=1.0, seed=0, latency_ms=0.0)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (admission(0), admission(2), ("only B admits the job", "A waits: BEHIND_IN_QUEUE")),
        (admission(2), admission(0), ("only A admits the job", "B waits: BEHIND_IN_QUEUE")),
        (admission(2, end_s=9.0), admission(4, end_s=7.0), ("B on more GPUs", B_EARLIER)),
        (admission(2, end_s=7.0), admission(1, end_s=9.0), ("B on fewer GPUs", A_EARLIER)),
        (admission(2, 1, 7.0), admission(2, 2, 7.0), ("as many GPUs in another shape", "both forecast the same end")),
        (split("g0", "g1"), split("g0", hot=("g1",)), ("B on fewer units", "B leaves units out: THERMAL_LIMIT")),
        (split("g0", hot=("g1",)), split("g0", "g1"), ("B on more units", "A leaves units out: THERMAL_LIMIT")),
        (split("g0", seconds=3.0), split("g1", seconds=2.0), ("as many units, but others", B_EARLIER)),
        (split("g0"), split("g0", scale=2.0), ("the same units with other scales", NO_FORECAST)),
        (split("g0"), split(), ("only A splits the task", "B has no split: THERMAL_LIMIT")),
        (subtasks("cpu0"), subtasks("cpu0", "gpu0"), ("B runs more subtasks", "A leaves subtasks: INSUFFICIENT_GPU")),
        (subtasks("cpu0"), subtasks("gpu0"), ("B runs more subtasks on GPUs", NO_FORECAST)),
        (subtasks("cpu0"), subtasks("cpu1"), ("on as many GPUs and CPU cores, but others", NO_FORECAST)),
        (
            subtasks("gpu0"),
            subtasks("cpu1", is_fallback=True),
            ("B runs fewer subtasks on GPUs", "a fallback decided in B"),
        ),
    ],
)
def test_where_and_why(a: DecisionRecord, b: DecisionRecord, expected: tuple[str, str]) -> None:
    assert difference(a, b, 0) == expected
