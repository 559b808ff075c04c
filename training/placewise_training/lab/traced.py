"""A net back from the graph that torch's exporter wrote of it. Trains nothing.

The exporter names a weight as the net does, except where a linear layer reads more than rows: it multiplies by the
transposed weight then, under a name of its own, in the order of the layers.
"""

from pathlib import Path
from typing import TypeVar

import onnx
import torch
from onnx import numpy_helper
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def filled(net: Net, path: Path) -> Net:
    """The net with the graph's weights. Raises ValueError for a graph of another net, OSError."""
    graph = onnx.load(str(path)).graph
    arrays = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    transposed = [array.t() for name, array in arrays.items() if name.startswith("onnx::MatMul")]
    wanted = net.state_dict()
    absent = [name for name in wanted if name not in arrays]
    if len(absent) != len(transposed):
        raise ValueError(f"{path}: not a graph of this net; train it anew, without --start")
    found = {**arrays, **dict(zip(absent, transposed, strict=True))}
    try:
        net.load_state_dict({name: found[name] for name in wanted})
    except RuntimeError as error:
        raise ValueError(f"{path}: the graph does not fit this net: train without --start") from error
    return net.eval()
