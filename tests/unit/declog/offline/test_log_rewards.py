"""Rewards, runs and progress of an exported log: reward_h of the join is that of the pure function."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.declog import DAY_S, NOON_S, FakeRing, decision, job_rows, outcome, rows, run, task_on

from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.realised import HORIZONS_MIN, Run, points_of, reward_h
from placewise_log.record import Entry

COLUMNS = tuple(f"reward_{minutes}min" for minutes in HORIZONS_MIN)
EPOCHS = 10.0


def life(n: int, node: str, start_s: float, end_s: float | None, *, decided_s: float = NOON_S) -> list[Entry]:
    """A decision about a job of 10 epochs, its start on a node, half of its epochs after half of its time, its end."""
    made = decision(n, time_s=decided_s)
    entries: list[Entry] = [replace(made, jobs=tuple(replace(job, total_epochs=EPOCHS) for job in made.jobs))]
    kinds = JobEventKind
    entries.append(outcome(n, kinds.STARTED, start_s, decided_s=decided_s, placement=(task_on(node, 0),)))
    if end_s is not None:
        half_s = (start_s + end_s) / 2
        entries.append(outcome(n, kinds.PROGRESS, half_s, decided_s=decided_s, epochs_done=EPOCHS / 2))
        entries.append(outcome(n, kinds.FINISHED, end_s, decided_s=decided_s))
    return entries


def rewards(directory: Path, job_id: str) -> list[object]:
    (row,) = job_rows(directory, job_id=job_id)
    return [row[name] for name in COLUMNS]


async def test_a_job_and_its_neighbour_have_each_others_progress(tmp_path: Path) -> None:
    hour_s = 3600.0
    ring = FakeRing(
        *life(1, "a", NOON_S + 10, NOON_S + 10 + hour_s),
        *life(2, "a", NOON_S + 310, NOON_S + 310 + hour_s),
        *life(3, "b", NOON_S + 10, NOON_S + 10 + hour_s),
    )
    ring.now_s = NOON_S + 3 * hour_s
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([1 / 12, 1 / 3 + 1 / 4, 1.0 + 11 / 12])
    assert rewards(tmp_path, "j2") == pytest.approx([2 / 12, 2 / 3, 1.0 + 11 / 12])
    assert rewards(tmp_path, "j3") == pytest.approx([1 / 12, 1 / 3, 1.0])


async def test_a_reward_is_null_until_its_time_has_passed_and_known_by_a_later_export(tmp_path: Path) -> None:
    ring = FakeRing(*life(1, "a", NOON_S, NOON_S + 60))
    known = []
    for minutes in (4, 6, 30, 61):
        ring.now_s = NOON_S + 60.0 * minutes
        await run(ring, tmp_path)
        known.append([value is not None for value in rewards(tmp_path, "j1")])
    assert known == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    assert (await run(ring, tmp_path)).joined.total() == 0, "a settled day is left alone"


async def test_progress_before_the_decision_is_no_label(tmp_path: Path) -> None:
    """The host says that the job ran for an hour before the decision."""
    ring = FakeRing(*life(1, "a", NOON_S - 3600, NOON_S + 3600))
    ring.now_s = NOON_S + 3 * 3600
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([0.5 / 12, 1 / 6, 0.5])
    (row,) = rows(tmp_path, "runs")
    assert row["start_time_s"] == NOON_S


async def test_a_neighbour_of_the_day_before_counts(tmp_path: Path) -> None:
    midnight_s = NOON_S + DAY_S / 2
    before = life(1, "a", midnight_s - 1800, midnight_s + 1800, decided_s=midnight_s - 1800)
    after = life(2, "a", midnight_s, midnight_s + 3600, decided_s=midnight_s)
    ring = FakeRing(*before, *after)
    ring.now_s = midnight_s + DAY_S
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j2") == pytest.approx([2 / 12, 2 / 3, 1.5])
    assert rewards(tmp_path, "j1") == pytest.approx([1 / 12, 1 / 3, 1.5])


async def test_a_neighbour_that_still_runs_keeps_a_reward_open_until_it_reports(tmp_path: Path) -> None:
    ring = FakeRing(*life(1, "a", NOON_S, NOON_S + 60), *life(2, "a", NOON_S, None))
    ring.now_s = NOON_S + 2 * 3600
    report = await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == [None] * 3
    assert report.joined["WAITING"] == 2
    ring.add(outcome(2, JobEventKind.PROGRESS, NOON_S + 3600, epochs_done=5.0))
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([1.0 + 0.5 / 12, 1.0 + 2 / 12, 1.5])


@pytest.mark.parametrize("slices", [1, 7])
async def test_the_rewards_of_many_runs_are_those_of_the_pure_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    monkeypatch.setattr("placewise_service.declog.join.buckets._ROWS", 10_000 // slices**3)
    rng = random.Random(7)
    runs, entries = [], []
    for n in range(1, 120):
        start_s = NOON_S + rng.uniform(0, 4000)
        end_s, node = start_s + rng.uniform(60, 3000), rng.choice("abc")
        lived = life(n, node, start_s, end_s)
        entries += rng.sample(lived, len(lived))
        start_s, half_s, end_s = (round(each, 6) for each in (start_s, (start_s + end_s) / 2, end_s))
        points = points_of(start_s, end_s, EPOCHS, [(half_s, None, EPOCHS / 2)], has_finished=True)
        runs.append(Run(f"j{n}", frozenset({node}), start_s, end_s, EPOCHS, points))
    ring = FakeRing(*entries)
    ring.now_s = NOON_S + DAY_S
    await run(ring, tmp_path)
    for each in runs:
        others: Sequence[Run] = [other for other in runs if other is not each]
        wanted = [reward_h(each, others, 60.0 * minutes, ring.now_s) for minutes in HORIZONS_MIN]
        assert rewards(tmp_path, each.job_id) == pytest.approx(wanted)


async def test_reports_of_progress_are_a_table_of_their_own(tmp_path: Path) -> None:
    reported = outcome(1, JobEventKind.PROGRESS, NOON_S + 20, speed=3.0, epochs_done=9.0)
    silent = outcome(1, JobEventKind.PROGRESS, NOON_S + 30)
    ring = FakeRing(decision(1), replace(reported, neighbours=("j2", "j3")), reported, silent)
    await run(ring, tmp_path)
    first, second = sorted(rows(tmp_path, "progress"), key=lambda row: str(row["time_s"]))
    assert (first["time_s"], first["speed_epochs_per_s"], first["epochs_done"]) == (NOON_S + 20, 3.0, 9.0)
    assert (first["job_id"], first["neighbours"]) == ("j1", ["j2", "j3"])
    assert (second["speed_epochs_per_s"], second["epochs_done"], second["neighbours"]) == (None, None, None)
