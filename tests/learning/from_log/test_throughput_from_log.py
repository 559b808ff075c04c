"""The throughput model learns from the service's log: one constant of the truth is changed, and it follows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.declog import NOON_S, decision, outcome
from tests.fakes.logs.simulated_log import LoggedRing

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Architecture, NodeId, Role
from placewise_core.speed.forms import KnotForm
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView
from placewise_log.manifest import LogManifest
from placewise_log.record import Entry
from placewise_log.views import Snapshot, encode_snapshot
from placewise_models.folder import shipped_bundle
from placewise_service.declog.export import export
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.throughput import train as train_throughput
from placewise_training.throughput.data import measured_groups, rows_of
from placewise_training.throughput.fit import FITS
from placewise_training.throughput.from_log import incumbent
from placewise_training.throughput.train import Args, train

MODEL, GPU, EPOCHS, SAMPLES = "ResNet50", "T4", 2.0, 60_000
SHAPES = ("1", "2", "4", "11", "22", "44", "111", "222", "1111", "2222")
BATCHES = (32, 64, 128)
JOBS, NOISE = 160, 0.03
SLOWER = 4.0  # the network of this site, in α of a step across nodes


def truth() -> KnotForm:
    """The shipped profile of that network and GPU, with one constant changed."""
    model = ThroughputModel(incumbent(None), "knots")
    profile = next(each for each in model.profiles if (each.model, each.gpu_model) == (MODEL, GPU))
    assert isinstance(profile.form, KnotForm)
    return replace(profile.form, alpha_network=tuple(SLOWER * each for each in profile.form.alpha_network))


async def logged(folder: Path, order: Callable[[list[float]], list[float]] = list) -> Path:
    """One job after the other, each alone. `order` may shuffle their lengths. Every tenth falls silent."""
    rng, form, shapes = np.random.default_rng(5), truth(), []
    for _ in range(JOBS):
        shapes.append((SHAPES[int(rng.integers(len(SHAPES)))], BATCHES[int(rng.integers(len(BATCHES)))]))
    rows = rows_of([shape for shape, _ in shapes], [batch for _, batch in shapes], [1.0] * JOBS)
    per_s = FITS["knots"].predict(form, rows) * np.exp(rng.normal(0.0, NOISE, JOBS))
    lengths = order((EPOCHS * SAMPLES / per_s).tolist())
    entries: list[Entry] = []
    for n, ((shape, batch), length_s) in enumerate(zip(shapes, lengths, strict=True), start=1):
        start_s, gpus = NOON_S + 40_000.0 * n, sum(int(each) for each in shape)
        made = decision(n, time_s=start_s)
        job = replace(
            made.jobs[0], model=MODEL, architecture=Architecture.ALL_REDUCE if gpus > 1 else Architecture.SINGLE,
            batch_size=batch * gpus, dataset_size=SAMPLES, total_epochs=EPOCHS, params_millions=25.56,
        )  # fmt: skip
        tasks = tuple(
            Assignment(f"w{node}.{gpu}", Role.WORKER, NodeId(f"node{node:04d}"), gpu_indices=(gpu,))
            for node, count in enumerate(shape)
            for gpu in range(int(count))
        )
        entries.append(replace(made, jobs=(job,)))
        entries.append(outcome(n, JobEventKind.STARTED, start_s, decided_s=start_s, placement=tasks))
        if n % 10:
            entries.append(outcome(n, JobEventKind.FINISHED, start_s + length_s, decided_s=start_s))
        else:  # unfinished when its host fell silent: all that is known is that it was no faster
            entries.append(outcome(n, JobEventKind.PROGRESS, start_s + 0.7 * length_s, decided_s=start_s))
    nodes = tuple(spec.node for spec in uniform_cluster(8, 4, GPU))
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=nodes))
    ring = LoggedRing(entries, encode_snapshot(Snapshot.of("v", view, NOON_S, ())))
    ring.now_s = NOON_S + 41_000.0 * JOBS
    await export(ring, folder)
    return folder


def learnt(tmp_path: Path, log: Path, **options: Any) -> dict[str, Any]:
    report = train(Args(out=tmp_path / "out", splits=1, log=str(log), **options))
    assert json.loads((tmp_path / "out" / "throughput.json").read_text("utf-8"))["log"] == report["log"]
    assert report["log"]["digest"] == LogManifest.read(log).digest
    found: dict[str, Any] = report["log"]["later"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("only_log", [False, True])
async def test_the_error_on_later_steps_falls_once_a_constant_of_the_truth_has_changed(
    tmp_path: Path, only_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [group for group in measured_groups() if len(group.rows.gpus) < 20]  # the others take minutes
    monkeypatch.setattr(train_throughput, "measured_groups", lambda: few)
    found = learnt(tmp_path, await logged(tmp_path / "log"), only_log=only_log)
    assert found["gain_interval"][0] > 0.0
    assert found["error_after"] < 0.3 * found["error_before"]


@pytest.mark.slow
@pytest.mark.parametrize("only_log", [False, True])
async def test_shuffled_outcomes_teach_nothing(tmp_path: Path, only_log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later fifth keeps its own lengths: on shuffled ones any model that knows their mean does well."""
    few = [group for group in measured_groups() if len(group.rows.gpus) < 20]
    monkeypatch.setattr(train_throughput, "measured_groups", lambda: few)

    def shuffled(lengths: list[float]) -> list[float]:
        cut = 4 * JOBS // 5
        return [*np.random.default_rng(9).permutation(lengths[:cut]).tolist(), *lengths[cut:]]

    found = learnt(tmp_path, await logged(tmp_path / "log", shuffled), only_log=only_log)
    assert found["gain_interval"][0] <= 0.0


@pytest.mark.slow
async def test_profiles_of_the_incumbent_stay_for_what_the_log_does_not_hold(tmp_path: Path) -> None:
    log = await logged(tmp_path / "log")
    report = train(Args(out=tmp_path / "out", splits=1, log=str(log), only_log=True, start=shipped_bundle()))
    shipped = {(each["model"], each["gpu_model"]): each for each in incumbent(None)["profiles"]}
    found = {(each["model"], each["gpu_model"]): each for each in report["profiles"]}
    assert found.keys() == shipped.keys()
    changed = {key for key in found if found[key] != shipped[key]}
    assert changed == {(MODEL, GPU)}
    assert report["log"]["counts"]["bounds"] == JOBS // 10


def test_only_the_log_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--only-log needs a log"):
        train(Args(out=tmp_path, only_log=True))
