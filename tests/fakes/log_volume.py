"""A log of any length, made as a stream, and the memory that its join takes.

    python -m tests.fakes.log_volume DIR --decisions 10000000

Two outcomes for each decision. 1 % of the decisions hold an observation and alternatives, and their jobs report
progress twice. Decisions come at the rate of 10 million a day in any number, so that as many jobs run at once in a
short log as in a long one.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from placewise_service.declog.dataset import Dataset
from placewise_service.declog.files import durable_writer
from placewise_service.declog.tables import DECISIONS, OUTCOMES, SCHEMAS

DAY_S = 1_763_683_200  # 2025-11-21
RATE = 115.0  # decisions a second
NODES, GPUS = 4000, 2
FILE_ROWS = 50_000
_OBSERVED = 100  # one decision in so many
_OBSERVATION_BYTES = 18_000
_ALTERNATIVES = 3
_ALTERNATIVES_TYPE = SCHEMAS[DECISIONS].field("alternatives").type
_RUN_S = 60.0  # 7,000 jobs at once on 8,000 GPUs


def make(directory: Path, decisions: int, seed: int = 1) -> None:
    """Writes the raw tables of so many decisions and twice as many outcomes."""
    day = datetime.datetime.fromtimestamp(DAY_S, datetime.UTC).date().isoformat()
    rng = np.random.default_rng(seed)
    for start in range(0, decisions, FILE_ROWS):
        jobs = _jobs(np.arange(start, min(decisions, start + FILE_ROWS)), rng)
        _write(directory, day, DECISIONS, start, len(jobs["n"]), _decisions(jobs, rng))
        observed = _observed(jobs)
        parts = [_outcomes(jobs, "STARTED"), _outcomes(jobs, "FINISHED")]
        parts += [_progress(observed, share) for share in (0.3, 0.6)]
        outcomes = {
            name: pa.concat_arrays([part[name].cast(parts[0][name].type) for part in parts]) for name in parts[0]
        }
        _write(directory, day, OUTCOMES, start, len(outcomes["id"]), outcomes)


def _write(directory: Path, day: str, table: str, start: int, rows: int, columns: dict[str, pa.Array]) -> None:
    schema = SCHEMAS[table]
    arrays = [columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in schema]
    with durable_writer(directory / table / f"date={day}" / f"c-{start:010d}.parquet", schema) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _text(*parts: str | pa.Array) -> pa.Array:
    """Strings joined row by row."""
    return pc.binary_join_element_wise(*(p if isinstance(p, str) else p.cast(pa.string()) for p in parts), "")


def _jobs(n: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Any]:
    """Ids, places and times (µs since 1970) of jobs by their numbers."""
    times_us = (1e6 * (DAY_S + n / RATE)).astype(np.int64)
    heads = [f"{ms >> 16:08x}-{ms & 0xFFFF:04x}" for ms in (times_us // 1000).tolist()]
    ids = [f"{head}-7000-8000-{i:012x}" for head, i in zip(heads, n.tolist(), strict=True)]
    node = _text("n", pa.array(n % NODES))
    return {
        "n": n,
        "id": pa.array(ids),
        "job_id": _text("job-", pa.array(n)),
        "node": node,
        "spot": _text(node, "/", pa.array(n // NODES % GPUS)),
        "decided": times_us,
        "STARTED": times_us + 500_000,
        "FINISHED": times_us + (1e6 * rng.uniform(0.5, 1.5, len(n)) * _RUN_S).astype(np.int64),
    }


def _observed(jobs: dict[str, Any]) -> dict[str, Any]:
    """Those whose decision was observed."""
    of = np.flatnonzero(jobs["n"] % _OBSERVED == 0)
    return {
        name: values[of] if isinstance(values, np.ndarray) else values.take(pa.array(of))
        for name, values in jobs.items()
    }


def _each(values: pa.Array) -> pa.Array:
    """A list of one element for each row."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)


def _decisions(jobs: dict[str, Any], rng: np.random.Generator) -> dict[str, pa.Array]:
    rows = len(jobs["n"])
    records = [rng.bytes(100 if n % _OBSERVED else _OBSERVATION_BYTES) for n in jobs["n"].tolist()]
    same = {"cluster": "c", "rpc": "Place", "policy": "harmony", "outcome": "PLACED", "scope": "CLUSTER"}
    flags = dict.fromkeys(("is_dry_run", "is_explored", "is_fallback"), False)
    numbers = {"job_total_epochs": 10.0, "job_predicted_speeds": 0.2, "job_predicted_speeds_epochs_per_s": 0.2}
    numbers |= {"job_answered_propensities": 0.9, "job_own_propensities": 0.9, "job_exploration_rates": 0.1}
    words = {"job_outcomes": "PLACED", "job_explorers": "", "job_guards": "", "job_fallback_reasons": ""}
    lists = {name: pa.repeat(value, rows) for name, value in {**numbers, **words}.items()}
    lists |= {
        "job_ids": jobs["job_id"],
        "job_planned": _each(jobs["spot"]),
        "job_nodes": _each(jobs["node"]),
        "job_reservations": _text("r", jobs["job_id"]),
        "job_submit_times_s": pa.array(jobs["decided"] / 1e6 - 1.0),
        "job_is_explored": pa.repeat(False, rows),
        "job_admit_decisions": pa.nulls(rows, pa.string()),
    }
    return {
        "id": jobs["id"],
        "position": _text(pa.array(jobs["decided"] // 1000), "-0"),
        "record": pa.array(records, pa.binary()),
        "time": pa.array(jobs["decided"]),
        "propensity": pa.repeat(0.9, rows),
        "alternatives": pa.array([_alternatives(n) for n in jobs["n"].tolist()], _ALTERNATIVES_TYPE),
        **{name: pa.repeat(value, rows) for name, value in {**same, **flags}.items()},
        **{name: _each(values) for name, values in lists.items()},
    }


def _alternatives(n: int) -> list[dict[str, Any]] | None:
    """Other nodes that the job of this number might have got; None if its decision was not observed."""
    if n % _OBSERVED:
        return None
    others = [f"n{(n + step) % NODES}" for step in range(_ALTERNATIVES)]
    return [{"job_id": f"job-{n}", "nodes": [other]} for other in others]


def _progress(jobs: dict[str, Any], share: float) -> dict[str, pa.Array]:
    """A report of each job after this share of its run."""
    times = (jobs["STARTED"] + share * (jobs["FINISHED"] - jobs["STARTED"])).astype(np.int64)
    found = _outcomes({**jobs, "PROGRESS": times}, "PROGRESS")
    speeds = dict.fromkeys(("speed", "speed_epochs_per_s"), pa.repeat(0.2, len(times)))
    return {**found, **speeds, "epochs_done": pa.repeat(10 * share, len(times))}


def _outcomes(jobs: dict[str, Any], kind: str) -> dict[str, pa.Array]:
    rows, times = len(jobs["n"]), pa.array(jobs[kind])
    has_placement = kind == "STARTED"
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.string()))
    return {
        "id": _text(jobs["id"], "|", jobs["job_id"], f"|{kind}|", times, "|"),
        "cluster": pa.repeat("c", rows),
        "position": _text(pa.array(jobs[kind] // 1000), "-1"),
        "record": pa.repeat(b"", rows),
        "decision_id": jobs["id"],
        "job_id": jobs["job_id"],
        "kind": pa.repeat(kind, rows),
        "time": times,
        "receive_time": times,
        "speed": pa.repeat(0.0, rows),
        "speed_epochs_per_s": pa.nulls(rows, pa.float64()),
        "epochs_done": pa.repeat(0.0 if has_placement else 10.0, rows),
        "placement": _each(jobs["spot"]) if has_placement else nothing,
        "nodes": _each(jobs["node"]) if has_placement else nothing,
    }


def join(directory: Path) -> dict[str, Any]:
    """Joins the log in a process of its own: seconds, peak memory in MiB, rows by status.

    The system's allocator and one thread of Arrow's: with its own, the peak of one join moves by 40 MiB."""
    command = [sys.executable, "-m", "tests.fakes.log_volume", str(directory), "--join"]
    variables = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _join(directory: Path) -> dict[str, Any]:
    start_s = time.perf_counter()
    dataset = Dataset(directory)
    with dataset.locked():
        counts = dataset.join_all(now_s=DAY_S + 30 * 86_400.0, dangling_after_s=86_400.0)
    # Not ru_maxrss, which a process inherits from the one that forked it.
    status = Path("/proc/self/status").read_text()
    peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return {"counts": counts, "peak_mib": round(peak_mib, 1), "seconds": round(time.perf_counter() - start_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--decisions", type=int, default=200_000)
    parser.add_argument("--join", action="store_true", help="Join the tables of the directory.")
    options = parser.parse_args()
    if not options.join:
        make(options.directory, options.decisions)
    print(json.dumps(_join(options.directory) if options.join else join(options.directory)))


if __name__ == "__main__":
    main()
