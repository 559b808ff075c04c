"""Exports a trained policy: its graphs, parity with ONNX Runtime checked before anything is written.

Completes `policy.json` with the sample the service checks when it loads. The manifest, with the checksums, is written
by `placewise bundle build`.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from placewise_models.policy import POLICY_GRAPHS
from placewise_training.lab.onnx_graph import OPSET
from placewise_training.policy.checkpoint import CHECKPOINT, load_net
from placewise_training.policy.graphs import parity, sample_of, write_onnx
from placewise_training.policy.train import REPORT, SCHEMA

TOLERANCE = 1e-5  # absolute and relative


class PolicyParityError(RuntimeError):
    """ONNX Runtime and torch disagree: the export is wrong, nothing was written."""


def export_policy(run: Path, into: Path) -> tuple[Path, ...]:
    """Exports the best net of a training run; the paths of its graphs. Raises PolicyParityError or ValueError."""
    net = load_net(run / CHECKPOINT)
    into.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=into) as made:
        write_onnx(net, Path(made))
        worst = parity(net, Path(made))
        if worst > TOLERANCE:
            raise PolicyParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
        report = json.loads((run / REPORT).read_text("utf-8"))
        report |= {"schema": SCHEMA, "opset": OPSET, "parity": worst, "sample": sample_of(Path(made))}
        (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
        return tuple((Path(made) / file).replace(into / file) for file in POLICY_GRAPHS)
