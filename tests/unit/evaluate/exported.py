"""An exported log, written by hand with the columns that evaluation reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import DecisionMeta, PlaceDecision
from placewise_core.domain.job import Job, JobId, Resources, Role, TaskGroup
from placewise_log.record import DecisionRecord, Parts, Tensor, encode
from placewise_service.declog.derived import RUNS_SCHEMA
from placewise_training.log.placed import REWARD

START_S = 1_763_726_400.0
EVERY_S = 120.0
TOGETHER, APART = ("n1", "n1"), ("n1", "n2")
ALTERNATIVES = pa.list_(
    pa.struct(
        {
            "job_id": pa.string(),
            "policy": pa.string(),
            "nodes": pa.list_(pa.string()),
            "is_chosen": pa.bool_(),
            "propensity": pa.float64(),
            "own_propensity": pa.float64(),
            "policies": pa.map_(pa.string(), pa.float64()),
        }
    )
)
DECISIONS = pa.schema(
    {
        "id": pa.string(),
        "rpc": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "policy": pa.string(),
        "is_dry_run": pa.bool_(),
        "shadow_of": pa.string(),
        "alternatives": ALTERNATIVES,
        "record": pa.binary(),
    }
)
JOINED = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        "unit": pa.string(),
        "status": pa.string(),
        "is_overridden": pa.bool_(),
        REWARD: pa.float64(),
        "subtask": pa.string(),
        "actual": pa.list_(pa.string()),
        "submit_time_s": pa.float64(),
        "end_time_s": pa.float64(),
        "actual_s": pa.float64(),
    }
)


def alternative(
    job: str, nodes: tuple[str, ...], chosen: bool, p: float | None, own: float | None, **policies: float
) -> dict[str, Any]:
    return {
        "job_id": job,
        "policy": next(iter(policies)),
        "nodes": list(nodes),
        "is_chosen": chosen,
        "propensity": p,
        "own_propensity": own,
        "policies": list(policies.items()),
    }


def decision(i: int, alternatives: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A row of one job `j<i>`, decided `i` intervals after the start."""
    time_s = START_S + i * EVERY_S
    group = TaskGroup(Role.WORKER, 2, Resources(gpus=1.0))
    job = Job(JobId(f"j{i}"), groups=(group,), total_epochs=10.0)
    answer = PlaceDecision((), DecisionMeta(f"d{i}", "consolidate"))
    parts = changes.pop("parts", ())
    record = DecisionRecord.of_place(PlaceCommand("c", (job,)), answer, time_s=time_s, seed=i, latency_ms=1.0)
    usual = {
        "id": f"d{i}",
        "rpc": "Place",
        "time": round(time_s * 1e6),
        "policy": "consolidate",
        "is_dry_run": False,
        "shadow_of": None,
        "alternatives": alternatives,
        "record": encode(
            DecisionRecord(**{**{name: getattr(record, name) for name in record.__dataclass_fields__}, "parts": parts})
        ),
    }
    return {**usual, **changes}


def outcome(i: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    usual = {"decision_id": f"d{i}", "job_id": f"j{i}", "unit": "", "status": "OBSERVED", "is_overridden": False}
    return {**usual, REWARD: reward, **changes}


def parts(job: str, options: int, beside: int = 0) -> Parts:
    """Inputs of a reward model: of each option two tokens of the job, `beside` of another and one of a witness."""
    jobs = np.array([[0, 0, *([1] * beside), 2, -1]] * options, dtype=np.int32)
    tokens = np.arange(jobs.size * 3, dtype=np.float32).reshape(*jobs.shape, 3)
    return Parts(job, Tensor.pack(tokens), Tensor.pack(jobs), Tensor.pack(jobs), ("n1",), ("other",))


def explored(
    count: int, gain: float, rate: float = 0.5, seed: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """`consolidate` in force, which places together, and `load-balance` explores: apart earns `gain` more. `tetris`
    agrees with `load-balance` on every other job."""
    rng = np.random.default_rng(seed)
    decisions, outcomes = [], []
    for i in range(count):
        is_apart = bool(rng.random() < rate)
        tetris = {TOGETHER: 1.0} if i % 2 else {APART: 1.0}
        rows = [
            alternative(
                f"j{i}", TOGETHER, not is_apart, 1.0 - rate, 1.0, consolidate=1.0, tetris=tetris.get(TOGETHER, 0.0)
            ),
            alternative(f"j{i}", APART, is_apart, rate, 0.0, **{"load-balance": 1.0, "tetris": tetris.get(APART, 0.0)}),
        ]
        decisions.append(decision(i, rows))
        outcomes.append(outcome(i, float(rng.uniform(0.5, 1.0) + gain * is_apart)))
    return decisions, outcomes


def write(folder: Path, decisions: list[dict[str, Any]], outcomes: list[dict[str, Any]], reward: str = REWARD) -> Path:
    """Decisions and outcomes, one day each, and no runs."""
    joined = JOINED if reward == REWARD else JOINED.set(5, pa.field(reward, pa.float64()))
    tables = (("decisions", decisions, DECISIONS), ("joined", outcomes, joined), ("runs", [], RUNS_SCHEMA))
    for name, rows, schema in tables:
        path = folder / name / "date=2025-11-21" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return folder
