"""Writes the completion of co-runs (`sharing.onnx`) and completes its report (`sharing.json`). Trains nothing."""

import functools
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_training.lab.export import OPSET, Graph, export_graph
from placewise_training.sharing.train import CHECKPOINT, REPORT, load_net


def export_sharing(run: Path, into: Path) -> Path:
    """Exports the completion of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    columns = json.loads((run / REPORT).read_text("utf-8"))["columns"]
    graph = graph_of(len(columns))
    return export_graph(run, into, graph, REPORT, net, lambda path: graph.trace(net, path, columns), OPSET)


def graph_of(columns: int) -> Graph:
    """The graph of a net with that many reference models and the steps."""
    draw = functools.partial(random_inputs, columns)
    return Graph("sharing.onnx", ("completed",), draw, sizes=((1,), (3,), (64,)), sample_size=(3,), axes={0: "models"})


def random_inputs(columns: int, size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows, each value known or not; the last row knows nothing, the first assumes and knows the extremes.
    `size`: (rows,)."""
    rng = np.random.default_rng((seed, 62))
    prior, known = rng.random((2, *size, columns), dtype=np.float32)
    mask = (rng.random((*size, columns)) < 0.3).astype(np.float32)
    prior[0, :-1] = np.arange(columns - 1) % 2
    known[0, :-1] = np.arange(columns - 1) % 3 == 0
    prior[:, -1], known[:, -1] = np.exp(rng.normal(-2.0, 2.0, (2, *size)))
    mask[-1] = 0.0
    return {"prior": prior, "known": known, "mask": mask}
