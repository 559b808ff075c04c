"""The exporter: a net that ONNX Runtime answers differently is refused, and nothing that was there before is lost."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewise_training.lab.export import Graph, ParityError, export_graph

OPSET = 18


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def drawn(size: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).random(size, dtype=np.float32)}


GRAPH = Graph("m.onnx", ("y",), drawn, sizes=((1,), (5,)), sample_size=(3,), axes={0: "rows"})


def exported(run: Path, into: Path, net: torch.nn.Module, written: torch.nn.Module) -> Path:
    return export_graph(run, into, GRAPH, "m.json", net, lambda path: GRAPH.trace(written, path, ("a",)), OPSET)


def a_run(tmp_path: Path) -> Path:
    (tmp_path / "m.json").write_text('{"seed": 7}', "utf-8")
    return tmp_path


def test_the_report_gets_the_parity_and_a_sample_that_the_graph_answers(tmp_path: Path) -> None:
    net = Scaled(2.0)
    model = exported(a_run(tmp_path), tmp_path / "bundle", net, net)
    report: dict[str, Any] = json.loads((model.parent / "m.json").read_text("utf-8"))
    assert (report["seed"], report["opset"]) == (7, OPSET)
    assert report["parity"] <= 1e-5
    np.testing.assert_allclose(report["sample"]["y"], 2 * np.array(report["sample"]["x"]), rtol=1e-6)
    assert sorted(path.name for path in model.parent.iterdir()) == ["m.json", "m.onnx"]


@pytest.mark.parametrize("factors", [(2.0, 2.001), (float("nan"), float("nan"))])
def test_a_graph_that_differs_or_answers_nothing_is_refused(tmp_path: Path, factors: tuple[float, float]) -> None:
    into = tmp_path / "bundle"
    into.mkdir()
    (into / "m.onnx").write_bytes(b"earlier")
    with pytest.raises(ParityError, match="not exported"):
        exported(a_run(tmp_path), into, *(Scaled(factor) for factor in factors))
    assert [path.name for path in into.iterdir()] == ["m.onnx"]
    assert (into / "m.onnx").read_bytes() == b"earlier"
