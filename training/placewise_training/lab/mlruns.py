"""Runs in the layout of MLflow's file store, which MLflow can show. Needs no package of MLflow's.

    DIR/EXPERIMENT/meta.yaml                          one experiment for each trainer, one for retrain
    DIR/EXPERIMENT/RUN/{meta.yaml,params/,tags/,metrics/,artifacts/}

`tests/e2e/test_mlflow_reads.py` lets MLflow read it.
"""

import hashlib
import json
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

META: Final = "meta.yaml"
_LOCAL, _FINISHED = 4, 3  # SourceType.LOCAL and RunStatus.FINISHED
_UNSAFE: Final = re.compile(r"[^\w\-. /]")  # what MLflow refuses in names


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One finished run, from `start_s` (seconds since 1970) on. `artifacts` are files or folders, which are copied."""

    experiment: str
    name: str
    start_s: float
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Sequence[Path] = ()


def add_run(store: Path, run: FinishedRun) -> Path:
    """The run's folder. Its meta.yaml is written last: MLflow passes over a run that lacks it. Raises OSError."""
    experiment = _experiment(store, run.experiment)
    run_id = uuid.uuid4().hex
    folder = experiment / run_id
    for part in ("params", "metrics", "tags", "artifacts"):
        (folder / part).mkdir(parents=True)
    end_ms = round(1000 * time.time())
    for name, value in run.params.items():
        _put(folder / "params", name, str(value))
    for name, value in run.metrics.items():
        _put(folder / "metrics", name, f"{end_ms} {value!r} 0\n")
    for name, value in {"mlflow.runName": run.name, **run.tags}.items():
        _put(folder / "tags", name, str(value))
    for path in run.artifacts:
        target = folder / "artifacts" / path.name
        shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)
    _meta(
        folder,
        artifact_uri=(folder / "artifacts").resolve().as_uri(), end_time=end_ms, entry_point_name="",
        experiment_id=experiment.name, lifecycle_stage="active", run_id=run_id, run_name=run.name, run_uuid=run_id,
        source_name="", source_type=_LOCAL, source_version="", start_time=round(1000 * run.start_s), status=_FINISHED,
        tags=[], user_id="",
    )  # fmt: skip
    return folder


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """(path, number) of every number of a JSON object, for example ("judge/mae", 0.02); lists are left out."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from numbers(each, f"{name}/{key}" if name else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def _experiment(store: Path, name: str) -> Path:
    """The experiment's folder; its id follows from its name."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    folder = store / str(10**17 + digest % (9 * 10**17))
    if not (folder / META).exists():
        folder.mkdir(parents=True, exist_ok=True)
        now_ms = round(1000 * time.time())
        _meta(
            folder,
            artifact_location=folder.resolve().as_uri(), creation_time=now_ms, experiment_id=folder.name,
            last_update_time=now_ms, lifecycle_stage="active", name=name,
        )  # fmt: skip
    return folder


def _meta(folder: Path, **values: Any) -> None:
    """JSON is YAML."""
    part = folder / f"{META}.{uuid.uuid4().hex}"
    part.write_text(json.dumps(values, indent=1) + "\n", "utf-8")
    part.replace(folder / META)


def _put(folder: Path, name: str, text: str) -> None:
    """A name with slashes is a path below the folder."""
    path = folder.joinpath(*[part for part in _UNSAFE.sub("_", name).split("/") if part.strip(".")])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
