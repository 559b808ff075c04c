"""Rewards, runs and progress of an exported log."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.declog import DAY_S, NOON_S, FakeRing, decision, job_rows, outcome, rows, run, task_on

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_core.domain.realised import HORIZONS_MIN, Run, points_of, reward_h
from placewise_core.policies.studies.alternatives import Alternative
from placewise_log.record import DecisionRecord, Entry

COLUMNS = tuple(f"reward_{minutes}min" for minutes in HORIZONS_MIN)
PLACED = tuple(f"placed_{name}" for name in COLUMNS)
EPOCHS = 10.0


def life(
    n: int, node: str, start_s: float, end_s: float | None, *, decided_s: float = NOON_S, reachable: str = ""
) -> list[Entry]:
    """A decision about a job of 10 epochs, its start on a node, half of its epochs after half of its time, its end.
    With `reachable` it has an alternative for each of these nodes."""
    made = decision(n, time_s=decided_s)
    rows = tuple(Alternative(f"j{n}", "tetris", (each,), each == node, 0.5, 1.0) for each in reachable)
    jobs = tuple(replace(job, total_epochs=EPOCHS) for job in made.jobs)
    entries: list[Entry] = [replace(made, jobs=jobs, alternatives=rows if reachable else None)]
    kinds = JobEventKind
    entries.append(outcome(n, kinds.STARTED, start_s, decided_s=decided_s, placement=(task_on(node, 0),)))
    if end_s is not None:
        half_s = (start_s + end_s) / 2
        entries.append(outcome(n, kinds.PROGRESS, half_s, decided_s=decided_s, epochs_done=EPOCHS / 2))
        entries.append(outcome(n, kinds.FINISHED, end_s, decided_s=decided_s))
    return entries


def rewards(directory: Path, job_id: str, columns: Sequence[str] = COLUMNS) -> list[object]:
    (row,) = job_rows(directory, job_id=job_id)
    return [row[name] for name in columns]


async def test_a_job_has_the_progress_of_those_decided_before_it(tmp_path: Path) -> None:
    hour_s = 3600.0
    ring = FakeRing(
        *life(1, "a", NOON_S + 10, NOON_S + 10 + hour_s, reachable="ab"),
        *life(2, "a", NOON_S + 310, NOON_S + 310 + hour_s, reachable="ab"),
        *life(3, "b", NOON_S + 10, NOON_S + 10 + hour_s, reachable="ab"),
    )
    ring.now_s = NOON_S + 3 * hour_s
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([1 / 12, 1 / 3, 1.0])
    assert rewards(tmp_path, "j2") == pytest.approx([2 / 12, 2 / 3, 1.0 + 11 / 12])
    assert rewards(tmp_path, "j3") == pytest.approx([2 / 12, 2 / 3, 2.0])


async def test_a_job_without_alternatives_has_the_progress_on_its_own_nodes(tmp_path: Path) -> None:
    """On its node one was decided before it and one after it; another ended before it came, others run elsewhere."""
    hour_s = 3600.0
    ring = FakeRing(
        *life(1, "a", NOON_S, NOON_S + hour_s),
        *life(2, "a", NOON_S - 60, NOON_S + 30),
        *life(3, "b", NOON_S, NOON_S + hour_s),
        *life(4, "a", NOON_S + 60, NOON_S + 60 + hour_s),
        *life(5, "a", NOON_S + 90, NOON_S + 90 + hour_s),
        *life(6, "a", NOON_S + 120, NOON_S + 120 + hour_s, reachable="b"),
    )
    ring.now_s = NOON_S + 1810
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j4", PLACED) == [pytest.approx(2 * 5 / 60), pytest.approx(2 * 20 / 60), None]
    ring.now_s = NOON_S + 3 * hour_s
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1", PLACED) == pytest.approx([5 / 60, 20 / 60, 1.0])
    assert rewards(tmp_path, "j4", PLACED) == pytest.approx([2 * 5 / 60, 2 * 20 / 60, 1.0 + 59 / 60])
    assert rewards(tmp_path, "j6", PLACED) == pytest.approx([4 * 5 / 60, 4 * 20 / 60, 1.0 + (58 + 59 + 59.5) / 60])
    assert rewards(tmp_path, "j6") == pytest.approx([2 * 5 / 60, 2 * 20 / 60, 1.0 + 58 / 60])
    assert rewards(tmp_path, "j4") == [None] * 3


async def test_the_neighbourhood_is_that_of_every_alternative_wherever_the_job_went(tmp_path: Path) -> None:
    """On b and c others run, on a nobody; one more comes later to the job's own node."""
    hour_s, found = 3600.0, {}
    for node in "abc":
        ring = FakeRing(
            *life(1, "b", NOON_S, NOON_S + hour_s),
            *life(2, "c", NOON_S + 60, NOON_S + 60 + hour_s),
            *life(3, "c", NOON_S, NOON_S + 100),  # gone by then
            *life(4, "d", NOON_S, NOON_S + hour_s),  # on no node that the job could have
            *life(5, node, NOON_S + 120, NOON_S + 120 + hour_s, reachable="abc"),
            *life(6, node, NOON_S + 180, NOON_S + 180 + hour_s, reachable="abc"),
            *life(7, "b", NOON_S + 130, NOON_S + 130 + hour_s, decided_s=NOON_S - 60),
        )
        ring.now_s = NOON_S + 3 * hour_s
        await run(ring, tmp_path / node)
        found[node] = rewards(tmp_path / node, "j5")
        assert rewards(tmp_path / node, "j1") == [None] * 3, "without alternatives"
        sixth = rewards(tmp_path / node, "j6")
        assert sixth[:2] == pytest.approx([5 * 5 / 60, 5 * 20 / 60])  # j1, j2, j5, j7 and itself
    assert found["a"] == found["b"] == found["c"] == pytest.approx([3 * 5 / 60, 3 * 20 / 60, 1.0 + 58 / 60 + 59 / 60])


async def test_a_reward_is_unknown_while_more_run_on_a_node_than_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placewise_service.declog.join.runs._MOST_ON_NODE", 2)
    lives = [life(n, "a", NOON_S + n, NOON_S + (100 if n == 3 else 3600)) for n in (1, 2, 3)]
    while_they_run, later = (
        life(n, "b", start_s, start_s + 60, reachable="ab") for n, start_s in ((4, NOON_S + 50), (5, NOON_S + 200))
    )
    ring = FakeRing(*(entry for each in (*lives, while_they_run, later) for entry in each))
    ring.now_s = NOON_S + 3 * 3600
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j4") == [None] * 3
    fifth = rewards(tmp_path, "j5")
    assert fifth[0] == pytest.approx(1.0 + 300 / 3599 + 300 / 3598)


async def test_jobs_of_one_request_are_no_neighbours_and_an_open_one_keeps_a_reward_waiting(tmp_path: Path) -> None:
    first, *rest = life(1, "a", NOON_S, NOON_S + 600, reachable="ab")
    assert isinstance(first, DecisionRecord)
    other = decision(1, job_id="j2")
    both = replace(
        first,
        jobs=(*first.jobs, *other.jobs),
        place=replace(first.place, decisions=(*first.place.decisions, *other.place.decisions)),  # type: ignore[union-attr,type-var]
    )
    placed, started = task_on("a", 1), JobEventKind.STARTED
    twin = replace(outcome(1, started, NOON_S - 1, placement=(placed,)), event=JobEvent(JobId("j2"), started, NOON_S))
    ring = FakeRing(both, *rest, twin, *life(3, "b", NOON_S - 60, None, decided_s=NOON_S - 60))
    ring.now_s = NOON_S + 2 * 3600
    report = await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == [None] * 3
    assert report.joined["WAITING"] > 0
    ring.add(outcome(3, JobEventKind.PROGRESS, NOON_S + 7140, decided_s=NOON_S - 60, epochs_done=5.0))
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([0.5 + 300 / 14400, 1.0 + 1200 / 14400, 1.0 + 3600 / 14400])


async def test_a_reward_is_null_until_its_time_has_passed_and_known_by_a_later_export(tmp_path: Path) -> None:
    ring = FakeRing(*life(1, "a", NOON_S, NOON_S + 60, reachable="a"))
    known = []
    for minutes in (4, 6, 30, 61):
        ring.now_s = NOON_S + 60.0 * minutes
        await run(ring, tmp_path)
        known.append([value is not None for value in rewards(tmp_path, "j1")])
    assert known == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    assert (await run(ring, tmp_path)).joined.total() == 0, "a settled day is left alone"


async def test_progress_before_the_decision_is_no_label(tmp_path: Path) -> None:
    """The host says that the job ran for an hour before the decision."""
    ring = FakeRing(*life(1, "a", NOON_S - 3600, NOON_S + 3600, reachable="a"))
    ring.now_s = NOON_S + 3 * 3600
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j1") == pytest.approx([0.5 / 12, 1 / 6, 0.5])
    (row,) = rows(tmp_path, "runs")
    assert row["start_time_s"] == NOON_S


async def test_speeds_and_epochs_before_the_decision_are_no_label(tmp_path: Path) -> None:
    kinds, other = JobEventKind, decision(2)
    ring = FakeRing(
        decision(1),
        outcome(1, kinds.STARTED, NOON_S - 100, placement=(task_on("n1", 0),)),
        outcome(1, kinds.PROGRESS, NOON_S - 60, speed=99.0, epochs_done=7.0),
        replace(other, jobs=(replace(other.jobs[0], total_epochs=EPOCHS, single_gpu_s=60.0),)),
        outcome(2, kinds.STARTED, NOON_S - 100, placement=(task_on("n1", 0),)),
        outcome(2, kinds.PROGRESS, NOON_S - 60, speed=99.0, epochs_done=7.0),
        outcome(2, kinds.PROGRESS, NOON_S + 30, speed=0.03),
        outcome(2, kinds.PROGRESS, NOON_S + 40, speed=0.11, epochs_done=9.0),
    )
    ring.now_s = NOON_S + 3600
    await run(ring, tmp_path)
    (before,), (after,) = job_rows(tmp_path, job_id="j1"), job_rows(tmp_path, job_id="j2")
    columns = ("speed_epochs_per_s", "slowdown", "epochs_done", "start_time_s")
    assert [before[name] for name in columns] == [None, None, None, NOON_S]
    assert [after[name] for name in columns] == pytest.approx([0.05, 40.0, 9.0, NOON_S])


async def test_a_neighbour_of_the_day_before_counts(tmp_path: Path) -> None:
    midnight_s = NOON_S + DAY_S / 2
    before = life(1, "a", midnight_s - 1800, midnight_s + 1800, decided_s=midnight_s - 1800)
    after = life(2, "a", midnight_s, midnight_s + 3600, decided_s=midnight_s, reachable="a")
    ring = FakeRing(*before, *after)
    ring.now_s = midnight_s + DAY_S
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j2") == pytest.approx([2 / 12, 2 / 3, 1.5])


async def test_a_neighbour_that_still_runs_keeps_a_reward_open_until_it_reports(tmp_path: Path) -> None:
    ring = FakeRing(*life(1, "a", NOON_S, None), *life(2, "a", NOON_S, NOON_S + 60, reachable="a"))
    ring.now_s = NOON_S + 2 * 3600
    report = await run(ring, tmp_path)
    assert rewards(tmp_path, "j2") == [None] * 3
    assert report.joined["WAITING"] == 2, "of both jobs"
    ring.add(outcome(1, JobEventKind.PROGRESS, NOON_S + 3600, epochs_done=5.0))
    await run(ring, tmp_path)
    assert rewards(tmp_path, "j2") == pytest.approx([1.0 + 0.5 / 12, 1.0 + 2 / 12, 1.5])


@pytest.mark.parametrize("slices", [1, 7])
async def test_the_rewards_of_many_runs_are_those_of_the_pure_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    monkeypatch.setattr("placewise_service.declog.join.buckets._ROWS", 10_000 // slices**3)
    rng = random.Random(7)
    runs, reachable, entries = [], [], []
    for n in range(1, 120):
        start_s = NOON_S + rng.uniform(0, 4000)
        end_s, node = start_s + rng.uniform(60, 3000), rng.choice("abc")
        reachable.append(rng.choice(["a", "ab", "bc", "abc"]))
        lived = life(n, node, start_s, end_s, reachable=reachable[-1])
        entries += rng.sample(lived, len(lived))
        start_s, half_s, end_s = (round(each, 6) for each in (start_s, (start_s + end_s) / 2, end_s))
        points = points_of(start_s, end_s, EPOCHS, [(half_s, None, EPOCHS / 2)], has_finished=True)
        runs.append(Run(f"j{n}", frozenset({node}), start_s, end_s, EPOCHS, points))
    ring = FakeRing(*entries)
    ring.now_s = NOON_S + DAY_S
    await run(ring, tmp_path)
    found = {row["job_id"]: row for row in job_rows(tmp_path)}
    assert len(found) == len(job_rows(tmp_path)) == len(runs)
    for n, each in enumerate(runs):
        before = [other for other in runs[:n] if other.start_s <= each.start_s < other.end_s]
        neighbours = [other for other in before if not other.nodes.isdisjoint(reachable[n])]
        wanted = [reward_h(each, neighbours, 60.0 * minutes, ring.now_s) for minutes in HORIZONS_MIN]
        assert [found[each.job_id][name] for name in COLUMNS] == pytest.approx(wanted)


async def test_reports_of_progress_are_a_table_of_their_own(tmp_path: Path) -> None:
    reported = outcome(1, JobEventKind.PROGRESS, NOON_S + 20, speed=3.0, epochs_done=9.0)
    silent = outcome(1, JobEventKind.PROGRESS, NOON_S + 30)
    ring = FakeRing(decision(1), replace(reported, neighbours=("j2", "j3")), reported, silent)
    await run(ring, tmp_path)
    first, second = sorted(rows(tmp_path, "progress"), key=lambda row: str(row["time_s"]))
    assert (first["time_s"], first["speed_epochs_per_s"], first["epochs_done"]) == (NOON_S + 20, 3.0, 9.0)
    assert (first["job_id"], first["neighbours"]) == ("j1", ["j2", "j3"])
    assert (second["speed_epochs_per_s"], second["epochs_done"], second["neighbours"]) == (None, None, None)
