"""A joined log of any length, and the memory that it takes to read the rows of the throughput trainer from it.

    python -m tests.fakes.logs.dataset_volume DIR --rows 2000000

As many jobs run at once in a short log as in a long one.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.fakes.declog import NOON_S, decision_id

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Architecture, Job, JobId, NodeId, Role
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, encode
from placewise_log.store import LogStore
from placewise_log.views import Snapshot, encode_snapshot
from placewise_service.declog.derived import JOINED_SCHEMA, RUNS_SCHEMA
from placewise_service.declog.tables import DECISIONS, SCHEMAS, VIEWS
from placewise_training.log.index import LogIndex
from placewise_training.log.throughput_rows import ThroughputRows
from placewise_training.sim.hardware import uniform_cluster

NODES, RUN_S, EPOCHS = 1000, 500.0, 10.0
FILE_ROWS = 50_000


def make(directory: Path, rows: int) -> None:
    """Writes `rows` jobs, one after the other on each of NODES nodes, twice as long apart as they run."""
    for start in range(0, rows, FILE_ROWS):
        numbers = range(start, min(rows, start + FILE_ROWS))
        for table, schema, made in (
            (DECISIONS, SCHEMAS[DECISIONS], _decisions(numbers)),
            ("runs", RUNS_SCHEMA, _runs(numbers)),
            ("joined", JOINED_SCHEMA, _joined(numbers)),
        ):
            path = directory / table / "date=2025-11-21" / f"{start:010d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(path, schema) as writer:
                writer.write_table(pa.Table.from_pylist(list(made), schema=schema))
    nodes = tuple(spec.node for spec in uniform_cluster(NODES, 1))
    shown = Snapshot.of("v", ClusterView(ClusterRecords("c", 0, "e", nodes=nodes)), NOON_S, ())
    row = {"cluster": "c", "kind": "snapshot", "name": "v", "first_version": 0, "last_version": 0}
    path = directory / VIEWS / "date=2025-11-21" / "views.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{**row, "record": encode_snapshot(shown)}], schema=SCHEMAS[VIEWS]), path)


def _time_s(n: int) -> float:
    return NOON_S + n * 2.0 * RUN_S / NODES


def _node(n: int) -> str:
    return f"node{n % NODES:04d}"


def _decisions(numbers: range) -> Iterator[dict[str, Any]]:
    for n in numbers:
        job = Job(
            JobId(f"j{n}"), "resnet50", Architecture.SINGLE, batch_size=32, dataset_size=1000, total_epochs=EPOCHS
        )
        task = Assignment("w0", Role.WORKER, NodeId(_node(n)), gpu_indices=(0,))
        answer = PlaceDecision(
            (JobDecision(job.id, Outcome.PLACED, (task,), reservation_id=f"r{n}"),),
            DecisionMeta(decision_id(n, _time_s(n)), "consolidate"),
        )
        record = DecisionRecord.of_place(PlaceCommand("c", (job,)), answer, time_s=_time_s(n), seed=n, latency_ms=1.0)
        yield {"id": record.decision_id, "rpc": "Place", "is_dry_run": False, "record": encode(record)}


def _runs(numbers: range) -> Iterator[dict[str, Any]]:
    for n in numbers:
        start_s = _time_s(n)
        yield {
            "decision_id": decision_id(n, start_s), "job_id": f"j{n}", "cluster": "c", "nodes": [_node(n)],
            "start_time_s": start_s, "end_time_s": start_s + RUN_S, "end": "FINISHED",
            "last_heard_time_s": start_s + RUN_S, "is_open": False, "total_epochs": EPOCHS,
            "times_s": [start_s, start_s + RUN_S], "epochs": [0.0, EPOCHS],
        }  # fmt: skip


def _joined(numbers: range) -> Iterator[dict[str, Any]]:
    for n in numbers:
        yield {
            "decision_id": decision_id(n, _time_s(n)), "job_id": f"j{n}", "unit": "", "status": "OBSERVED",
            "is_overridden": False, "actual": [f"{_node(n)}/0"],
        }  # fmt: skip


def read(directory: Path) -> dict[str, Any]:
    """Reads in a process of its own: rows, seconds, peak memory in MiB."""
    command = [sys.executable, "-m", "tests.fakes.logs.dataset_volume", str(directory), "--read"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _read(directory: Path) -> dict[str, Any]:
    start_s = time.perf_counter()
    store = LogStore(directory)
    with LogIndex(store) as index:
        rows = sum(1 for _ in ThroughputRows(store, index))
    # Not ru_maxrss, which a process inherits from the one that forked it.
    status = Path("/proc/self/status").read_text()
    peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return {"rows": rows, "peak_mib": round(peak_mib, 1), "seconds": round(time.perf_counter() - start_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--read", action="store_true", help="Read the tables of the directory.")
    options = parser.parse_args()
    if not options.read:
        make(options.directory, options.rows)
    print(json.dumps(_read(options.directory) if options.read else read(options.directory)))


if __name__ == "__main__":
    main()
