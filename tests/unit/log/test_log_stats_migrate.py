"""`placewise log stats` and `placewise log migrate` on a directory: numbers, and files refused by name."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.declog import NOON_S, FakeRing, decision, decision_id, files, job_rows, outcome, rows, run

from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.decision import DecisionMeta, PlaceDecision
from placewise_log.logs import Log
from placewise_log.record import DecisionRecord, Draw
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_service.declog.dataset import Dataset


def explored(n: int, propensity: float, explorer: str) -> DecisionRecord:
    """A decision of tetris with exploration."""
    made = decision(n)
    assert made.place is not None
    (decided,) = made.place.decisions
    answer = PlaceDecision((replace(decided, propensity=propensity),), DecisionMeta(decision_id(n), "tetris"))
    return replace(made, place=answer, draws=(Draw(decided.job_id, explorer=explorer, rate=0.2),))


def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], list[str]]:
    """Exit code, JSON answer, and lines on standard error."""
    code = invoke([*args, "--json"])
    captured = capsys.readouterr()
    return (
        code,
        json.loads(captured.out) if captured.out else {},
        [line for line in captured.err.splitlines() if line.startswith("placewise: ")],
    )


async def test_stats_count_policies_support_labels_and_orphans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = FakeRing(
        explored(1, 0.25, "random"),
        explored(2, 0.5, ""),
        decision(3),
        outcome(1, JobEventKind.STARTED, NOON_S + 1),
        outcome(1, JobEventKind.FINISHED, NOON_S + 9),
        outcome(9, JobEventKind.FINISHED, NOON_S + 9),
        b"from a later version",
    )
    await run(ring, tmp_path)
    code, found, _ = command(capsys, "log", "stats", str(tmp_path))
    assert code == Exit.OK
    assert found["decisions"] == {"Place PLACED": 3}
    assert found["outcomes"] == {"STARTED": 1, "FINISHED": 2}
    policy = found["policies"]["Place tetris"]
    assert (policy["rows"], policy["explored"], policy["explorers"]) == (3, 1, {"random": 1})
    assert (policy["with_support"], policy["largest_weight"]) == (2, 4.0)
    assert policy["ess"] == pytest.approx(7**2 / (16 + 4 + 1))
    assert found["statuses"] == {"Place": {"OBSERVED": 1, "OPEN": 2}}
    assert (found["held"], found["covered"]["start_time_s"], found["covered"]["reward_5min"]) == (3, 1, 0)
    assert (found["orphans"], found["unreadable"], found["repeated"]) == (1, 1, 0)


async def test_stats_count_shadows_apart_and_policies_by_held_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shadow = replace(explored(2, 0.25, "random"), shadow_of=decision_id(1))
    again = replace(decision(4), jobs=decision(1).jobs, place=replace(decision(1).answer, meta=decision(4).meta))
    await run(FakeRing(decision(1), shadow, decision(3, dry=True), again), tmp_path)
    _, found, _ = command(capsys, "log", "stats", str(tmp_path))
    assert (found["decisions"], found["shadows"]) == ({"Place PLACED": 3}, 1)
    assert sum(found["views"].values()) == 3
    assert found["without_alternatives"] == 3
    policy = found["policies"]["Place tetris"]
    assert (policy["rows"], policy["explored"], policy["largest_weight"]) == (1, 0, 1.0)
    assert found["statuses"] == {"Place": {"OPEN": 1, "NOT_HELD": 3}}


async def test_stats_name_a_file_that_cannot_be_read_and_count_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(FakeRing(decision(1), decision(2)), tmp_path, batch=1)
    bad = files(tmp_path, "decisions/*/*.parquet")[0]
    bad.write_bytes(b"PAR1")
    code, found, lines = command(capsys, "log", "stats", str(tmp_path))
    assert (code, found["decisions"]) == (Exit.BAD_INPUT, {"Place PLACED": 1})
    assert len(lines) == 1
    assert lines[0].startswith(f"placewise: {bad}: ")


async def test_stats_know_the_entries_that_were_dropped_before_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = FakeRing(decision(1))
    ring.dropped = {Log.DECISIONS: 7, Log.VIEWS: 2}
    await run(ring, tmp_path)
    _, found, _ = command(capsys, "log", "stats", str(tmp_path))
    assert found["dropped"] == {"c": {"decisions": 7, "views": 2}}
    assert invoke(["log", "stats", str(tmp_path)]) == Exit.OK
    printed = " ".join(capsys.readouterr().out.split())
    assert "c: 7 entries of its decisions and 2 entries of its views were dropped" in printed


async def test_stats_name_a_manifest_that_is_none_and_know_nothing_dropped_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(FakeRing(decision(1)), tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text("{")
    code, found, lines = command(capsys, "log", "stats", str(tmp_path))
    assert (code, found["decisions"], found["dropped"]) == (Exit.BAD_INPUT, {"Place PLACED": 1}, {})
    assert len(lines) == 1
    assert lines[0].startswith(f"placewise: {path}: no manifest of a log")
    path.unlink()
    assert command(capsys, "log", "stats", str(tmp_path))[::2] == (Exit.OK, [])


def as_of_schema_1(directory: Path) -> None:
    """Makes raw files as an earlier version wrote them: fewer columns, no mark."""
    new = ["job_outcomes", "job_planned", "job_nodes", "unit_jobs", "nodes", "placement", "receive_time"]
    for path in files(directory, "[do]*s/*/*.parquet"):
        table = pq.read_table(path)
        table = table.drop_columns([name for name in new if name in table.schema.names])
        pq.write_table(table.replace_schema_metadata({}), path)


async def test_files_of_schema_1_are_migrated_and_then_joined_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 9, epochs_done=2.0))
    await run(ring, tmp_path)
    wanted, raw = job_rows(tmp_path), rows(tmp_path, "decisions")
    as_of_schema_1(tmp_path)
    report = await run(ring, tmp_path)
    assert [line.partition(": ")[2] for line in report.problems] == [
        "of schema 1: run `placewise log migrate` on its folder"
    ] * 2
    code, found, _ = command(capsys, "log", "migrate", str(tmp_path))
    assert (code, found["migrated"]) == (Exit.OK, {"decisions": 1, "outcomes": 1, "files": 2})
    assert (await run(ring, tmp_path)).problems == []
    assert (job_rows(tmp_path), rows(tmp_path, "decisions")) == (wanted, raw)
    assert command(capsys, "log", "migrate", str(tmp_path))[1]["migrated"] == {}


async def test_a_column_that_came_later_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 9))
    await run(ring, tmp_path)
    wanted = [rows(tmp_path, table) for table in ("decisions", "outcomes")]
    for table, column in (("decisions", "first_refusal"), ("outcomes", "neighbours")):
        (path,) = files(tmp_path, f"{table}/*/*.parquet")
        whole = pq.read_table(path, partitioning=None)
        pq.write_table(whole.drop_columns([column]), path)
    code, _, lines = command(capsys, "log", "stats", str(tmp_path))
    assert (code, len(lines)) == (Exit.BAD_INPUT, 1)
    assert "run `placewise log migrate`" in lines[0]
    assert command(capsys, "log", "migrate", str(tmp_path))[1]["migrated"]["files"] == 2
    assert [rows(tmp_path, table) for table in ("decisions", "outcomes")] == wanted
    assert command(capsys, "log", "stats", str(tmp_path))[0] == Exit.OK


async def test_a_migration_keeps_entries_that_it_cannot_read_and_leaves_foreign_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(FakeRing(decision(1), decision(2)), tmp_path)
    as_of_schema_1(tmp_path)
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    table = pq.read_table(path)
    records = [b"from elsewhere", table["record"][1].as_py()]
    pq.write_table(table.set_column(table.schema.get_field_index("record"), "record", pa.array(records)), path)
    foreign = path.with_name("foreign.parquet")
    pq.write_table(pa.table({"x": [1]}), foreign)
    before = foreign.read_bytes()
    code, found, lines = command(capsys, "log", "migrate", str(tmp_path))
    assert (code, found["migrated"]) == (Exit.BAD_INPUT, {"decisions": 1, "unreadable": 1, "files": 1})
    assert lines == [f"placewise: {foreign}: a Parquet file, but no table of a decision log: move it elsewhere"]
    assert foreign.read_bytes() == before
    assert [row["record"] for row in rows(tmp_path, "unreadable")] == [b"from elsewhere"]


def test_a_second_export_to_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "placewise_service.commands.remote.log.opened_store", lambda: nullcontext(FakeRing(decision(1)))
    )
    with Dataset(tmp_path).locked():
        code, _, lines = command(capsys, "log", "export", str(tmp_path))
    assert (code, lines) == (
        Exit.REFUSED,
        [f"placewise: another export is writing to {tmp_path}: wait until it ends"],
    )
    code, found, _ = command(capsys, "log", "export", str(tmp_path))
    assert (code, found["written"]["decisions"]) == (Exit.OK, 1)


def test_a_migration_beside_an_export_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Dataset(tmp_path).locked():
        code, _, lines = command(capsys, "log", "migrate", str(tmp_path))
    assert code == Exit.REFUSED
    assert lines[-1].endswith("wait until it ends")
