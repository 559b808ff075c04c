"""Writes the graphs of Harmony's policy and completes their report (`policy.json`). Trains nothing."""

from pathlib import Path

from placewise_models.policy import POLICY_GRAPHS
from placewise_training.lab.export import export
from placewise_training.lab.onnx_graph import OPSET
from placewise_training.policy.checkpoint import CHECKPOINT, load_net
from placewise_training.policy.graphs import parity, sample_of, write_onnx
from placewise_training.policy.train import REPORT, SCHEMA


def export_policy(run: Path, into: Path) -> tuple[Path, ...]:
    """Exports the best net of a training run; the paths of its graphs. Raises ParityError or ValueError."""
    net = load_net(run / CHECKPOINT)
    return export(
        run,
        into,
        POLICY_GRAPHS,
        REPORT,
        lambda folder: write_onnx(net, folder),
        lambda folder: parity(net, folder),
        sample_of,
        schema=SCHEMA,
        opset=OPSET,
    )
