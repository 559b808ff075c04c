"""Writes the reward model as it is served (`reward.onnx`) and completes its report (`reward.json`). Trains nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from placewise_core.inputs.cluster import PART_FEATURES, feature_schema
from placewise_training.lab.export import Graph, export_graph
from placewise_training.lab.onnx_graph import OPSET
from placewise_training.reward.net import RewardNet
from placewise_training.reward.serving import serving_reward
from placewise_training.reward.train import CHECKPOINT, REPORT
from placewise_training.reward.weights import load_net


def export_reward(run: Path, into: Path) -> Path:
    """Exports the best net of a training run; the path of the model. Raises ParityError or ValueError."""
    net = load_net(run / CHECKPOINT)
    return export_graph(run, into, GRAPH, REPORT, net, lambda path: write_onnx(net, path), OPSET)


def write_onnx(net: RewardNet, path: Path) -> None:
    """The net alone, its feature schema in the model's own metadata."""
    model = serving_reward(net.eval(), PART_FEATURES)
    onnx.helper.set_model_props(model, {"feature_schema": str(feature_schema("reward")["hash"])})
    onnx.save(model, str(path))


def random_inputs(size: tuple[int, ...], seed: int) -> dict[str, NDArray[Any]]:
    """Tokens of random jobs on random nodes; all but the first placement end in padding. `size`: (placements,
    tokens)."""
    rng = np.random.default_rng((seed, 41))
    tokens = size[1]
    job = rng.integers(0, max(1, tokens // 2), size)
    job[1:, 1 + tokens // 2 :] = -1
    return {
        "tokens": rng.uniform(0.0, 1.5, (*size, PART_FEATURES)).astype(np.float32),
        "job": job,
        "node": np.where(job < 0, -1, rng.integers(0, 6, size)),
    }


GRAPH = Graph(
    "reward.onnx",
    ("speed", "spread"),
    random_inputs,
    sizes=((1, 1), (1, 17), (8, 24), (3, 96)),
    sample_size=(2, 4),
    axes={},
    is_used=lambda inputs: inputs["job"] >= 0,
)
