"""Completion of co-runs: torch → ONNX, parity checked before anything is written. Trains nothing.

Writes `sharing.onnx` and completes `sharing.json`, which carries the sample the service checks when it loads a bundle.
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

from placewise_training.reward.export import OPSET, TOLERANCE, ParityError
from placewise_training.sharing.net import CoRunCompletion
from placewise_training.sharing.train import CHECKPOINT, REPORT, load_net

MODEL = "sharing.onnx"
_INPUTS = ("prior", "known", "mask")
_SIZES = (1, 3, 64)

Inputs = Mapping[str, NDArray[np.float32]]


def export_sharing(run: Path, into: Path) -> Path:
    """Exports the completion of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    report = json.loads((run / REPORT).read_text("utf-8"))
    columns = tuple(report["columns"])
    into.mkdir(parents=True, exist_ok=True)
    part = into / "sharing.onnx.part"
    write_onnx(net, part, columns)
    worst = parity(net, part, len(columns))
    if worst > TOLERANCE:
        part.unlink()
        raise ParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
    report |= {"opset": OPSET, "parity": worst, "sample": sample_of(part, len(columns))}
    (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    part.replace(into / MODEL)
    return into / MODEL


def write_onnx(net: CoRunCompletion, path: Path, columns: tuple[str, ...]) -> None:
    """The net alone, with the names of its columns in the model's own metadata."""
    example = tuple(torch.from_numpy(array) for array in random_inputs(2, len(columns), 0).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tracer, as for the reward model
        torch.onnx.export(
            net.eval(),
            example,
            str(path),
            input_names=list(_INPUTS),
            output_names=["completed"],
            dynamic_axes={name: {0: "models"} for name in (*_INPUTS, "completed")},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"columns": ",".join(columns)})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def parity(net: CoRunCompletion, path: Path, columns: int) -> float:
    """Largest difference between torch and ONNX Runtime on random rows and edges; of speeds, which end at 1, and of
    steps relative to them."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for seed, rows in enumerate(_SIZES * 3):
        inputs = random_inputs(rows, columns, seed)
        with torch.no_grad():
            ours = net(*(torch.from_numpy(array) for array in inputs.values())).numpy()
        gaps = np.abs(ours - session.run(["completed"], dict(inputs))[0]) / np.maximum(1.0, np.abs(ours))
        worst = max(worst, float(gaps.max()))
    return worst


def random_inputs(rows: int, columns: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows, each value known or not; the last row knows nothing, the first assumes and knows the extremes."""
    rng = np.random.default_rng((seed, 62))
    prior, known = rng.random((2, rows, columns), dtype=np.float32)
    mask = (rng.random((rows, columns)) < 0.3).astype(np.float32)
    prior[0, :-1] = np.arange(columns - 1) % 2
    known[0, :-1] = np.arange(columns - 1) % 3 == 0
    prior[:, -1], known[:, -1] = np.exp(rng.normal(-2.0, 2.0, (2, rows)))
    mask[-1] = 0.0
    return {"prior": prior, "known": known, "mask": mask}


def sample_of(path: Path, columns: int) -> dict[str, Any]:
    """A small input with the answer it must give, as plain lists."""
    inputs = {name: np.round(array, 3) for name, array in random_inputs(3, columns, seed=99).items()}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    completed = session.run(["completed"], dict(inputs))[0]
    return {**{name: array.tolist() for name, array in inputs.items()}, "completed": completed.tolist()}
