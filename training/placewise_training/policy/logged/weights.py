"""Harmony's policy net back from the graphs that are served, so that it can be trained on. Trains nothing.

The graphs are written by hand (serving.py): which number of theirs is which weight of the net is seen by writing the
graphs of a net whose weights are their own numbers. A bias of the keys is left out there, as it changes no answer, and
one of the values is folded into a later bias: both come back as zeros. The value head, for reinforcement, is new.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from placewise_core.basics.arrays import Float32
from placewise_core.inputs.cluster import feature_schema
from placewise_models.policy import POLICY_GRAPHS
from placewise_training.policy.graphs import write_onnx
from placewise_training.policy.net import EdgeLayer, PolicyNet

_REPORT = "policy.json"
_MARK = 0.25  # no constant of the graphs ends so: it tells weights from these


def begun(bundle: Path) -> PolicyNet:
    """The net of a bundle. Raises ValueError for one of other features or of another form, OSError."""
    report = json.loads((bundle / _REPORT).read_text("utf-8"))
    if report["feature_schema"] != feature_schema("policy")["hash"]:
        raise ValueError(
            f"{bundle}: its net reads other features than this version writes; start from a bundle of this version"
        )
    net = PolicyNet(**report["dims"])
    found = parameters_to_vector(net.parameters()).detach().clone()
    with TemporaryDirectory() as name:
        write_onnx(_numbered(report["dims"]), Path(name))
        for number, value in zip(_arrays(Path(name)), _arrays(bundle), strict=True):
            if number.shape != value.shape:
                raise ValueError(f"{bundle}: its graphs have another version's form; start from one of this version")
            is_weight = number % 1.0 == _MARK
            found[number[is_weight].astype(np.int64)] = torch.from_numpy(value[is_weight])
    vector_to_parameters(found, net.parameters())
    _without_folded(net)
    return net.eval()


def _numbered(shape: dict[str, int]) -> PolicyNet:
    """A net whose n-th weight is n + _MARK."""
    net = PolicyNet(**shape)
    count = sum(each.numel() for each in net.parameters())
    vector_to_parameters(torch.arange(count, dtype=torch.float32) + _MARK, net.parameters())
    _without_folded(net)
    return net


def _without_folded(net: PolicyNet) -> None:
    """Without the biases of keys and values."""
    with torch.no_grad():
        for layer in net.encoder.layers:
            assert isinstance(layer, EdgeLayer)
            layer.qkv.bias[layer.width :] = 0.0


def _arrays(folder: Path) -> Iterator[Float32]:
    for file in POLICY_GRAPHS:
        arrays = (numpy_helper.to_array(each) for each in onnx.load(str(folder / file)).graph.initializer)
        yield from (array.copy() for array in arrays if array.dtype == np.float32)
