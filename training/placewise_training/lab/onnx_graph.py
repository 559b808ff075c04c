"""ONNX graphs written by hand, for nets whose operators cost less to run than to start. Knows no net.

The exporter's graphs ask for shapes at run time and split operators; a net that answers in a fraction of a
millisecond would spend half of it there.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

OPSET = 23  # the first with Attention
_IR_VERSION = 10

Shape = tuple[int | str, ...]


def linears(layers: Iterable[nn.Module]) -> list[nn.Linear]:
    """The linear layers among these."""
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


class Graph:
    """A graph under construction: each method adds one operator and returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    @cached_property
    def first(self) -> str:
        """[0]: the first axis, or the start of a slice."""
        return self.of(np.array([0]))

    def of(self, values: Tensor | NDArray[Any] | np.float32) -> str:
        """A weight or a constant."""
        array = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: float | str | Sequence[int]) -> str:
        """An operator with one result."""
        out = name or f"{kind}_{len(self._nodes)}"
        node = helper.make_node(kind, list(inputs), [out], f"node_{out}")
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return out

    def split(self, x: str, sizes: str) -> tuple[str, str]:
        """The first rows and the rest, by two sizes."""
        outs = (f"{x}_head", f"{x}_tail")
        self._nodes.append(helper.make_node("Split", [x, sizes], list(outs), f"node_{x}_split", axis=0))
        return outs

    def linear(self, x: str, layer: nn.Linear, name: str = "") -> str:
        weight, bias = layer.weight.t(), layer.state_dict().get("bias")
        if bias is None:
            return self.op("MatMul", x, self.of(weight), name=name)
        return self.op("Gemm", x, self.of(weight), self.of(bias), name=name)

    def mlp(self, x: str, layers: nn.Sequential) -> str:
        """Linear, ReLU, linear."""
        first, second = linears(layers)
        return self.linear(self.op("Relu", self.linear(x, first)), second)

    def wide(self, x: str, layers: nn.ModuleList) -> str:
        """Linear layers without bias, their results side by side."""
        return self.op("MatMul", x, self.of(torch.cat([layer.weight.t() for layer in linears(layers)], dim=1)))

    def norm(self, x: str, layer: nn.LayerNorm) -> str:
        return self.op("LayerNormalization", x, self.of(layer.weight), self.of(layer.bias), epsilon=layer.eps)

    def model(
        self, inputs: dict[str, Shape], outputs: dict[str, Shape], integers: tuple[str, ...] = ()
    ) -> onnx.ModelProto:
        """The finished graph; `integers` are the inputs that are int64, all else is float32."""
        kinds = {name: TensorProto.INT64 if name in integers else TensorProto.FLOAT for name in (*inputs, *outputs)}
        takes, gives = (
            [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in named.items()]
            for named in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, "policy", takes, gives, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        return model
