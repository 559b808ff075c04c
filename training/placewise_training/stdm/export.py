"""Writes the nets that complete subtask metrics (`stdm.onnx`, `ncf.onnx`) and completes their reports. Trains
nothing."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_core.subtasks.metrics import METRICS
from placewise_models.ncf import NCF_MODEL, NCF_REPORT, ncf_columns
from placewise_training.lab.export import OPSET, Graph, export_graph
from placewise_training.stdm.ncf import load as load_ncf
from placewise_training.stdm.train import CHECKPOINT, REPORT, load_net


def export_stdm(run: Path, into: Path) -> Path:
    """Exports the completion of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    return export_graph(run, into, GRAPH, REPORT, net, lambda path: GRAPH.trace(net, path, METRICS), OPSET)


def random_inputs(size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows, each value known or not; the last row knows nothing. `size`: (subtasks,)."""
    rng = np.random.default_rng((seed, 61))
    shape = (*size, len(METRICS))
    mask = (rng.random(shape) < 0.3).astype(np.float32)
    mask[-1] = 0.0
    return {"known": rng.random(shape, dtype=np.float32), "mask": mask}


GRAPH = Graph(
    "stdm.onnx", ("completed",), random_inputs, sizes=((1,), (3,), (64,)), sample_size=(3,), axes={0: "subtasks"}
)


def export_ncf(run: Path, into: Path) -> Path:
    """Exports the NCF of a training run; the path of the model. Raises ParityError."""
    known = load_ncf(run)
    rows, columns = known.values.shape

    def draw(size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.int64]]:
        rng = np.random.default_rng((*size, seed, 62))
        return {"subtask": rng.integers(rows, size=size), "metric": rng.integers(columns, size=size)}

    graph = Graph(NCF_MODEL, ("value",), draw, sizes=((1,), (64,)), sample_size=(16,), axes={0: "cells"})
    net, names = known.net.eval(), ncf_columns(known.gpus)
    return export_graph(run, into, graph, NCF_REPORT, net, lambda path: graph.trace(net, path, names), OPSET)
