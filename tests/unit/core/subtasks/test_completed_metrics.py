"""Completed subtask metrics: known ones stay, too few known ones stay incomplete, a failure falls back to known."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from placewise_core.domain.job import Subtask
from placewise_core.subtasks.completed_metrics import CompletedMetrics, metrics_source
from placewise_core.subtasks.metrics import METRICS, SPEEDUP, KnownMetrics
from placewise_core.subtasks.scale import from_unit, to_unit
from placewise_models.bundle import BundleError, Manifest, load, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.session import ModelError
from placewise_models.stdm import StdmRuntime
from placewise_training.stdm.export import GRAPH
from placewise_training.stdm.net import MetricCompletion


class AllHalf:
    """Completes everything with 0.5, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def complete(self, known: Mapping[str, float]) -> Mapping[str, float]:
        self.asked += 1
        return dict.fromkeys(METRICS, 0.5)


def subtask(*, has_gpu_version: bool = True, **profile: float) -> Subtask:
    return Subtask("a", "kind", (), has_gpu_version, profile)


def exported(tmp_path: Path, columns: tuple[str, ...] = METRICS) -> tuple[bytes, dict[str, object]]:
    torch.manual_seed(0)
    path = tmp_path / "stdm.onnx"
    GRAPH.trace(MetricCompletion(len(METRICS)), path, columns)
    return path.read_bytes(), {"schema": "placewise.stdm/1", "sample": GRAPH.sample(path)}


def test_known_metrics_stay_and_the_rest_is_filled() -> None:
    found = CompletedMetrics(KnownMetrics({"kind": {"sm": 0.9}}), AllHalf()).of(subtask(dram=0.2))
    assert found == {**dict.fromkeys(METRICS, 0.5), "sm": 0.9, "dram": 0.2}


@pytest.mark.parametrize(
    "given",
    [
        subtask(sm=0.9),  # one metric is too few
        subtask(cpu=1.0, host_memory=0.1),  # nothing about the GPU
        subtask(sm=0.9, dram=0.2, has_gpu_version=False),
        subtask(**dict.fromkeys(METRICS, 0.3)),
    ],
)
def test_nothing_is_completed_without_need_or_ground(given: Subtask) -> None:
    completer = AllHalf()
    assert CompletedMetrics(KnownMetrics({}), completer).of(given) == given.profile
    assert completer.asked == 0


def test_scale_and_back() -> None:
    metrics = {"sm": 0.4, SPEEDUP: 12.0}
    assert from_unit(to_unit(metrics)) == pytest.approx(metrics)
    with pytest.raises(ValueError, match="load_throughput"):
        to_unit({"load_throughput": 240.0})


def test_the_net_completes_and_leaves_what_it_was_given(tmp_path: Path) -> None:
    runtime = StdmRuntime.load(*exported(tmp_path))
    found = runtime.complete({"sm": 0.4, SPEEDUP: 12.0})
    assert set(found) == set(METRICS)
    assert (found["sm"], found[SPEEDUP]) == (0.4, 12.0)
    assert all(np.isfinite(value) and value >= 0 for value in found.values())


def test_metrics_on_another_scale_are_left_alone(tmp_path: Path) -> None:
    runtime = StdmRuntime.load(*exported(tmp_path))
    known = {"sm": 0.4, "load_throughput": 240.0}
    assert runtime.complete(known) == known


def test_a_net_that_fails_leaves_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = StdmRuntime.load(*exported(tmp_path))

    def broken(rows: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runtime, "_run", broken)
    assert runtime.complete({"sm": 0.4, "dram": 0.2}) == {"sm": 0.4, "dram": 0.2}
    assert runtime.failures == 1


def test_other_columns_and_wrong_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="other columns"):
        StdmRuntime.load(*exported(tmp_path, METRICS[::-1]))
    content, report = exported(tmp_path)
    report["sample"]["completed"][0][0] += 0.1  # type: ignore[index]
    with pytest.raises(ModelError, match="does not answer"):
        StdmRuntime.load(content, report)
    with pytest.raises(ModelError, match="can load"):
        StdmRuntime.load(content[:100], report)


def test_a_bundle_carries_the_completion(tmp_path: Path) -> None:
    directory = tmp_path / "with_stdm"
    directory.mkdir()
    files = ["throughput.json", "capability.json"]
    for file in files:
        shutil.copyfile(shipped_bundle() / file, directory / file)
    _, report = exported(directory)
    (directory / "stdm.json").write_bytes(msgspec.json.encode(report))
    manifest = Manifest("with_stdm", "2026-01-01T00:00:00Z", dict.fromkeys([*files, "stdm.onnx"], ""))
    write_manifest(directory, manifest)
    with pytest.raises(BundleError, match=r"stdm\.json"):
        load(directory)
    write_manifest(directory, replace_files(manifest, [*files, "stdm.onnx", "stdm.json"]))
    assert load(directory).stdm is not None


def replace_files(manifest: Manifest, files: list[str]) -> Manifest:
    return msgspec.structs.replace(manifest, files=dict.fromkeys(files, ""))


def test_without_a_completion_the_known_metrics_serve() -> None:
    assert metrics_source(None) == KnownMetrics.from_view
