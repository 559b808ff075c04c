"""Files and reports that are malformed: one line names each, the rest goes on, nothing is lost."""

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.declog import DAY_S, NOON_S, FakeRing, decision, decision_id, files, job_rows, outcome, run, task_on

from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.decision import DecisionMeta, PlaceDecision
from placewise_log.record import CanarySeen, DecisionRecord, Draw, JobArm, OutcomeRecord
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def not_parquet(path: Path) -> None:
    path.write_text("id,cluster\n")


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"id": ["x"], "x": [1]}), path)


def without_id(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


def of_schema_1(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["job_outcomes"]).replace_schema_metadata({}), path)


def of_another_type(path: Path) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index("job_ids")
    pq.write_table(table.set_column(at, "job_ids", pa.nulls(len(table), pa.int64())), path)


@pytest.mark.parametrize(
    ("damage", "printed"),
    [
        (truncated, "not a whole Parquet file"),
        (not_parquet, "not a whole Parquet file"),
        (foreign, "no table of a decision log"),
        (without_id, "no table of a decision log"),
        (of_schema_1, "of schema 1: run `placewise log migrate`"),
        (of_another_type, "column job_ids is not of type"),
    ],
)
async def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_joined(
    tmp_path: Path, damage: Callable[[Path], None], printed: str
) -> None:
    ring = FakeRing(decision(1), decision(2))
    await run(ring, tmp_path, batch=1)
    bad, good = sorted((tmp_path / "decisions").glob("*/*.parquet"))
    (kept,) = pq.read_table(good)["id"].to_pylist()
    damage(bad)
    before = bad.read_bytes()
    ring.add(decision(3))
    report = await run(ring, tmp_path)
    (line,) = report.problems
    assert line.startswith(f"{bad}: ")
    assert printed in line
    assert "\n" not in line
    assert {row["decision_id"] for row in job_rows(tmp_path)} == {kept, decision_id(3)}
    assert bad.read_bytes() == before


def of_other_columns(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


@pytest.mark.parametrize("table", ["runs", "progress", "joined"])
@pytest.mark.parametrize("damage", [truncated, not_parquet, of_other_columns])
async def test_a_damaged_table_of_a_settled_day_is_made_again(
    tmp_path: Path, damage: Callable[[Path], None], table: str
) -> None:
    ring = FakeRing(*lived(1))
    ring.now_s = NOON_S + DAY_S
    await run(ring, tmp_path)
    (path,) = (tmp_path / table).glob("*/*.parquet")
    before = pq.read_table(path)
    damage(path)
    ring.add(*lived(2, NOON_S + DAY_S))
    ring.now_s = NOON_S + 2 * DAY_S
    report = await run(ring, tmp_path)
    assert list(report.problems) == []
    assert pq.read_table(path).equals(before)
    assert len({row["decision_id"] for row in job_rows(tmp_path)}) == 2


async def test_rows_of_a_table_of_runs_that_are_damaged_are_named(tmp_path: Path) -> None:
    ring = FakeRing(*lived(1))
    ring.now_s = NOON_S + DAY_S
    await run(ring, tmp_path)
    (path,) = (tmp_path / "runs").glob("*/*.parquet")
    path.write_bytes(path.read_bytes()[:4] + bytes(60) + path.read_bytes()[64:])
    ring.add(*lived(2, NOON_S + DAY_S))
    ring.now_s = NOON_S + 2 * DAY_S
    report = await run(ring, tmp_path)
    (line,) = report.problems
    assert line.startswith(f"{path}: damaged: ")
    assert line.endswith("remove it, and the next export makes it again")
    assert len({row["decision_id"] for row in job_rows(tmp_path)}) == 2
    path.unlink()
    assert list((await run(ring, tmp_path)).problems) == []


async def test_a_copy_of_a_table_of_runs_counts_no_neighbour_twice(tmp_path: Path) -> None:
    ring = FakeRing(*lived(1), *lived(2))
    ring.now_s = NOON_S + DAY_S
    await run(ring, tmp_path)
    rewards = [row["placed_reward_5min"] for row in job_rows(tmp_path)]
    assert None not in rewards
    (path,) = (tmp_path / "runs").glob("*/*.parquet")
    shutil.copy(path, path.with_name("z-runs.parquet"))
    (tmp_path / "joined" / path.parent.name / "joined.parquet").unlink()
    await run(ring, tmp_path)
    assert [row["placed_reward_5min"] for row in job_rows(tmp_path)] == rewards


def lived(n: int, decided_s: float = NOON_S) -> tuple[DecisionRecord | OutcomeRecord, ...]:
    """A job from its decision to its end, on node n0."""
    decided = decision(n, time_s=decided_s)
    job = replace(decided.jobs[0], total_epochs=10.0)
    return (
        replace(decided, jobs=(job,)),
        outcome(n, JobEventKind.STARTED, decided_s, decided_s=decided_s, placement=(task_on("n0", n),)),
        outcome(n, JobEventKind.FINISHED, decided_s + 600, decided_s=decided_s, epochs_done=10.0),
    )


async def test_reports_of_progress_without_time_and_epochs_are_two(tmp_path: Path) -> None:
    first = outcome(1, JobEventKind.PROGRESS, NOON_S + 10, speed=1.0)
    second = outcome(1, JobEventKind.PROGRESS, NOON_S + 20, speed=3.0)
    timeless = [replace(each, event=replace(each.event, event_time_s=0.0)) for each in (first, second, first)]
    await run(FakeRing(decision(1), *timeless), tmp_path)
    table = pq.read_table(next((tmp_path / "progress").glob("*/*.parquet")))
    assert sorted(table["speed_epochs_per_s"].to_pylist()) == [1.0, 3.0]


def bytes_within_changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = bytes(len(data) // 3 - 4)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "printed"),
    [
        (truncated, "not a whole Parquet file"),
        (not_parquet, "not a whole Parquet file"),
        (foreign, "no table of a decision log"),
        (bytes_within_changed, "damaged: "),
    ],
)
async def test_a_file_of_outcomes_that_cannot_be_read_is_named_and_the_rest_is_joined(
    tmp_path: Path, damage: Callable[[Path], None], printed: str
) -> None:
    ends = [outcome(n, JobEventKind.FINISHED, NOON_S + 9) for n in (1, 2)]
    await run(FakeRing(decision(1), decision(2)), tmp_path)
    await run(FakeRing(*ends), tmp_path, batch=1)
    bad, good = files(tmp_path, "outcomes/*/*.parquet")
    (kept,) = pq.read_table(good, partitioning=None)["decision_id"].to_pylist()
    damage(bad)
    before = bad.read_bytes()
    report = await run(FakeRing(decision(3)), tmp_path)
    (line,) = report.problems
    assert line.startswith(f"{bad}: ")
    assert printed in line
    assert "\n" not in line
    statuses = {row["decision_id"]: row["status"] for row in job_rows(tmp_path)}
    assert statuses == {decision_id(n): "OPEN" for n in (1, 2, 3)} | {kept: "OBSERVED"}
    assert bad.read_bytes() == before


def drawn(n: int, propensity: float) -> DecisionRecord:
    made = decision(n)
    assert made.place is not None
    (decided,) = made.place.decisions
    answer = PlaceDecision((replace(decided, propensity=propensity),), DecisionMeta(decision_id(n), "tetris"))
    return replace(made, place=answer)


def on_trial(n: int, mixed: float | None) -> DecisionRecord:
    """A decision of a canary."""
    return replace(decision(n), canary=CanarySeen("next", "d1", "5a17", 0.3, arms=(JobArm(f"j{n}", "canary", mixed),)))


def by_policy(n: int, own: float) -> DecisionRecord:
    """A decision with this π(a)."""
    return replace(decision(n), draws=(Draw(f"j{n}", own),))


@pytest.mark.parametrize("propensity", [0.0, -0.1, 1.5, float("nan")])
async def test_a_propensity_that_is_none_is_null_and_named(tmp_path: Path, propensity: float) -> None:
    report = await run(FakeRing(drawn(1, propensity), drawn(2, 0.5), drawn(3, 1.0)), tmp_path)
    (line,) = report.problems
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    assert line == f"{path}: 1 propensities outside (0, 1], null in joined (first: decision {decision_id(1)})"
    assert [row["propensity"] for row in job_rows(tmp_path)] == [None, 0.5, 1.0]


@pytest.mark.parametrize("mixed", [0.0, -0.1, 1.5, float("nan")])
async def test_a_mixed_propensity_that_is_none_is_null_and_named(tmp_path: Path, mixed: float) -> None:
    report = await run(FakeRing(*(on_trial(n, each) for n, each in enumerate((mixed, 0.5, None), 1))), tmp_path)
    (line,) = report.problems
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    printed = "1 mixed propensities outside (0, 1], null in joined"
    assert line == f"{path}: {printed} (first: decision {decision_id(1)})"
    assert [row["mixed_propensity"] for row in job_rows(tmp_path)] == [None, 0.5, None]


@pytest.mark.parametrize("own", [-0.1, 1.5, float("nan")])
async def test_a_probability_of_the_policy_in_force_that_is_none_is_null_and_named(tmp_path: Path, own: float) -> None:
    report = await run(FakeRing(*(by_policy(n, each) for n, each in enumerate((own, 0.0, 1.0), 1))), tmp_path)
    (line,) = report.problems
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    assert line == f"{path}: 1 own propensities outside [0, 1], null in joined (first: decision {decision_id(1)})"
    assert [row["own_propensity"] for row in job_rows(tmp_path)] == [None, 0.0, 1.0]


async def test_a_file_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    entries = [decision(1), outcome(1, JobEventKind.PROGRESS, NOON_S + 5, speed=1.0)]
    await run(FakeRing(*entries), tmp_path)
    for path in files(tmp_path, "[do]*s/*/*.parquet"):
        path.with_name(f"copy-of-{path.name}").write_bytes(path.read_bytes())
    report = await run(FakeRing(), tmp_path)
    assert (report.joined["REPEATED"], report.joined["OPEN"]) == (2, 1)
    assert len(job_rows(tmp_path)) == 1
    printed = "rows that the log has already, counted once (first: job j1)"
    later = [files(tmp_path, f"{table}/*/*.parquet")[-1] for table in ("decisions", "outcomes")]
    assert report.notes == [f"{path}: 1 {printed}" for path in reversed(later)]
    assert report.problems == []


@pytest.mark.parametrize(
    ("start_s", "end_s", "printed"),
    [(-60.0, 5.0, "reported from before their decision"), (10.0, 5.0, "ended before they started")],
)
async def test_clocks_that_disagree_are_named(tmp_path: Path, start_s: float, end_s: float, printed: str) -> None:
    ring = FakeRing(
        decision(1),
        outcome(1, JobEventKind.STARTED, NOON_S + start_s),
        outcome(1, JobEventKind.FINISHED, NOON_S + end_s),
    )
    report = await run(ring, tmp_path)
    (line,) = report.notes
    (path,) = files(tmp_path, "outcomes/*/*.parquet")
    assert line.startswith(f"{path}: 1 jobs {printed}: the clocks disagree (first: job j1)")
    assert report.problems == []


@pytest.mark.parametrize(
    ("ends_s", "status", "end_s"),
    [
        ((-60.0,), "OPEN", None),  # of an earlier run of the job, or by a clock that is a minute behind
        ((-60.0, 20.0), "OBSERVED", 20.0),
        ((20.0, -60.0), "OBSERVED", 20.0),
        ((-0.5,), "OBSERVED", 0.0),  # by a host that tells whole seconds: no label is from before the decision
    ],
)
async def test_an_end_from_before_the_decision_is_no_end_of_it(
    tmp_path: Path, ends_s: Sequence[float], status: str, end_s: float | None
) -> None:
    ends = [outcome(1, JobEventKind.FINISHED, NOON_S + each_s) for each_s in ends_s]
    report = await run(FakeRing(decision(1), *ends), tmp_path)
    (row,) = job_rows(tmp_path)
    assert (row["status"], row["end_time_s"]) == (status, None if end_s is None else NOON_S + end_s)
    assert bool(report.notes) == (-60.0 in ends_s)


async def test_outcomes_of_unknown_decisions_are_named(tmp_path: Path) -> None:
    report = await run(FakeRing(decision(1), outcome(5, JobEventKind.FINISHED, NOON_S + 1)), tmp_path)
    (path,) = files(tmp_path, "outcomes/*/*.parquet")
    printed = "1 outcomes of unknown decisions, joined with nothing"
    assert report.notes == [f"{path}: {printed} (first: decision {decision_id(5)})"]


Exported = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Exported:
    """`placewise log export` from a ring: its exit code and its lines on standard error."""

    def export(ring: FakeRing) -> tuple[int, list[str]]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[FakeRing]:
            yield ring

        monkeypatch.setattr("placewise_service.commands.remote.log.opened_store", opened)
        code = invoke(["log", "export", str(tmp_path)])
        return code, [line for line in capsys.readouterr().err.splitlines() if line.startswith("placewise: ")]

    return export


def test_the_export_ends_with_code_6_after_a_file_that_it_cannot_read(exported: Exported, tmp_path: Path) -> None:
    ring = FakeRing(decision(1))
    assert exported(ring) == (Exit.OK, [])
    (bad,) = files(tmp_path, "decisions/*/*.parquet")
    truncated(bad)
    ring.add(decision(2))
    code, (line,) = exported(ring)
    assert code == Exit.BAD_INPUT
    assert line.startswith(f"placewise: {bad}: not a whole Parquet file")
    assert {row["decision_id"] for row in job_rows(tmp_path)} == {decision_id(2)}


def test_each_export_names_a_file_that_it_cannot_read_until_it_is_gone(exported: Exported, tmp_path: Path) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 9))
    ring.now_s = NOON_S + 7200  # no row is open, so the day is not joined again
    assert exported(ring) == (Exit.OK, [])
    ring.add(decision(2), outcome(2, JobEventKind.FINISHED, NOON_S + 9))
    assert exported(ring) == (Exit.OK, [])
    bad, _ = files(tmp_path, "decisions/*/*.parquet")
    truncated(bad)
    first, second, third = [exported(ring) for _ in range(3)]
    assert first[0] == Exit.BAD_INPUT
    assert [line for line in first[1] if f"{bad}: not a whole Parquet file" in line]
    assert [code for code, _ in (second, third)] == [Exit.BAD_INPUT] * 2
    assert second == third
    assert set(second[1]) <= set(first[1])  # which also has what the join says of reports, once
    bad.unlink()
    assert exported(ring)[0] == Exit.OK


def test_a_file_that_was_mended_is_joined_again_though_its_size_is_the_same(exported: Exported, tmp_path: Path) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 9))
    ring.now_s = NOON_S + 7200
    assert exported(ring) == (Exit.OK, [])
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    whole = path.read_bytes()
    ring.add(decision(2), outcome(2, JobEventKind.FINISHED, NOON_S + 9))
    bytes_within_changed(path)
    assert exported(ring)[0] == Exit.BAD_INPUT
    path.write_bytes(whole)
    assert exported(ring)[0] == Exit.OK
    assert {row["decision_id"] for row in job_rows(tmp_path)} == {decision_id(1), decision_id(2)}


@pytest.mark.parametrize("name", ["positions.json", "manifest.json"])
def test_a_malformed_file_of_the_export_itself_is_named_and_written_again(
    exported: Exported, tmp_path: Path, name: str
) -> None:
    ring = FakeRing(decision(1), outcome(1, JobEventKind.FINISHED, NOON_S + 9))
    assert exported(ring) == (Exit.OK, [])
    (tmp_path / name).write_text((tmp_path / name).read_text()[:-5])
    code, (line,) = exported(ring)
    assert code == Exit.BAD_INPUT
    assert line.startswith(f"placewise: {tmp_path / name}: ")
    assert len(job_rows(tmp_path)) == 1
    assert exported(ring) == (Exit.OK, [])


def test_a_propensity_that_is_none_ends_the_export_with_code_6(exported: Exported) -> None:
    code, (line,) = exported(FakeRing(drawn(1, 0.0)))
    assert code == Exit.BAD_INPUT
    assert "propensities outside (0, 1]" in line


def test_repeats_clocks_and_unknown_decisions_are_named_with_code_0(exported: Exported, tmp_path: Path) -> None:
    assert exported(FakeRing(decision(1))) == (Exit.OK, [])
    (path,) = files(tmp_path, "decisions/*/*.parquet")
    path.with_name(f"copy-of-{path.name}").write_bytes(path.read_bytes())
    late = outcome(1, JobEventKind.STARTED, NOON_S - 60)
    code, lines = exported(FakeRing(late, outcome(5, JobEventKind.FINISHED, NOON_S + 1)))
    assert code == Exit.OK
    printed = "\n".join(lines)
    for words in ("counted once", "the clocks disagree", "outcomes of unknown decisions"):
        assert words in printed
    assert len(lines) == 3
