"""A served reward model back as a net that can be trained on: the inverse of serving.py. Trains nothing.

The served graph leaves out a bias of the keys, which changes no answer, and folds one of the values into later weights:
both come back as zeros, and the speeds are those of the graph. The uncertainty stays untrained. Training it takes
seconds.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from placewise_core.inputs.cluster import PART_FEATURES, earlier_schemas, feature_schema
from placewise_training.lab.onnx_graph import linears
from placewise_training.reward.net import RelationLayer, RewardNet

Weights = Iterator[NDArray[np.float32]]


def load_net(checkpoint: Path) -> RewardNet:
    """The best net of a training run. Raises ValueError if it was trained on other features than today's."""
    stored = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if stored["feature_schema"] != feature_schema("reward")["hash"]:
        raise ValueError(f"{checkpoint}: trained on other features than this version encodes; train it again")
    shape = stored["shape"]
    net = RewardNet(PART_FEATURES, shape["width"], shape["heads"], shape["layers"], shape["members"])
    net.load_state_dict(stored["best"])
    return net.eval()


def file_of(path: Path) -> Path:
    """The file of the weights: that of a bundle's folder, or itself."""
    return path / "reward.onnx" if path.is_dir() else path


def begun(path: Path) -> RewardNet:
    """The net of a checkpoint, of a graph, or of a bundle. Raises ValueError."""
    path = file_of(path)
    return net_of(path) if path.suffix == ".onnx" else load_net(path)


def net_of(path: Path) -> RewardNet:
    """The net behind a reward.onnx. One of an earlier release, which reads fewer columns, gives the others no weight
    yet. Raises ValueError for one of other features or of another form."""
    model = onnx.load(str(path))
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    if metadata.get("feature_schema") not in (feature_schema("reward")["hash"], *earlier_schemas("reward")):
        raise ValueError(
            f"{path}: its net reads other features than this version writes; start from a bundle of this version"
        )
    arrays = [numpy_helper.to_array(each) for each in model.graph.initializer]
    weights = [array for array in arrays if array.dtype == np.float32 and array.size > 1]  # else: a bound, an axis
    weights[0] = np.pad(weights[0], ((0, PART_FEATURES - len(weights[0])), (0, 0)))
    heads = [array.shape[0] for array in weights if array.ndim == 2 and array.shape[1] == len(_RELATIONS)]
    width = weights[0].shape[1]
    members = weights[_AROUND + _PER_LAYER * len(heads)].shape[1]
    net = RewardNet(PART_FEATURES, width, heads[0], len(heads), members)
    try:
        with torch.no_grad():
            _fill(net, iter(weights))
    except (RuntimeError, StopIteration) as error:
        raise ValueError(f"{path}: not a graph that this version writes") from error
    return net.eval()


_AROUND, _PER_LAYER = 8, 15  # weights and biases before the heads: of the embedding, the norm and the hidden layer
_RELATIONS = ("same job", "same node", "padding")  # columns of what pairs of tokens add to a head's scores


def _fill(net: RewardNet, weights: Weights) -> None:
    """In the order in which serving.py writes them."""
    _mlp(net.embed, weights)
    for layer in net.layers:
        assert isinstance(layer, RelationLayer)
        _layer(layer, weights)
    _norm(net.norm, weights)
    _linear(net.hidden, weights)
    for weight, bias in ((net.level, net.level_bias), (net.scale, net.scale_bias)):
        weight.copy_(_next(weights).t())
        bias.copy_(_next(weights))


def _layer(layer: RelationLayer, weights: Weights) -> None:
    width = layer.width
    _norm(layer.before_attention, weights)
    layer.qkv.bias.zero_()
    query, query_bias, key, value = (_next(weights) for _ in range(4))
    layer.qkv.weight.copy_(torch.cat([query.t(), key.t(), value.t()]))
    layer.qkv.bias[:width] = query_bias
    layer.relation.copy_(_next(weights)[:, :2].t())
    _linear(layer.mix, weights)
    _norm(layer.before_dense, weights)
    _mlp(layer.dense, weights)


def _mlp(layers: nn.Sequential, weights: Weights) -> None:
    for layer in linears(layers):
        _linear(layer, weights)


def _linear(layer: nn.Linear, weights: Weights) -> None:
    layer.weight.copy_(_next(weights).t())
    layer.bias.copy_(_next(weights))


def _norm(layer: nn.LayerNorm, weights: Weights) -> None:
    layer.weight.copy_(_next(weights))
    layer.bias.copy_(_next(weights))


def _next(weights: Weights) -> Tensor:
    return torch.from_numpy(next(weights).copy())
