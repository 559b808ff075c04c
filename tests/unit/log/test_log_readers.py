"""Readers of an exported log, each with each malformed file: one line that names it, exit code 6, no other error."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.cluster import make_job
from tests.fakes.declog import files
from tests.fakes.engine import ask_place, logged, place, running_engine

from placewise_log.reading import ExportedLog
from placewise_log.store import LogError, LogStore
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_service.declog.export import export
from placewise_training.log.index import LogIndex
from placewise_training.log.places import Places

Damage = Callable[[Path], Path]


async def exported(into: Path) -> Path:
    async with running_engine(nodes=2, alternatives_share=1.0) as engine:
        for name in ("a", "b"):
            await ask_place(engine, place(make_job(name)))
            await logged(engine)
        await engine._view_log.write()
        await export(engine._parts.store, into, batch=1)
    return into


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(exported(tmp_path_factory.mktemp("exported") / "log"))


@pytest.fixture
def log(whole: Path, tmp_path: Path) -> Path:
    """A log of its own, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "log"))


def truncated(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-100])
    return path


def not_parquet(path: Path) -> Path:
    path.write_text("id,cluster\n")
    return path


def foreign(path: Path) -> Path:
    """Beside the log's own files, of which the readers look at the first."""
    pq.write_table(pa.table({"x": [1]}), path.with_name("z-foreign.parquet"))
    return path.with_name("z-foreign.parquet")


def copied(path: Path) -> Path:
    return Path(shutil.copy(path, path.with_name(f"z-{path.name}")))


@pytest.mark.parametrize("damage", [truncated, not_parquet, foreign, copied])
@pytest.mark.parametrize(
    ("command", "table"),
    [
        (("evaluate", "--policy", "random"), "decisions"),
        (("evaluate", "--policy", "random"), "joined"),
        (("drift",), "decisions"),
        (("drift",), "joined"),
        (("bundle", "compare", "a", "b"), "decisions"),
        (("bundle", "compare", "a", "b"), "joined"),
    ],
)
async def test_a_command_that_judges_stops_at_the_file(
    log: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], table: str, damage: Damage
) -> None:
    bad = damage(files(log, f"{table}/*/*.parquet")[0])
    capsys.readouterr()
    assert invoke([*command, "--log", str(log)]) == Exit.BAD_INPUT
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("placewise: ")]
    assert line.startswith(f"placewise: {bad}: ")


@pytest.mark.parametrize("damage", [truncated, not_parquet, foreign, copied])
@pytest.mark.parametrize("table", ["decisions", "joined", "runs"])
def test_what_trainers_read_stops_at_the_file(log: Path, table: str, damage: Damage) -> None:
    bad, store = damage(files(log, f"{table}/*/*.parquet")[0]), LogStore(log)
    with pytest.raises(LogError) as found, LogIndex(store) as index:
        list(Places(store, index))
    assert str(found.value).startswith(f"{bad}: ")
    assert (found.value.exit_code, "\n" in str(found.value)) == (Exit.BAD_INPUT, False)


def read_all(log: Path) -> None:
    opened = ExportedLog(log)
    for record in opened.records():
        opened.view_at(record)


@pytest.mark.parametrize("damage", [truncated, not_parquet, foreign, copied])
@pytest.mark.parametrize("table", ["decisions", "views"])
def test_the_log_by_itself_names_the_file(log: Path, table: str, damage: Damage) -> None:
    bad = damage(files(log, f"{table}/*/*.parquet")[0])
    with pytest.raises(LogError) as found:
        read_all(log)
    assert str(found.value).startswith(f"{bad}: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("table", ["decisions", "views"])
def test_the_log_by_itself_names_the_file_of_an_entry_that_is_none(log: Path, table: str) -> None:
    bad = files(log, f"{table}/*/*.parquet")[0]
    rows = pq.read_table(bad, partitioning=None)
    record = rows.schema.get_field_index("record")
    pq.write_table(rows.set_column(record, "record", pa.array([b"torn"] * len(rows))), bad)
    with pytest.raises(LogError, match="export the log again") as found:
        read_all(log)
    assert str(found.value).startswith(f"{bad}: ")


def test_the_log_is_read_from_a_store_of_fsspec(log: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for path in files(log, "*/*/*.parquet"):
        store.pipe(f"/kept/{path.relative_to(log).as_posix()}", path.read_bytes())
    by_id = {record.decision_id: record for record in ExportedLog(log).records()}
    opened = ExportedLog("memory://kept")
    assert {record.decision_id for record in opened.records()} == by_id.keys()
    for name in by_id:
        assert opened.view_at(name).digest() == by_id[name].reads[0].digest
