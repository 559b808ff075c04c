"""Completion net: torch → ONNX, parity checked before anything is written, as for the reward model. Trains nothing.

Writes `stdm.onnx` and completes `stdm.json`, which carries the sample the service checks when it loads the bundle.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from placewise_core.place.subtask_metrics import METRICS
from placewise_training.reward.export import OPSET, TOLERANCE, ParityError
from placewise_training.stdm.net import MetricCompletion
from placewise_training.stdm.train import CHECKPOINT, REPORT, load_net

MODEL = "stdm.onnx"
_SIZES = (1, 3, 64)

Inputs = Mapping[str, NDArray[np.float32]]


def export_stdm(run: Path, into: Path) -> Path:
    """Exports the completion of a training run; the path of the model. Raises ParityError."""
    net = load_net(run / CHECKPOINT)
    into.mkdir(parents=True, exist_ok=True)
    part = into / "stdm.onnx.part"
    write_onnx(net, part, METRICS)
    worst = parity(net, part)
    if worst > TOLERANCE:
        part.unlink()
        raise ParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
    report = json.loads((run / REPORT).read_text("utf-8"))
    report |= {"opset": OPSET, "parity": worst, "sample": sample_of(part)}
    (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    part.replace(into / MODEL)
    return into / MODEL


def write_onnx(net: MetricCompletion, path: Path, columns: Sequence[str]) -> None:
    """The net alone, with the names of its columns in the model's own metadata."""
    example = tuple(torch.from_numpy(array) for array in random_inputs(2, 0).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the tracer, as for the reward model
        torch.onnx.export(
            net.eval(),
            example,
            str(path),
            input_names=["known", "mask"],
            output_names=["completed"],
            dynamic_axes={name: {0: "subtasks"} for name in ("known", "mask", "completed")},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"columns": ",".join(columns)})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def parity(net: MetricCompletion, path: Path) -> float:
    """Largest difference between torch and ONNX Runtime on random rows, rows with nothing known among them."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for seed, rows in enumerate(_SIZES * 3):
        inputs = random_inputs(rows, seed)
        with torch.no_grad():
            ours = net(*(torch.from_numpy(array) for array in inputs.values())).numpy()
        worst = max(worst, float(np.abs(ours - session.run(["completed"], dict(inputs))[0]).max()))
    return worst


def random_inputs(rows: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random rows, each value known or not; the last row knows nothing."""
    rng = np.random.default_rng((seed, 61))
    mask = (rng.random((rows, len(METRICS))) < 0.3).astype(np.float32)
    mask[-1] = 0.0
    return {"known": rng.random((rows, len(METRICS)), dtype=np.float32), "mask": mask}


def sample_of(path: Path) -> dict[str, Any]:
    """A small input with the answer it must give, as plain lists."""
    inputs = random_inputs(3, seed=99)
    inputs["known"] = np.round(inputs["known"], 3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    completed = session.run(["completed"], dict(inputs))[0]
    return {**{name: array.tolist() for name, array in inputs.items()}, "completed": completed.tolist()}
