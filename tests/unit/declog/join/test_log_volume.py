"""The memory of a join does not grow with the log."""

import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes import log_volume

from placewise_service.declog.dataset import Dataset
from placewise_service.declog.derived import RUNS_SCHEMA
from placewise_service.declog.join.buckets import Buckets, by_job, count_for
from placewise_service.declog.join.log import LogJoin
from placewise_service.declog.problems import Problems

MOST_MIB = 1024


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
def test_200_000_decisions_are_joined_in_the_memory_of_100_000(tmp_path: Path) -> None:
    looks_mib: dict[int, list[float]] = {100_000: [], 200_000: []}
    for i in range(2):  # by turns: the peak of the same join differs from look to look
        for decisions, looks in looks_mib.items():
            directory = tmp_path / f"{decisions}-{i}"
            log_volume.make(directory, decisions)
            looks.append(peak_mib(directory, decisions))
    assert max(looks_mib[200_000]) <= MOST_MIB
    assert statistics.median(looks_mib[200_000]) <= 1.1 * statistics.median(looks_mib[100_000]), looks_mib


def peak_mib(directory: Path, decisions: int) -> float:
    joined = log_volume.join(directory)
    assert joined["counts"] == {"OBSERVED": decisions}
    return float(joined["peak_mib"])


def test_a_bucket_of_10_million_decisions_is_as_large_as_one_of_1_million() -> None:
    """With two outcomes each."""
    rows_of_1_million, rows_of_10_million = (rows / count_for(rows) for rows in (3_000_000, 30_000_000))
    assert rows_of_10_million <= rows_of_1_million


@pytest.mark.parametrize("count", [64, 65, 600, 768])
def test_each_row_comes_back_in_its_bucket_in_few_pieces(count: int, tmp_path: Path) -> None:
    """Many pieces cost memory: each has arrays of its own for every column."""
    rows = 200_000
    schema = pa.schema({"job_id": pa.string(), "n": pa.int64()})
    numbers = np.arange(rows)
    table = pa.Table.from_arrays([pa.array([f"job-{n % 5000}" for n in numbers]), pa.array(numbers)], schema=schema)
    buckets = Buckets(tmp_path, "rows", schema, count)
    buckets.fill(table.slice(first, 5000) for first in range(0, rows, 5000))
    found = []
    for i in range(count):
        bucket = buckets.take(i)
        assert set(by_job(bucket, count)) <= {i}
        assert bucket.column("n").num_chunks <= (4 if count <= 64 else 2)
        found.append(bucket.column("n").to_numpy())
        assert (np.diff(found[-1]) > 0).all()
    assert np.array_equal(np.sort(np.concatenate(found)), numbers)
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_few_row_groups_however_many_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer keeps nearly a kilobyte for each column of each group: 54 MiB with a group for each of 600 buckets."""
    monkeypatch.setattr("placewise_service.declog.join.day.count_for", lambda _: 20)
    log_volume.make(tmp_path, 400)
    Dataset(tmp_path).join_all(now_s=log_volume.DAY_S + 30 * 86_400.0, dangling_after_s=86_400.0)
    for table in ("joined", "runs"):
        (path,) = (tmp_path / table).glob("date=*/*.parquet")
        metadata = pq.read_metadata(path)
        assert (metadata.num_rows, metadata.num_row_groups) == (400, 1)


def test_the_runs_of_a_day_are_read_a_part_at_a_time(tmp_path: Path) -> None:
    """A day of 10 million decisions has 500 MB of runs."""
    parts, rows = 40, 2000
    path = tmp_path / "runs" / "date=2025-11-21" / "runs.parquet"
    path.parent.mkdir(parents=True)
    rng = np.random.default_rng(1)
    with pq.ParquetWriter(path, RUNS_SCHEMA, compression="none") as writer:
        for _ in range(parts):
            known = {
                "job_id": pa.array([rng.bytes(100).hex() for _ in range(rows)]),
                "start_time_s": pa.array(rng.uniform(0.0, 100.0, rows)),
                "last_heard_time_s": pa.repeat(50.0, rows),
                "is_open": pa.repeat(True, rows),
            }
            arrays = [known.get(field.name, pa.nulls(rows, field.type)) for field in RUNS_SCHEMA]
            writer.write_table(pa.Table.from_arrays(arrays, schema=RUNS_SCHEMA))
    before = pa.total_allocated_bytes()
    tables = LogJoin(tmp_path, Problems())._near(path, 0.0, 100.0)
    assert len(next(tables))
    held = pa.total_allocated_bytes() - before
    assert held < path.stat().st_size / 2
    tables.close()  # type: ignore[attr-defined]
