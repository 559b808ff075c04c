"""torch → ONNX in the form that is served (serving.py): pinned opset, parity with ONNX Runtime checked
before anything is written.

Writes `reward.onnx` and completes `reward.json`, which carries the parity sample the service checks when it loads the
bundle. The manifest, with the checksums, is written by `placewise bundle build`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from placewise_core.features import PART_FEATURES, feature_schema
from placewise_models.reward import RewardRuntime
from placewise_training.lab.onnx_graph import OPSET as SERVED_OPSET
from placewise_training.reward.net import RewardNet
from placewise_training.reward.serving import serving_reward
from placewise_training.reward.train import CHECKPOINT, REPORT, load_net

OPSET = 18  # of the nets that torch's exporter writes
TOLERANCE = 1e-5  # absolute and relative
MODEL = "reward.onnx"
_INPUTS = ("tokens", "job", "node")
_OUTPUTS = ("speed", "spread")
# Sizes the parity is checked on: one token, one placement, many of both.
_SIZES = ((1, 1), (1, 17), (8, 24), (3, 96))

Inputs = Mapping[str, NDArray[Any]]


class ParityError(RuntimeError):
    """ONNX Runtime and torch disagree: the export is wrong, nothing was written."""


def export_reward(run: Path, into: Path) -> Path:
    """Exports the best net of a training run; the path of the model. Raises ParityError or ValueError."""
    net = load_net(run / CHECKPOINT)
    into.mkdir(parents=True, exist_ok=True)
    part = into / "reward.onnx.part"
    write_onnx(net, part)
    worst = parity(net, part)
    if worst > TOLERANCE:
        part.unlink()
        raise ParityError(f"torch and ONNX Runtime differ by {worst:.2g}")
    report = json.loads((run / REPORT).read_text("utf-8"))
    report |= {"opset": SERVED_OPSET, "parity": worst, "sample": sample_of(part)}
    (into / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    part.replace(into / MODEL)
    return into / MODEL


def write_onnx(net: RewardNet, path: Path) -> None:
    """The net alone, its feature schema in the model's own metadata."""
    model = serving_reward(net.eval(), PART_FEATURES)
    onnx.helper.set_model_props(model, {"feature_schema": str(feature_schema("reward")["hash"])})
    onnx.save(model, str(path))


def parity(net: RewardNet, path: Path) -> float:
    """Largest difference between torch and ONNX Runtime, over 1 + |value|, on random inputs of several sizes."""
    session = RewardRuntime.from_file(path).session
    worst = 0.0
    for seed, (placements, tokens) in enumerate(_SIZES * 3):
        inputs = random_inputs(placements, tokens, seed)
        with torch.no_grad():
            ours = [answer.numpy() for answer in net(*(torch.from_numpy(array) for array in inputs.values()))]
        is_token = inputs["job"] >= 0
        for mine, theirs in zip(ours, session.run(_OUTPUTS, dict(inputs)), strict=True):
            worst = max(worst, float((np.abs(mine - theirs) / (1 + np.abs(mine)))[is_token].max()))
    return worst


def random_inputs(placements: int, tokens: int, seed: int) -> dict[str, NDArray[Any]]:
    """Tokens of random jobs on random nodes; all but the first placement end in padding."""
    rng = np.random.default_rng((seed, 41))
    shape = (placements, tokens)
    job = rng.integers(0, max(1, tokens // 2), shape)
    job[1:, 1 + tokens // 2 :] = -1
    return {
        "tokens": rng.uniform(0.0, 1.5, (*shape, PART_FEATURES)).astype(np.float32),
        "job": job,
        "node": np.where(job < 0, -1, rng.integers(0, 6, shape)),
    }


def sample_of(path: Path) -> dict[str, object]:
    """A small input with the answer it must give, as plain lists."""
    inputs = random_inputs(2, 4, seed=99)
    inputs["tokens"] = np.round(inputs["tokens"], 3)
    answers = RewardRuntime.from_file(path).session.run(_OUTPUTS, dict(inputs))
    named = {**inputs, **dict(zip(_OUTPUTS, answers, strict=True))}
    return {name: array.tolist() for name, array in named.items()}
