"""A log that the exporter of an earlier commit wrote (schema_1/README.md): migrated whole, or refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.declog import FakeRing, files, job_rows, rows, run

from placewise_log.reading import ExportedLog
from placewise_log.store import LogError, LogStore
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_training.log.index import LogIndex
from placewise_training.log.inputs import asked_jobs

AS_WRITTEN = Path(__file__).parent / "schema_1"
END_S = 1_796_051_229.5  # the log's last report was a moment before
DECIDED = {  # job, or the divisible task: decision
    "as-planned": "01a22cfe-d5e2-7a3f-b50b-8e85fe9075bc",
    "elsewhere": "01a22cfe-d5e4-79f1-b131-a3a68407c5d7",
    "forgotten": "01a22cfe-d5e5-755f-8491-dfbddf816cab",
    "as-planned, asked again": "01a22cfe-d5e6-7520-a927-3ea68941f492",
    "gang-a and too-large": "01a22cfe-daca-78f0-b45f-679749464884",
    "queued": "01a22cfe-dacd-7867-b8e3-39a0fe7acfbf",
    "t": "01a22cfe-dacf-7805-a199-0f3872d79ec6",
    "x0": "01a22cfe-dad1-73d1-8d18-068370e9bffa",
    "x1": "01a22cfe-dad4-7bf5-971f-4fd7a99f8295",
    "x2": "01a22cfe-dad6-7ae2-99c7-a2bfaaf043ac",
}
RENAMED = {"predicted_speed": "predicted_speed_samples_per_s"}
REFUSED = "of schema 1: run `placewise log migrate` on its folder, then `placewise log export`"
ANEW = {"mean_speed"}  # in its place `joined` has a speed that is weighted by time, of another name


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A copy, to be migrated."""
    return Path(shutil.copytree(AS_WRITTEN, tmp_path / "log"))


async def joined(log: Path) -> None:
    """The next export, which finds nothing new in the store."""
    ring = FakeRing()
    ring.now_s = END_S
    report = await run(ring, log)
    assert (report.problems, report.notes) == ([], [])


def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], list[str]]:
    """Exit code, JSON answer, and lines on standard error."""
    capsys.readouterr()
    code = invoke([*args, "--json"])
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("placewise: ")]
    return code, json.loads(captured.out) if captured.out else {}, lines


async def test_each_row_is_joined_as_the_earlier_version_joined_it(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {(row["decision_id"], row["job_id"]): row for row in job_rows(log)}
    records = {table: [row["record"] for row in rows(log, table)] for table in ("decisions", "outcomes")}
    code, found, lines = command(capsys, "log", "migrate", str(log))
    assert (code, found["migrated"], lines) == (Exit.OK, {"decisions": 10, "outcomes": 7, "files": 6}, [])
    assert {table: [row["record"] for row in rows(log, table)] for table in records} == records
    await joined(log)
    after = {(row["decision_id"], row["job_id"]): row for row in job_rows(log)}
    assert after.keys() - before.keys() == {(DECIDED["queued"], "queued")}  # admissions had no rows
    for key, old in before.items():
        kept = {RENAMED.get(name, name): value for name, value in old.items() if name not in ANEW}
        new = {name: after[key][name] for name in kept}
        assert known(new, is_time=False) == known(kept, is_time=False), key
        assert known(new, is_time=True) == pytest.approx(known(kept, is_time=True), abs=1e-6), key


def known(row: dict[str, Any], *, is_time: bool) -> dict[str, Any]:
    """The row without what is unknown: null today, and empty or 0 in schema 1. Times, or all the rest."""
    return {name: value for name, value in row.items() if value and name.endswith("_time_s") == is_time}


async def test_outcomes_are_those_that_the_host_reported(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "log", "migrate", str(log))
    await joined(log)
    columns = ("job_id", "status", "end", "planned", "actual", "epochs_done", "propensity")
    found = {row["decision_id"]: tuple(row[name] for name in columns) for row in job_rows(log) if is_single(row)}
    assert found == {
        DECIDED[name]: row
        for name, row in {
            "as-planned": ("as-planned", "OBSERVED", "FINISHED", ["n0/0"], [], 2.0, 1.0),
            "elsewhere": ("elsewhere", "OBSERVED", "FAILED", ["n0/1"], ["n1"], None, 1.0),
            "forgotten": ("forgotten", "OPEN", "", ["n0/2"], [], None, 1.0),
            "as-planned, asked again": ("as-planned", "NOT_HELD", "", ["n0/0"], [], None, 1.0),
            "queued": ("queued", "NOT_HELD", "", None, [], None, 1.0),
            "t": ("t", "OBSERVED", "SHARE_FINISHED", ["n0/gpu3"], [], None, 1.0),
            "x0": ("x0", "OBSERVED", "FINISHED", ["n0/0", "n1/0"], [], 3.0, 0.25),
            "x1": ("x1", "OPEN", "", ["n0/1", "n0/2"], [], None, 0.75),
            "x2": ("x2", "OPEN", "", ["n1/1", "n1/2"], [], None, 0.75),
        }.items()
    }
    two = {row["job_id"]: row["outcome"] for row in job_rows(log) if not is_single(row)}
    assert two == {"gang-a": "PLACED", "too-large": "NO_FIT"}
    (share,) = job_rows(log, job_id="t")
    assert (share["unit"], share["predicted_s"], share["actual_s"]) == ("n0/gpu3", 0.95, 12.0)
    (moved,) = job_rows(log, is_overridden=True)
    assert moved["job_id"] == "elsewhere"


def is_single(row: dict[str, object]) -> bool:
    """Whether its decision was about one job."""
    return row["decision_id"] != DECIDED["gang-a and too-large"]


async def test_readers_find_every_decision_once(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "log", "migrate", str(log))
    await joined(log)
    opened = ExportedLog(log)
    assert sorted(record.decision_id for record in opened.records()) == sorted(DECIDED.values())
    assert opened.record(DECIDED["x0"]).meta.propensity == 0.25
    assert len(list(asked_jobs(log))) == 9
    with LogIndex(LogStore(log)):
        pass
    code, found, _ = command(capsys, "log", "stats", str(log))
    assert (code, found["decisions"]) == (
        Exit.OK,
        {"Place PLACED": 7, "Place MIXED": 1, "AdmitOrWait WAIT": 1, "Partition PLACED": 1},
    )
    assert found["outcomes"] == {"STARTED": 2, "PROGRESS": 1, "FINISHED": 2, "FAILED": 1, "SHARE_FINISHED": 1}
    assert (found["unreadable"], found["orphans"], found["repeated"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "args", [("evaluate", "--policy", "random"), ("drift",), ("bundle", "compare", "a", "b")], ids=lambda args: args[0]
)
def test_a_command_that_judges_refuses_the_files_by_name(
    log: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    code, _, lines = command(capsys, *args, "--log", str(log))
    first = files(log, "decisions/*/*.parquet")[0]
    assert (code, lines) == (Exit.BAD_INPUT, [f"placewise: {first}: {REFUSED}"])


def test_readers_refuse_the_files_by_name(log: Path) -> None:
    first = files(log, "decisions/*/*.parquet")[0]
    opened = ExportedLog(log)
    for read in (lambda: list(opened.records()), lambda: opened.record(DECIDED["t"]), lambda: list(asked_jobs(log))):
        with pytest.raises(LogError) as found:
            read()
        assert str(found.value) == f"{first}: {REFUSED}"
    with pytest.raises(LogError) as found:
        list(LogStore(log).batches("outcomes", ("kind", "record")))
    assert str(found.value) == f"{files(log, 'outcomes/*/*.parquet')[0]}: {REFUSED}"


async def test_the_export_and_the_numbers_name_each_file_and_end_with_code_6(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {str(path) for path in files(log, "[do]*s/*/*.parquet")}
    assert {line.partition(": ")[0] for line in (await run(FakeRing(), log)).problems} == bad
    code, found, lines = command(capsys, "log", "stats", str(log))
    assert code == Exit.BAD_INPUT
    named = {line.split(": ")[1] for line in lines}
    assert {str(path) for path in files(log, "decisions/*/*.parquet")} <= named
    assert found["decisions"] == {}
