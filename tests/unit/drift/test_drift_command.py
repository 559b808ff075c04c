"""`placewise drift` on exported logs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.evaluate.exported import DECISIONS, EVERY_S, START_S, TOGETHER, alternative, decision
from typer.testing import CliRunner

from placewise_core.inputs.tables import PART_FEATURES, TOKEN_COLUMNS
from placewise_core.policies.studies.alternatives import Alternative
from placewise_log.record import DecisionRecord, Parts, Tensor, decode, encode
from placewise_service.declog.derived import JOINED_SCHEMA
from placewise_training.drift.command import drift_app
from placewise_training.drift.compare import drift, lines, summary
from placewise_training.log.inputs import asked_jobs, residuals
from placewise_training.log.placed import LogError

COUNT = 800
JOINED = pa.schema(
    {name: pa.float64() for name in ("decide_time_s", "predicted_speed_epochs_per_s", "speed_epochs_per_s")}
)
RUNNER = CliRunner()


def row(i: int, model: str, tokens: np.ndarray | None) -> dict[str, Any]:  # type: ignore[type-arg]
    """A decision of a job of that model; `tokens` (PART_FEATURES,) of both of its parts, beside a witness."""
    made = decision(i, [alternative(f"j{i}", TOGETHER, True, 1.0, 1.0, consolidate=1.0)])
    record = decode(made["record"])
    record = replace(record, jobs=(replace(record.jobs[0], model=model),))
    if tokens is not None:
        rows = np.stack([tokens, tokens, np.full(PART_FEATURES, 99.0)])[None].astype(np.float32)
        of_job = Tensor.pack(np.array([[0, 0, 1]], dtype=np.int32))
        parts = Parts(f"j{i}", Tensor.pack(rows), of_job, of_job, ("n1",), ())
        chosen = Alternative(f"j{i}", "consolidate", TOGETHER, True, 1.0, 1.0)
        record = replace(record, parts=(parts,), alternatives=(chosen,))
    return {**made, "record": encode(record)}


def exported(folder: Path, *, moved: str = "", slower: float = 1.0, new_model: str = "vgg16") -> Path:
    """Three quarters as before. In the last one the column `moved` is larger, jobs run `slower`, and every other job is
    of `new_model`."""
    rng = np.random.default_rng(6)
    rows, outcomes = [], []
    for i in range(COUNT):
        is_recent = i >= 0.75 * COUNT
        tokens = rng.normal(size=PART_FEATURES)
        if moved and is_recent:
            tokens[TOKEN_COLUMNS.index(moved)] += 2.0
        model = new_model if is_recent and i % 2 else ("vgg16", "bert")[i % 2]
        rows.append(row(i, model, tokens if i % 3 else None))
        speed = float(np.exp(rng.normal(0.0, 0.1))) / (slower if is_recent else 1.0)
        outcomes.append(
            {"decide_time_s": START_S + i * EVERY_S, "predicted_speed_epochs_per_s": 1.0, "speed_epochs_per_s": speed}
        )
    outcomes[0]["speed_epochs_per_s"] = None
    for name, found, schema in (("decisions", rows, DECISIONS), ("joined", outcomes, JOINED)):
        path = folder / name / "date=2025-11-21" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(found, schema=schema), path)
    return folder


def run(*arguments: str) -> Any:
    done = RUNNER.invoke(drift_app, [*arguments, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout), done.exit_code


def test_shadows_and_dry_runs_are_left_out(tmp_path: Path) -> None:
    log = exported(tmp_path)
    path = log / "decisions" / "date=2025-11-21" / "decisions.parquet"
    rows = pq.read_table(path).to_pylist()
    tokens = np.full(PART_FEATURES, 50.0)
    extra = [row(i, "llama", tokens) | {"id": f"x{i}"} for i in range(COUNT - 40, COUNT)]
    extra = [each | ({"shadow_of": "d1"} if i % 2 else {"is_dry_run": True}) for i, each in enumerate(extra)]
    pq.write_table(pa.Table.from_pylist([*rows, *extra], schema=DECISIONS), path)
    found, code = run("--log", str(log))
    assert (code, found["is_drifted"], found["reference"], found["recent"]) == (0, False, 600, 200)


def test_a_cluster_as_before_has_not_drifted(tmp_path: Path) -> None:
    found, code = run("--log", str(exported(tmp_path)))
    assert (code, found["is_drifted"]) == (0, False)
    assert (found["reference"], found["recent"]) == (600, 200)
    assert set(found["columns"]) == set(TOKEN_COLUMNS)
    assert found["models"] == {}


def test_a_column_that_moved_is_named(tmp_path: Path) -> None:
    found, code = run("--log", str(exported(tmp_path, moved="traffic_share")))
    assert code == 5
    assert [name for name, one in found["columns"].items() if one["level"] == "DRIFTED"] == ["traffic_share"]


def test_forecasts_that_fail_are_found(tmp_path: Path) -> None:
    found, code = run("--log", str(exported(tmp_path, slower=1.2)))
    assert code == 5
    assert found["forecasts"]["low"] < -np.log(1.2) < found["forecasts"]["high"] < -0.1


def test_an_unseen_model_is_named_with_its_jobs(tmp_path: Path) -> None:
    exported(tmp_path, new_model="llama")
    found, code = run("--log", str(tmp_path))
    assert (code, found["models"]) == (5, {"llama": 100})
    assert "unseen model: llama, 100 jobs" in RUNNER.invoke(drift_app, ["--log", str(tmp_path)]).stdout


def test_with_a_bundle_only_its_decisions_count(tmp_path: Path) -> None:
    exported(tmp_path, new_model="llama")
    path = next((tmp_path / "decisions").rglob("*.parquet"))
    rows = pq.read_table(path).to_pylist()
    for i, each in enumerate(rows):
        record = decode(each["record"])
        assert isinstance(record, DecisionRecord)
        name = "next" if record.jobs[0].model == "llama" and i % 4 else "2026.11"
        assert record.place is not None
        place = replace(record.place, meta=replace(record.place.meta, bundle=name))
        each["record"] = encode(replace(record, place=place))
    pq.write_table(pa.Table.from_pylist(rows, schema=DECISIONS), path)
    joined = next((tmp_path / "joined").rglob("*.parquet"))
    table = pq.read_table(joined)
    pq.write_table(table.append_column("bundle", pa.array(["2026.11"] * len(table))), joined)
    found, _ = run("--log", str(tmp_path), "--bundle", "2026.11")
    assert (found["reference"] >= 599, found["recent"] <= 101, found["models"]) == (True, True, {})
    assert "holds no Place decision of bundle nobody" in str(
        RUNNER.invoke(drift_app, ["--log", str(tmp_path), "--bundle", "nobody"]).exception
    )


def test_a_gpu_type_that_no_job_had_before_is_named(tmp_path: Path) -> None:
    exported(tmp_path)
    jobs = list(asked_jobs(tmp_path))
    cut_s = START_S + 0.75 * COUNT * EVERY_S
    gpus = [frozenset({"T4", "A100"} if job.time_s >= cut_s and i % 4 else {"T4"}) for i, job in enumerate(jobs)]
    of_gpus = [job._replace(gpu_models=each) for job, each in zip(jobs, gpus, strict=True)]
    found = drift(of_gpus, residuals(tmp_path), cut_s, 7200.0)
    assert (found.gpu_models, found.is_drifted) == ({"A100": 150}, True)
    assert "unseen GPU type: A100, 150 jobs" in lines(found)
    assert summary(found) == "drift: unseen GPU types A100 (150 jobs)"
    assert summary(drift(jobs, residuals(tmp_path), cut_s, 7200.0)) == "drift: none"


def test_without_alternatives_there_are_no_columns(tmp_path: Path) -> None:
    exported(tmp_path)
    path = next((tmp_path / "decisions").rglob("*.parquet"))
    pq.write_table(pa.Table.from_pylist([row(i, "vgg16", None) for i in range(20)], schema=DECISIONS), path)
    found, _ = run("--log", str(tmp_path))
    assert found["columns"] == {}


def test_no_log_and_an_empty_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="does not exist"):
        run("--log", str(tmp_path))
    exported(tmp_path)
    path = next((tmp_path / "decisions").rglob("*.parquet"))
    pq.write_table(DECISIONS.empty_table(), path)
    assert "holds no Place decision" in str(RUNNER.invoke(drift_app, ["--log", str(tmp_path)]).exception)


def test_the_log_has_the_columns_that_are_read() -> None:
    assert set(JOINED.names) <= set(JOINED_SCHEMA.names)
