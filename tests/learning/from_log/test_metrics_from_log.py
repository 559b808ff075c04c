"""NCF and the completion of subtask metrics learn from the service's log: one constant of the truth is changed."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.declog import NOON_S, decision_id, outcome
from tests.fakes.logs.simulated_log import LoggedRing

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind, PlaceCommand, Scope, SubtaskOutcome
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import Job, JobId, NodeId, Role, Subtask
from placewise_core.subtasks.metrics import METRICS, SPEEDUP
from placewise_log.manifest import LogManifest
from placewise_log.record import DecisionRecord, Entry
from placewise_models.folder import shipped_bundle
from placewise_service.declog.export import export
from placewise_training.log.subtask_metrics import AT_LEAST, AT_MOST, VALUE
from placewise_training.sim.pipelines.applications import subtask_truths
from placewise_training.stdm import ncf as train_ncf
from placewise_training.stdm import train as train_stdm
from placewise_training.stdm.card import card
from placewise_training.stdm.export import export_ncf, export_stdm
from placewise_training.stdm.from_log import censored_mean

SUBTASKS, NOISE, FASTER, CORE_S = 240, 0.05, 3.0, 2.0
REPORTED = ("sm", "dram", "load_throughput")  # of each kind, in its requests
QUICK = {"completion_steps": 200}


def truth() -> dict[str, dict[str, float]]:
    """Metrics by kind, of a site whose GPUs are three times as fast beside its cores."""
    found = {kind: each.profile() for kind, each in subtask_truths("judge").items() if each.has_gpu_version}
    return {kind: {**row, SPEEDUP: FASTER * row[SPEEDUP]} for kind, row in found.items()}


async def _logged(folder: Path) -> Path:
    """Subtasks one after the other, on a core and on a GPU by turns. The last of them still run."""
    rng, true, entries = np.random.default_rng(6), truth(), list[Entry]()
    kinds = list(true)
    for n in range(1, SUBTASKS + 1):
        kind, is_on_gpu, time_s = kinds[n % len(kinds)], bool(rng.random() < 0.5), NOON_S + 100.0 * n
        unit = "gpu0" if is_on_gpu else "cpu0"
        subtask = Subtask(
            "s", kind, has_gpu_version=True, size=1.0, profile={name: true[kind][name] for name in REPORTED}
        )
        task = Assignment("s", Role.WORKER, NodeId("n1"), cpu_unit=unit, subtask="s")
        decided = JobDecision(JobId(f"j{n}"), Outcome.PLACED, (task,))
        command = PlaceCommand("c", (Job(JobId(f"j{n}"), subtasks=(subtask,)),), scope=Scope.NODE, node_id="n1")
        answer = PlaceDecision((decided,), DecisionMeta(decision_id(n, time_s), "iawp"))
        entries.append(DecisionRecord.of_place(command, answer, time_s=time_s, seed=n, latency_ms=1.0))
        seconds = float(CORE_S / (true[kind][SPEEDUP] if is_on_gpu else 1.0) * np.exp(NOISE * rng.normal()))
        if n % 20:
            done = SubtaskOutcome("s", kind, unit, seconds, 1.0, node="n1")
            entries.append(outcome(n, JobEventKind.SUBTASK_FINISHED, time_s + seconds, decided_s=time_s, subtask=done))
    ring = LoggedRing(entries)
    ring.now_s = NOON_S + 100.0 * SUBTASKS + 60.0
    await export(ring, folder)
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(asyncio.run(_logged(tmp_path_factory.mktemp("log"))))


@pytest.fixture(autouse=True)
def _threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def shuffled(values: np.ndarray) -> np.ndarray:
    """The known values, each in another cell."""
    found, is_known = values.copy(), ~np.isnan(values)
    found[is_known] = np.random.default_rng(9).permutation(values[is_known])
    return found


@pytest.mark.parametrize("only_log", [False, True])
def test_the_error_of_the_completion_on_later_entries_falls(tmp_path: Path, log: str, only_log: bool) -> None:
    args = train_stdm.Args(out=tmp_path, log=log, only_log=only_log, start=shipped_bundle(), **QUICK)  # type: ignore[arg-type]
    found = train_stdm.train(args)["log"]
    assert found["digest"] == LogManifest.read(Path(log)).digest
    assert found["later"]["gain_interval"][0] > 0.0
    assert found["counts"]["bounds"] > 0
    assert "stdm.onnx" in str(export_stdm(tmp_path, tmp_path))
    assert "error on later entries" in card(json.loads((tmp_path / "stdm.json").read_text("utf-8")))


def test_shuffled_outcomes_teach_the_completion_nothing(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train_stdm.train_completion
    monkeypatch.setattr(train_stdm, "train_completion", lambda history, *rest: real(shuffled(history), *rest))
    args = train_stdm.Args(out=tmp_path, log=log, only_log=True, start=shipped_bundle(), **QUICK)  # type: ignore[arg-type]
    assert train_stdm.train(args)["log"]["later"]["gain_interval"][0] <= 0.0


def ncf_args(out: Path, log: str, **options: Any) -> train_ncf.Args:
    return train_ncf.Args(out=out, log=log, draws=2, pretrain_steps=100, **{"sgd_steps": 400, **options})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bundle's files of a net that knows these kinds from before the GPUs were faster."""
    before = {
        kind: {name: row[name] / (FASTER if name == SPEEDUP else 1.0) for name in (*REPORTED, SPEEDUP)}
        for kind, row in truth().items()
    }
    folder: Path = tmp_path_factory.mktemp("bundle")
    (folder / "profiles.json").write_text(json.dumps(before))
    train_ncf.train(replace(ncf_args(folder, ""), profiles=str(folder / "profiles.json")))
    export_ncf(folder, folder)
    (folder / train_ncf.CHECKPOINT).unlink()
    return str(folder)


@pytest.mark.parametrize("only_log", [False, True])
def test_the_error_of_ncf_on_later_entries_falls(tmp_path: Path, log: str, bundle: str, only_log: bool) -> None:
    found = train_ncf.train(ncf_args(tmp_path / "out", log, only_log=only_log, start=bundle))["log"]
    assert found["digest"] == LogManifest.read(Path(log)).digest
    assert found["later"]["gain_interval"][0] > 0.0
    assert "ncf.onnx" in str(export_ncf(tmp_path / "out", tmp_path / "out"))


def test_shuffled_outcomes_teach_ncf_nothing(
    tmp_path: Path, log: str, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train_ncf.new_rows

    def mixed(*args: Any) -> dict[str, dict[str, float]]:
        rows = real(*args)
        values = shuffled(np.array([[row.get(name, np.nan) for name in METRICS] for row in rows.values()]))
        values[:, METRICS.index(SPEEDUP)] = np.random.default_rng(8).uniform(0.1, 50.0, len(values))
        names = [[*METRICS]] * len(values)
        return {
            kind: {name: min(1.0, value) if name != SPEEDUP else value for name, value in _known(each, row)}
            for kind, each, row in zip(rows, names, values.tolist(), strict=True)
        }

    monkeypatch.setattr(train_ncf, "new_rows", mixed)
    found = train_ncf.train(ncf_args(tmp_path / "out", log, only_log=True, start=bundle))["log"]
    assert found["later"]["gain_interval"][0] <= 0.0


def _known(names: Sequence[str], row: Sequence[float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in zip(names, row, strict=True) if not np.isnan(value)]


def test_a_mean_of_censored_values_is_that_of_all_of_them() -> None:
    """Of 2,000 values, those below 0.45 are known to be at most that alone; the mean of the others is too large."""
    values = np.random.default_rng(1).normal(0.5, 0.1, 2000)
    for limit, bound in ((0.45, AT_MOST), (0.55, AT_LEAST)):
        is_cut = values < limit if bound == AT_MOST else values > limit
        seen, flags = np.where(is_cut, limit, values), np.where(is_cut, bound, VALUE)
        assert censored_mean(seen, flags) == pytest.approx(0.5, abs=0.01)
        assert abs(values[~is_cut].mean() - 0.5) > 0.02
    assert censored_mean(values, np.zeros(2000, dtype=np.int64)) == pytest.approx(values.mean())


def test_only_the_log_needs_a_log(tmp_path: Path) -> None:
    for run in (
        lambda: train_stdm.train(train_stdm.Args(out=tmp_path, only_log=True)),
        lambda: train_ncf.train(train_ncf.Args(out=tmp_path, only_log=True)),
    ):
        with pytest.raises(ValueError, match="--only-log needs a log"):
            run()
