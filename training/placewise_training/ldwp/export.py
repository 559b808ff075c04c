"""Writes LDWP's Q net (`ldwp.onnx`) and completes its report (`ldwp.json`). Trains nothing."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_core.inputs.ldwp import COLUMNS
from placewise_training.lab.export import OPSET, Graph, export_graph
from placewise_training.ldwp.train import CHECKPOINT, REPORT, load_net


def export_ldwp(run: Path, into: Path) -> Path:
    """Exports the best net of a training run; the path of the model. Raises ParityError, ValueError."""
    net = load_net(run / CHECKPOINT)
    return export_graph(run, into, GRAPH, REPORT, net, lambda path: GRAPH.trace(net, path, COLUMNS), OPSET)


def random_inputs(size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows; of several decisions the last has half as many nodes. `size`: (decisions, nodes)."""
    rng = np.random.default_rng((seed, 74))
    decisions, nodes = size
    mask = np.ones(size, dtype=np.float32)
    if decisions > 1:
        mask[-1, max(1, nodes // 2) :] = 0.0
    rows = rng.random((*size, len(COLUMNS)), dtype=np.float32) * mask[..., None]
    return {"rows": rows, "mask": mask}


GRAPH = Graph(
    "ldwp.onnx",
    ("q",),
    random_inputs,
    sizes=((1, 1), (1, 11), (4, 64), (1, 300)),
    sample_size=(2, 4),
    axes={0: "decisions", 1: "nodes"},
    is_used=lambda inputs: inputs["mask"] > 0,
)
