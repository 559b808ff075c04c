"""The export: every entry of the ring once in the files, outcomes beside decisions, for any failure in between."""

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.declog import DAY_S, NOON_S, FakeRing, decision, decision_id, outcome, rows, run, task_on

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind, PartitionCommand, ShareOutcome
from placewise_core.domain.decision import (
    DecisionMeta,
    Outcome,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Share,
)
from placewise_core.domain.divisible import DivisibleTask
from placewise_log.record import DecisionRecord, Entry, decode_entry
from placewise_service.declog import files
from placewise_service.declog.dataset import Dataset, DatasetBusyError


async def test_decisions_land_in_the_partition_of_their_day(tmp_path: Path) -> None:
    ring = FakeRing(decision(1), decision(2, time_s=NOON_S + DAY_S))
    report = await run(ring, tmp_path)
    assert report.written["decisions"] == 2
    assert sorted(p.name for p in (tmp_path / "decisions").iterdir()) == ["date=2025-11-21", "date=2025-11-22"]
    first = rows(tmp_path, "decisions")[0]
    assert (first["id"], first["policy"], first["seed"]) == (decision_id(1), "tetris", 2**63 + 1)
    assert decode_entry(first["record"]) == decision(1)  # type: ignore[arg-type]
    assert ring.position == ring.entries[-1][0]


async def test_a_row_names_the_bundle_by_its_digest_and_tells_dry_runs(tmp_path: Path) -> None:
    made, dry = decision(1), decision(2, dry=True)
    assert made.place is not None
    answer = replace(made.place, meta=replace(made.place.meta, bundle="2026.11", bundle_digest="d1"))
    await run(FakeRing(replace(made, place=answer), dry), tmp_path)
    columns = ("bundle", "bundle_digest", "is_dry_run")
    found = [tuple(row[name] for name in columns) for row in rows(tmp_path, "decisions")]
    assert found == [("2026.11", "d1", False), ("", "", True)]
    assert [row["bundle_digest"] for row in rows(tmp_path, "joined")] == ["d1", ""]


async def test_a_second_export_writes_only_what_is_new(tmp_path: Path) -> None:
    ring = FakeRing(decision(1))
    await run(ring, tmp_path)
    assert (await run(ring, tmp_path)).written.total() == 0
    ring.add(decision(2))
    assert (await run(ring, tmp_path)).written["decisions"] == 1


async def test_an_export_may_begin_behind_a_position(tmp_path: Path) -> None:
    ring = FakeRing(decision(1), decision(2), decision(3))
    for count in (1, 0):
        assert (await run(ring, tmp_path, after=ring.entries[1][0])).written["decisions"] == count
    assert [row["id"] for row in rows(tmp_path, "decisions")] == [decision_id(3)]


async def test_repeats_in_the_ring_are_written_once(tmp_path: Path) -> None:
    started = outcome(1, JobEventKind.STARTED, NOON_S + 1)
    ring = FakeRing(decision(1), decision(1), started, decision(1), started)
    report = await run(ring, tmp_path, batch=2)
    assert (report.written["decisions"], report.written["outcomes"], report.written["repeated"]) == (1, 1, 3)


async def test_an_unreadable_entry_is_kept_and_holds_nothing_up(tmp_path: Path) -> None:
    ring = FakeRing(decision(1))
    ring.add(b"from a later version", decision(2))
    report = await run(ring, tmp_path)
    assert (report.written["decisions"], report.written["unreadable"]) == (2, 1)
    assert rows(tmp_path, "unreadable")[0]["record"] == b"from a later version"


async def test_cut_off_at_every_call_and_started_again_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    for calls in range(6):  # of one read and one mark for each of three batches
        directory = tmp_path / str(calls)
        ring = FakeRing(*(decision(n) for n in range(5)))
        ring.calls_left = calls
        with pytest.raises(ConnectionError):
            await run(ring, directory, batch=2)
        acknowledged = [p for p, _ in ring.entries if p <= ring.position and ring.position != "0"]
        assert {row["position"] for row in rows(directory, "decisions")} >= set(acknowledged)
        ring.calls_left = -1
        await run(ring, directory, batch=3)
        assert [row["id"] for row in rows(directory, "decisions")] == [decision_id(n) for n in range(5)]


async def test_a_disk_that_refuses_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    ring = FakeRing(decision(1))
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            await run(ring, tmp_path)
    assert ring.position == "0"
    assert rows(tmp_path, "decisions") == []
    await run(ring, tmp_path)
    assert len(rows(tmp_path, "decisions")) == 1
    assert not any(name.endswith(".tmp") for _, _, names in os.walk(tmp_path) for name in names)


async def test_two_exports_at_once_are_refused(tmp_path: Path) -> None:
    with Dataset(tmp_path).locked(), pytest.raises(DatasetBusyError):
        await run(FakeRing(decision(1)), tmp_path)


def life(n: int) -> list[Entry]:
    """A decision and everything its host says of it."""
    return [
        decision(n),
        outcome(n, JobEventKind.STARTED, NOON_S + 1, placement=(task_on("n1", 0),)),
        outcome(n, JobEventKind.PROGRESS, NOON_S + 2, speed=1.0, epochs_done=1.0),
        outcome(n, JobEventKind.FINISHED, NOON_S + 3, epochs_done=2.0),
    ]


def joined_row(directory: Path) -> tuple[object, ...]:
    (row,) = rows(directory, "joined")
    return row["status"], row["start_time_s"], row["speed_epochs_per_s"], row["end_time_s"], row["epochs_done"]


WHOLE = ("OBSERVED", NOON_S + 1, 1.0, NOON_S + 3, 2.0)


@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2), (1, 2, 3), (0, 1, 3)])
async def test_exports_between_a_decision_and_its_outcomes_join_them_in_the_end(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    ring = FakeRing()
    for n, entry in enumerate(life(1)):
        if n in cuts:
            await run(ring, tmp_path)
        ring.add(entry)
    await run(ring, tmp_path)
    assert joined_row(tmp_path) == WHOLE


@pytest.mark.parametrize("seen", [1, 2, 3])
@pytest.mark.parametrize("calls", range(4))
async def test_an_export_killed_between_a_decision_and_its_outcomes_joins_them_the_next_time(
    tmp_path: Path, seen: int, calls: int
) -> None:
    entries = life(1)
    ring = FakeRing(*entries[:seen])
    ring.calls_left = calls  # of one read and one mark for each of `seen` batches
    with suppress(ConnectionError):
        await run(ring, tmp_path, batch=1)
    ring.calls_left = -1
    ring.add(*entries[seen:])
    await run(ring, tmp_path, batch=3)
    assert joined_row(tmp_path) == WHOLE


async def test_a_join_that_was_cut_off_is_made_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(dataset: Dataset, **options: float) -> None:
        raise OSError("killed")

    ring = FakeRing(*life(1)[:2])
    await run(ring, tmp_path)
    ring.add(*life(1)[2:])
    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "join_all", cut)
        with pytest.raises(OSError, match="killed"):
            await run(ring, tmp_path)
    assert joined_row(tmp_path)[0] == "OPEN"
    assert (await run(ring, tmp_path)).written.total() == 0
    assert joined_row(tmp_path) == WHOLE


async def test_exports_to_two_directories_take_nothing_from_each_other(tmp_path: Path) -> None:
    entries = life(1)
    ring = FakeRing(entries[0])
    await run(ring, tmp_path / "a")
    ring.add(entries[1])
    await run(ring, tmp_path / "b")
    ring.add(*entries[2:])
    await asyncio.gather(run(ring, tmp_path / "a", batch=1), run(ring, tmp_path / "b", batch=1))
    assert joined_row(tmp_path / "a") == joined_row(tmp_path / "b") == WHOLE


async def test_a_store_that_lost_its_past_is_exported_from_its_new_beginning(tmp_path: Path) -> None:
    await run(FakeRing(decision(1), decision(2), decision(3)), tmp_path)
    await run(FakeRing(*life(4)), tmp_path)
    assert len(rows(tmp_path, "decisions")) == 4


async def test_a_directory_that_knows_no_position_recognises_what_it_holds(tmp_path: Path) -> None:
    ring = FakeRing(*life(1))
    await run(ring, tmp_path)
    (tmp_path / "positions.json").unlink()
    report = await run(ring, tmp_path)
    assert (report.written["repeated"], report.written.total()) == (4, 4)


async def test_a_decision_made_around_midnight_meets_its_outcomes(tmp_path: Path) -> None:
    midnight_s = NOON_S + DAY_S / 2
    before = decision(1, time_s=midnight_s - 0.001)
    noted_after = replace(before, time_s=midnight_s + 0.001)
    end = outcome(1, JobEventKind.FINISHED, midnight_s + 5, decided_s=midnight_s - 0.001)
    await run(FakeRing(noted_after, end), tmp_path)
    assert joined_row(tmp_path)[0] == "OBSERVED"


async def test_outcomes_meet_their_decision_even_days_later(tmp_path: Path) -> None:
    ring = FakeRing(decision(1))
    await run(ring, tmp_path)
    assert rows(tmp_path, "joined")[0]["status"] == "OPEN"
    ring.add(
        outcome(1, JobEventKind.STARTED, NOON_S + 3, placement=(task_on("n1", 0),)),
        outcome(1, JobEventKind.PROGRESS, NOON_S + 10, speed=1.0, epochs_done=7.0),
        outcome(1, JobEventKind.PROGRESS, NOON_S + 20, speed=3.0, epochs_done=37.0),
        outcome(1, JobEventKind.FINISHED, NOON_S + 2 * DAY_S, epochs_done=40.0),
    )
    report = await run(ring, tmp_path)
    (row,) = rows(tmp_path, "joined")
    assert report.joined["OBSERVED"] == 1
    assert (row["status"], row["end"], row["is_overridden"]) == ("OBSERVED", "FINISHED", False)
    assert (row["submit_time_s"], row["start_time_s"], row["end_time_s"]) == (
        NOON_S - 5,
        NOON_S + 3,
        NOON_S + 2 * DAY_S,
    )
    assert (row["predicted_speed_samples_per_s"], row["epochs_done"]) == (2.0, 40.0)
    assert (row["queueing_s"], row["jct_s"]) == (8.0, 2 * DAY_S + 5)
    assert row["speed_epochs_per_s"] == pytest.approx(40.0 / (2 * DAY_S - 3))
    assert row["slowdown"] is None, "a job of unknown epochs has its speed predicted in samples"


async def test_times_and_speeds_that_nobody_reported_are_null(tmp_path: Path) -> None:
    await run(FakeRing(decision(1)), tmp_path)
    (row,) = rows(tmp_path, "joined")
    unknown = ("start_time_s", "end_time_s", "speed_epochs_per_s", "epochs_done", "queueing_s", "jct_s")
    assert {row[name] for name in unknown} == {None}


async def test_a_job_that_runs_slower_than_predicted_says_by_how_much(tmp_path: Path) -> None:
    decided = decision(1)
    known = replace(decided, jobs=tuple(replace(job, dataset_size=100) for job in decided.jobs))
    await run(FakeRing(known, outcome(1, JobEventKind.PROGRESS, NOON_S + 9, speed=0.5)), tmp_path)
    (row,) = rows(tmp_path, "joined")
    assert (row["predicted_speed_epochs_per_s"], row["slowdown"]) == (2.0, 4.0)
    assert row["predicted_speed_samples_per_s"] is None


async def test_a_job_whose_host_has_another_clock_has_no_queueing_time(tmp_path: Path) -> None:
    await run(FakeRing(decision(1), outcome(1, JobEventKind.STARTED, NOON_S - 60)), tmp_path)
    assert rows(tmp_path, "joined")[0]["queueing_s"] is None


@pytest.mark.parametrize(
    ("actual", "is_overridden"),
    [
        ((task_on("n1", 0),), False),
        ((task_on("n1"),), False),
        ((task_on("n1", 1),), True),
        ((task_on("n2"),), True),
        ((), False),
    ],
)
async def test_a_host_that_did_otherwise_is_seen(
    tmp_path: Path, actual: tuple[Assignment, ...], is_overridden: bool
) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.STARTED, NOON_S + 1, placement=actual))
    report = await run(ring, tmp_path)
    assert rows(tmp_path, "joined")[0]["is_overridden"] is is_overridden
    assert report.joined["OVERRIDDEN"] == is_overridden


async def test_silence_past_the_time_out_is_dangling(tmp_path: Path) -> None:
    ring = FakeRing(decision(1), decision(2), decision(3, outcome=Outcome.WAIT), decision(4, dry=True))
    ring.add(outcome(2, JobEventKind.STARTED, NOON_S + 900))
    ring.now_s = NOON_S + 1000
    report = await run(ring, tmp_path, dangling_after_s=500)
    assert (report.joined["DANGLING"], report.joined["OPEN"], report.joined["NOT_HELD"]) == (1, 1, 2)
    ring.now_s = NOON_S + 1500
    assert (await run(ring, tmp_path, dangling_after_s=500)).joined["DANGLING"] == 2
    assert (await run(ring, tmp_path, dangling_after_s=500)).joined.total() == 0  # settled days are left alone


def asked_again(first: DecisionRecord, n: int, *, reservation_id: str | None = None) -> DecisionRecord:
    """The record of a later question about the same job, answered with its placement."""
    assert first.place is not None
    (decided,) = first.place.decisions
    decided = replace(decided, reservation_id=decided.reservation_id if reservation_id is None else reservation_id)
    answer = PlaceDecision((decided,), DecisionMeta(decision_id(n), "tetris"))
    return replace(first, place=answer, time_s=first.time_s + n)


@pytest.mark.parametrize("named", [1, 2])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_job_asked_about_again_is_one_placement_whose_outcome_comes_under_either_id(
    tmp_path: Path, named: int, order: tuple[int, int]
) -> None:
    first = decision(1)
    records = (first, asked_again(first, 2))
    end = outcome(1, JobEventKind.FINISHED, NOON_S + 9)
    ring = FakeRing(*(records[i] for i in order), replace(end, decision_id=decision_id(named)))
    ring.now_s = NOON_S + DAY_S
    report = await run(ring, tmp_path, dangling_after_s=1)
    statuses = {row["decision_id"]: row["status"] for row in rows(tmp_path, "joined")}
    assert statuses == {decision_id(1): "OBSERVED", decision_id(2): "NOT_HELD"}
    assert report.joined["DANGLING"] == 0


async def test_a_running_job_asked_about_again_waits_for_nothing(tmp_path: Path) -> None:
    running = asked_again(decision(1), 2, reservation_id="")
    report = await run(FakeRing(running), tmp_path)
    assert report.joined["NOT_HELD"] == 1


async def test_shares_of_a_partition_meet_what_they_took(tmp_path: Path) -> None:
    plan = PartitionPlan(Outcome.PLACED, tuple(Share("n", unit, 1.0, 3.0, 0.0, 1.0) for unit in ("gpu0", "gpu1")))
    answer = PartitionDecision(plan, DecisionMeta(decision_id(1), "threshold"))
    command = PartitionCommand("c", DivisibleTask("j1", parallel_scale=2.0))
    ring = FakeRing(DecisionRecord.of_partition(command, answer, time_s=NOON_S, latency_ms=1))
    share = ShareOutcome("kind", "n", "gpu1", seconds=4.5)
    ring.add(outcome(1, JobEventKind.SHARE_FINISHED, NOON_S + 5, share=share))
    await run(ring, tmp_path)
    seen = {row["unit"]: (row["status"], row["predicted_s"], row["actual_s"]) for row in rows(tmp_path, "joined")}
    assert seen == {"n/gpu0": ("OPEN", 3.0, None), "n/gpu1": ("OBSERVED", 3.0, 4.5)}


@pytest.mark.parametrize("damage", ["removed", "garbage", "behind"])
async def test_rows_are_written_once_whatever_became_of_the_index_of_their_ids(tmp_path: Path, damage: str) -> None:
    await run(FakeRing(decision(1), decision(2)), tmp_path)
    (index,) = (tmp_path / "decisions").glob("*/.ids.sqlite")
    before = index.read_bytes()
    await run(FakeRing(decision(3)), tmp_path)
    (tmp_path / "positions.json").unlink()
    if damage == "removed":
        index.unlink()
    else:
        index.write_bytes(b"garbage" * 1000 if damage == "garbage" else before)
    report = await run(FakeRing(*(decision(n) for n in (1, 2, 3, 4))), tmp_path)
    assert (report.written["decisions"], report.written["repeated"]) == (1, 3)


async def test_rows_of_a_file_that_somebody_removed_are_written_again(tmp_path: Path) -> None:
    await run(FakeRing(decision(1)), tmp_path)
    for path in (tmp_path / "decisions").glob("*/*.parquet"):
        path.unlink()
    (tmp_path / "positions.json").unlink()
    assert (await run(FakeRing(decision(1)), tmp_path)).written["decisions"] == 1
