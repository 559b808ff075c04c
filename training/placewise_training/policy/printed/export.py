"""Writes `harmony_paper.onnx` and completes its report. Trains nothing."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewise_core.inputs.harmony_paper import columns
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT
from placewise_training.lab.export import OPSET, Arrays, Graph, export_graph
from placewise_training.policy.printed.train import CHECKPOINT, load_net


def export_harmony_paper(run: Path, into: Path) -> Path:
    """Exports the best net of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    names = columns(net.shape["nodes"])

    def draw(size: tuple[int, ...], seed: int) -> dict[str, NDArray[np.float32]]:
        """Rows of (batch, jobs), the last of each state padding if it has several."""
        rng = np.random.default_rng((*size, seed, 63))
        mask = np.ones(size, dtype=np.float32)
        mask[:, 1:][:, -1:] = 0.0
        return {"rows": rng.uniform(0.0, 1.2, (*size, len(names))).astype(np.float32), "mask": mask}

    def is_job(inputs: Arrays) -> NDArray[np.bool_]:
        return np.asarray(inputs["mask"] > 0)

    sizes = ((1, 1), (1, 7), (4, 20))
    graph = Graph(
        HARMONY_PAPER_MODEL, ("logits",), draw, sizes, sample_size=(1, 3), axes={0: "batch", 1: "jobs"}, is_used=is_job
    )
    return export_graph(run, into, graph, HARMONY_PAPER_REPORT, net, lambda path: graph.trace(net, path, names), OPSET)
