"""LDWP's Q net: torch → ONNX, parity checked before anything is written, as for the reward model. Trains nothing.

Writes `ldwp.onnx` and completes `ldwp.json`, which carries the sample the service checks when it loads the bundle.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from placewise_core.place.ldwp_rows import COLUMNS
from placewise_training.ldwp.net import NodeDqn
from placewise_training.ldwp.train import CHECKPOINT, REPORT, load_net
from placewise_training.reward.export import OPSET, TOLERANCE, ParityError

MODEL = "ldwp.onnx"
_SIZES = ((1, 1), (1, 11), (4, 64), (1, 300))  # (decisions, nodes)

Inputs = Mapping[str, NDArray[np.float32]]


def export_ldwp(run: Path, into: Path) -> Path:
    """Exports the best net of a training run; the path of the model. Raises ParityError, ValueError."""
    net = load_net(run / CHECKPOINT)
    into.mkdir(parents=True, exist_ok=True)
    part = into / (MODEL + ".part")
    write_onnx(net, part)
    worst = parity(net, part)
    if worst > TOLERANCE:
        part.unlink()
        raise ParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
    report = json.loads((run / REPORT).read_text("utf-8"))
    report |= {"opset": OPSET, "parity": worst, "sample": sample_of(part)}
    (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    part.replace(into / MODEL)
    return into / MODEL


def write_onnx(net: NodeDqn, path: Path) -> None:
    """The net alone, with the names of its columns in the model's own metadata."""
    net.eval()
    example = tuple(torch.from_numpy(array) for array in random_inputs(2, 5, 0).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tracer, as for the reward model
        torch.onnx.export(
            net,
            example,
            str(path),
            input_names=["rows", "mask"],
            output_names=["q"],
            dynamic_axes={name: {0: "decisions", 1: "nodes"} for name in ("rows", "mask", "q")},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    onnx.helper.set_model_props(model, {"columns": ",".join(COLUMNS)})
    onnx.save(model, str(path))


def parity(net: NodeDqn, path: Path) -> float:
    """Largest difference between torch and ONNX Runtime on random nodes, one alone and 300 of them included."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for seed, (decisions, nodes) in enumerate(_SIZES * 2):
        inputs = random_inputs(decisions, nodes, seed)
        with torch.no_grad():
            ours = net(*(torch.from_numpy(array) for array in inputs.values())).numpy()
        theirs = session.run(["q"], dict(inputs))[0]
        is_node = inputs["mask"] > 0
        worst = max(worst, float(np.abs(ours - theirs)[is_node].max()))
    return worst


def random_inputs(decisions: int, nodes: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows; of several decisions the last has half as many nodes."""
    rng = np.random.default_rng((seed, 74))
    mask = np.ones((decisions, nodes), dtype=np.float32)
    if decisions > 1:
        mask[-1, max(1, nodes // 2) :] = 0.0
    rows = rng.random((decisions, nodes, len(COLUMNS)), dtype=np.float32) * mask[..., None]
    return {"rows": rows, "mask": mask}


def sample_of(path: Path) -> dict[str, Any]:
    """A small input with the answer it must give, as plain lists."""
    inputs = {name: np.round(array, 3) for name, array in random_inputs(2, 4, 99).items()}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    q = session.run(["q"], dict(inputs))[0]
    return {**{name: array.tolist() for name, array in inputs.items()}, "q": q.tolist()}
