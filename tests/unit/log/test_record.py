"""The bytes of log entries: they decode to the same entry, and nothing else is taken for one."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.fakes.slices import every_round

from placewise_core.domain.cluster import Assignment, QueueState
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PartitionCommand, PlaceCommand
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
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_log.record import (
    Choice,
    CorruptEntryError,
    DecisionRecord,
    OutcomeRecord,
    Tensor,
    decision_time_s,
    decode,
    decode_entry,
    encode,
)
from placewise_service import pieces
from placewise_service.declog.large import encode_in_turns, is_large
from placewise_service.engine.answers import decode_answer, encode_answer

ID = "019aa3c5-5a00-7000-8000-000000000001"  # UUIDv7 of 2025-11-21
META = DecisionMeta(decision_id=ID, policy="tetris", snapshot_version=7, propensity=0.25, is_explored=True)
JOB = Job(id=JobId("j1"), groups=(TaskGroup(Role.WORKER, 2, Resources(cpu_cores=4, gpus=1, extended={"fpga": 1.0})),))


def placed(node: str = "n1") -> PlaceDecision:
    assignment = Assignment(
        task="worker-0", role=Role.WORKER, node=NodeId(node), gpu_indices=(3,), demand=Resources(gpus=1)
    )
    return PlaceDecision((JobDecision(JobId("j1"), Outcome.PLACED, (assignment,), predicted_speed=1.5),), META)


async def test_a_large_record_has_the_same_bytes_and_others_a_turn_within_it() -> None:
    decisions = tuple(replace(placed().decisions[0], job_id=JobId(f"j{i}")) for i in range(3))
    wide = tuple(replace(job, assignments=job.assignments * 2500) for job in decisions)
    command = PlaceCommand("c", (JOB,), request_id="r")
    small, large = (
        DecisionRecord.of_place(command, PlaceDecision(jobs, META), time_s=1.5, seed=7, latency_ms=0.3)
        for jobs in (decisions, wide)
    )
    assert not is_large(small)
    assert is_large(large)
    async with every_round(lambda _: None) as rounds:
        assert await encode_in_turns(large) == encode(large)
    assert len(rounds) == len(wide) - 1 + 2  # between two portions, and before each copy of the whole


async def test_a_large_partition_is_packed_in_portions_for_the_log_and_for_repeats() -> None:
    shares = tuple(Share(f"n{i}", f"gpu{i}", 1.0, float(i), 60.0, 0.5) for i in range(9000))
    excluded = tuple(Excluded(f"m{i}", "gpu0", Reason.THERMAL_LIMIT) for i in range(4001))
    decision = PartitionDecision(PartitionPlan(Outcome.PLACED, shares, 1.0, 2.0, 0.5, excluded), META)
    command = PartitionCommand("c", DivisibleTask("t", 9.0), request_id="r")
    record = DecisionRecord.of_partition(command, decision, time_s=1.5, latency_ms=0.3)
    assert is_large(record)
    async with every_round(lambda _: None) as rounds:
        assert await encode_in_turns(record) == encode(record)
    assert len(rounds) >= 4 + 2
    async with every_round(lambda _: None) as rounds:
        answer = await encode_answer(decision)
    assert len(rounds) >= 4 + 2
    async with every_round(lambda _: None) as rounds:
        back = await decode_answer(answer, PartitionDecision)
    assert len(rounds) >= 8, "1.2 MB, an eighth of one at a time"
    assert back == replace(decision, meta=replace(META, is_repeated=True))


async def test_a_large_placement_to_be_repeated_comes_back_in_portions() -> None:
    job = placed().decisions[0]
    decision = PlaceDecision(tuple(replace(job, assignments=job.assignments * 1024) for _ in range(8)), META)
    answer = await encode_answer(decision)
    async with every_round(lambda _: None) as rounds:
        back = await decode_answer(answer, PlaceDecision)
    assert len(rounds) >= 5
    assert back == replace(decision, meta=replace(META, is_repeated=True))
    assert await decode_answer(answer, PartitionDecision) is None


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
async def test_an_array_in_portions_begins_as_one_of_its_length(count: int) -> None:
    plan = PartitionPlan(Outcome.PLACED, (Share("n", "u", 1.0, 1.0, 1.0, 1.0),) * count)
    decision = PartitionDecision(plan, META)
    assert await pieces.pack_in_turns(decision) == msgspec.Raw(msgspec.msgpack.encode(decision))


def test_a_place_record_comes_back_as_it_was() -> None:
    choice = Choice("j1", (4, 5), {"nodes": Tensor.pack(np.arange(6, dtype=np.float32).reshape(2, 3))})
    command = PlaceCommand("c", (JOB,), request_id="r", is_dry_run=True)
    record = DecisionRecord.of_place(command, placed(), time_s=1.5, seed=2**64 - 1, latency_ms=0.3, choices=(choice,))
    back = decode(encode(record))
    assert back == record
    assert (back.decision_id, back.outcome, back.meta.is_explored) == (ID, "PLACED", True)
    np.testing.assert_array_equal(back.choices[0].observation["nodes"].unpack(), [[0, 1, 2], [3, 4, 5]])


def test_partition_and_admit_records_come_back_as_they_were() -> None:
    plan = PartitionPlan(Outcome.PLACED, (Share("n", "gpu0", 2.0, 3.0, 60.0, 1.0),))
    task = DivisibleTask("t", parallel_scale=2.0)
    split = DecisionRecord.of_partition(
        PartitionCommand("c", task), PartitionDecision(plan, META), time_s=1, latency_ms=1
    )
    assert decode(encode(split)) == split
    wait = Admission(JobId("j1"), Verdict.WAIT, blockers=(Blocker(Reason.DRIFT_PLUS_PENALTY),))
    admit = AdmitPlan((Admission(JobId("j0"), Verdict.ADMIT, 4), wait), QueueState("q", admitted={"j0": (1, 4, 9)}))
    command = AdmitCommand("c", "q", (JOB,))
    asked = DecisionRecord.of_admit(command, AdmitDecision(admit, META), time_s=1, seed=0, latency_ms=1)
    assert decode(encode(asked)) == asked
    assert asked.outcome == "MIXED"


def test_an_outcome_comes_back_and_is_no_decision() -> None:
    event = JobEvent(JobId("j1"), JobEventKind.FINISHED, event_time_s=9.0, speed=math.inf)
    outcome = OutcomeRecord("c", 10.0, event, decision_id=ID)
    data = encode(outcome)
    assert decode_entry(data) == outcome
    with pytest.raises(CorruptEntryError):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"not msgpack at all",
        msgspec.msgpack.encode((99, "decision", "", {})),
        msgspec.msgpack.encode((1, "rumour", "", {})),
        msgspec.msgpack.encode((1, "decision", "", {"rpc": 3})),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptEntryError):
        decode_entry(data)


def test_every_truncation_is_refused() -> None:
    data = encode(DecisionRecord.of_place(PlaceCommand("c", (JOB,)), placed(), time_s=1, seed=1, latency_ms=1))
    for end in range(len(data)):
        with pytest.raises(CorruptEntryError):
            decode_entry(data[:end])


def test_the_time_of_a_decision_is_in_its_id() -> None:
    assert decision_time_s(ID) == 0x019AA3C55A00 / 1000
    assert decision_time_s("f47ac10b-58cc-4372-a567-0e02b2c3d479") is None
    assert decision_time_s("") is None
