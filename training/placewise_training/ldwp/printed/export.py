"""Writes `ldwp_paper.onnx` and completes its report. Trains nothing."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_core.inputs.ldwp_paper import columns
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT
from placewise_training.lab.export import OPSET, Graph, export_graph
from placewise_training.ldwp.agent import TYPES
from placewise_training.ldwp.printed.train import CHECKPOINT, load_net


def export_ldwp_paper(run: Path, into: Path) -> Path:
    """Exports the net of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    names = columns(TYPES, net.nodes)

    def draw(size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
        rng = np.random.default_rng((*size, seed, 64))
        return {"state": rng.random((*size, len(names)), dtype=np.float32)}

    graph = Graph(LDWP_PAPER_MODEL, ("q",), draw, sizes=((1,), (20,)), sample_size=(2,), axes={0: "batch"})
    return export_graph(run, into, graph, LDWP_PAPER_REPORT, net, lambda path: graph.trace(net, path, names), OPSET)
