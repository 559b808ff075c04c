"""Exports a trained policy: both graphs, parity with ONNX Runtime checked before anything is written.

Completes `policy.json` with the sample the service checks when it loads. The manifest, with the checksums, is written
by `placewise bundle build`.
"""

import json
from pathlib import Path

from placewise_training.models.onnx_graph import OPSET
from placewise_training.policy_checkpoint import CHECKPOINT, load_net
from placewise_training.policy_onnx import DECODER, ENCODER, parity, sample_of, write_onnx
from placewise_training.train_policy import REPORT, SCHEMA

TOLERANCE = 1e-5  # absolute and relative


class PolicyParityError(RuntimeError):
    """ONNX Runtime and torch disagree: the export is wrong, nothing was written."""


def export_policy(run: Path, into: Path) -> tuple[Path, Path]:
    """Exports the best net of a training run; the paths of both graphs. Raises PolicyParityError or ValueError."""
    net = load_net(run / CHECKPOINT)
    into.mkdir(parents=True, exist_ok=True)
    parts = (into / f"{ENCODER}.part", into / f"{DECODER}.part")
    write_onnx(net, *parts)
    worst = parity(net, *parts)
    if worst > TOLERANCE:
        for part in parts:
            part.unlink()
        raise PolicyParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
    report = json.loads((run / REPORT).read_text("utf-8"))
    report |= {"schema": SCHEMA, "opset": OPSET, "parity": worst, "sample": sample_of(*parts)}
    (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return parts[0].replace(into / ENCODER), parts[1].replace(into / DECODER)
