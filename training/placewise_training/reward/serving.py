"""The reward model as it is served: the function of net.py as an ONNX graph written by hand (onnx_graph.py).

Weights are shared with the trained form; the parity of both is checked at every export. Answers for padding differ, and
mean nothing in either form.
"""

import numpy as np
import onnx
import torch
from onnx import TensorProto

from placewise_core.inputs.reward import REPORTED
from placewise_training.lab.onnx_graph import Graph
from placewise_training.reward.ensemble import PriorEnsemble
from placewise_training.reward.net import (
    LEAST,
    LEAST_SCALE,
    LOWEST,
    MOST,
    MOST_SCALE,
    RelationLayer,
    RewardNet,
)

# Added to the scores of padding. No activation comes near it, so nothing of padding is left in a float32 sum; were it
# lower, its share would be a denormal number, and arithmetic with those takes tens of times as long.
_MASKED = -60.0
_LEAST_REPORTED = 1e-3


def serving_reward(net: RewardNet, features: int) -> onnx.ModelProto:
    """tokens (B, P, features), job and node (B, P) as RewardNet's → speed and spread (B, P)."""
    graph = Graph()
    width = net.norm.normalized_shape[0]
    pairs, same_job = _pairs(graph)
    shape = graph.op("Concat", graph.op("Shape", "tokens", start=0, end=2), graph.of(np.array([width])), axis=0)
    flat = graph.of(np.array([-1, width]))
    x = graph.mlp(graph.op("Reshape", "tokens", graph.of(np.array([-1, features]))), net.embed)  # (B · P, D)
    for layer in net.layers:
        if isinstance(layer, RelationLayer):
            x = _layer(graph, layer, x, pairs, shape, flat)
    x = graph.norm(x, net.norm)
    last = graph.of(np.array([2]))
    tokens_of_job = graph.op("ReduceSum", same_job, last, keepdims=1)  # (B, P, 1), 1 or more
    mean = graph.op("Div", graph.op("MatMul", same_job, graph.op("Reshape", x, shape)), tokens_of_job)
    both = graph.op("Concat", graph.op("Reshape", mean, flat), _slowest(graph, x, same_job), axis=1)
    hidden = graph.op("Relu", graph.linear(both, net.hidden))  # (B · P, D)
    reported = _reported(graph, same_job, tokens_of_job)
    members = graph.op("Concat", graph.op("Shape", "job"), graph.of(np.array([-1])), axis=0)
    level = graph.op("Gemm", hidden, graph.of(net.level.t()), graph.of(net.level_bias))
    level = graph.op("Add", graph.op("Reshape", level, members), reported)  # (B, P, members)
    level = _clipped(graph, level, LEAST, MOST)
    scale = graph.op("Gemm", hidden, graph.of(net.scale.t()), graph.of(net.scale_bias))
    scale = _clipped(graph, graph.op("Reshape", scale, members), LEAST_SCALE, MOST_SCALE)
    _answers(graph, level, scale, _uncertainty(graph, net.uncertainty), last)
    inputs = {"tokens": ("B", "P", features), "job": ("B", "P"), "node": ("B", "P")}
    return graph.model(inputs, {"speed": ("B", "P"), "spread": ("B", "P")}, integers=("job", "node"))


def _pairs(graph: Graph) -> tuple[str, str]:
    """(B, 3, P · P) float32: pairs of tokens of one job, on one node, and those whose second is padding; the first of
    them also as (B, P, P)."""
    one, two = graph.of(np.array([1])), graph.of(np.array([2]))
    first, second = graph.op("Unsqueeze", "job", two), graph.op("Unsqueeze", "job", one)
    same_job = graph.op("Equal", first, second)
    same_node = graph.op("Equal", graph.op("Unsqueeze", "node", two), graph.op("Unsqueeze", "node", one))
    is_padding = graph.op("Less", second, graph.op("Mul", first, graph.of(np.array([0]))))
    by_kind = graph.op("Concat", *(graph.op("Unsqueeze", of, one) for of in (same_job, same_node, is_padding)), axis=1)
    flat = graph.op("Reshape", graph.op("Cast", by_kind, to=TensorProto.FLOAT), graph.of(np.array([0, 3, -1])))
    return flat, graph.op("Cast", same_job, to=TensorProto.FLOAT)


def _layer(graph: Graph, layer: RelationLayer, x: str, pairs: str, shape: str, flat: str) -> str:
    """RelationLayer on (B · P, D)."""
    tokens = graph.norm(x, layer.before_attention)
    query, key, value = layer.qkv.weight.chunk(3)
    query_bias, _, value_bias = layer.qkv.bias.chunk(3)
    # A bias of the keys adds the same to every score of a row; one of the values comes out of the mean as it is.
    asked = graph.op("Gemm", tokens, graph.of(query.t()), graph.of(query_bias))
    keys, values = (graph.op("MatMul", tokens, graph.of(weight.t())) for weight in (key, value))
    mixed = graph.op(
        "Attention",
        *(graph.op("Reshape", each, shape) for each in (asked, keys, values)),
        _bias(graph, layer, pairs),
        q_num_heads=layer.heads,
        kv_num_heads=layer.heads,
    )
    after = layer.mix.bias + layer.mix.weight @ value_bias
    mixed = graph.op("Gemm", graph.op("Reshape", mixed, flat), graph.of(layer.mix.weight.t()), graph.of(after))
    x = graph.op("Add", x, mixed)
    return graph.op("Add", x, graph.mlp(graph.norm(x, layer.before_dense), layer.dense))


def _bias(graph: Graph, layer: RelationLayer, pairs: str) -> str:
    """(B, H, P, P): what pairs add to each head's scores."""
    relation = layer.relation.detach().numpy()  # (2, H)
    weights = np.concatenate([relation, np.full((1, layer.heads), _MASKED, np.float32)]).T
    by_head = graph.op("MatMul", graph.of(weights), pairs)  # (B, H, P · P)
    tokens = graph.op("Shape", "job", start=1, end=2)
    shape = graph.op("Concat", graph.of(np.array([0, layer.heads])), tokens, tokens, axis=0)
    return graph.op("Reshape", by_head, shape)


def _slowest(graph: Graph, x: str, same_job: str) -> str:
    """(B · P, D) from such: the maximum over the tokens of each token's job, gathered at the first of them, as an array
    over pairs of tokens would be the widest of the graph. Padding is a job of its own."""
    one = graph.of(np.array([1]))
    placements, tokens = graph.op("Shape", "job", start=0, end=1), graph.op("Shape", "job", start=1, end=2)
    scalar = graph.of(np.array([], dtype=np.int64))
    each = graph.op("Range", graph.of(np.array(0)), graph.op("Reshape", placements, scalar), graph.of(np.array(1)))
    before = graph.op("Unsqueeze", graph.op("Mul", each, tokens), one)  # (B, 1) rows of the placements before
    first = graph.op("Add", graph.op("ArgMax", same_job, axis=2, keepdims=0), before)
    first = graph.op("Reshape", first, graph.of(np.array([-1, 1])))
    empty = graph.op("Expand", graph.of(np.float32(LOWEST)), graph.op("Shape", x))
    return graph.op("GatherND", graph.op("ScatterND", empty, first, x, reduction="max"), first)


def _reported(graph: Graph, same_job: str, tokens_of_job: str) -> str:
    """(B, P, 1): the logarithm of the speed that the hosts of each token's job report, 0 if they report none."""
    third = graph.of(np.array([2]))
    has = graph.op("Slice", "tokens", *_columns(graph, REPORTED.start), third)
    speed = graph.op("Slice", "tokens", *_columns(graph, REPORTED.start + 1), third)
    speed = graph.op("Log", graph.op("Max", speed, graph.of(np.float32(_LEAST_REPORTED))))
    return graph.op("Div", graph.op("MatMul", same_job, graph.op("Mul", speed, has)), tokens_of_job)


def _columns(graph: Graph, at: int) -> tuple[str, str]:
    """The begin and the end of a slice of one column."""
    return graph.of(np.array([at])), graph.of(np.array([at + 1]))


def _uncertainty(graph: Graph, uncertainty: PriorEnsemble) -> str:
    """(B, 1): the ensemble's disagreement on the new job's pooled features; both kinds of members as one layer."""
    is_new = graph.op("Cast", graph.op("Equal", "job", graph.of(np.array(0))), to=TensorProto.FLOAT)
    is_new = graph.op("Unsqueeze", is_new, graph.of(np.array([1])))  # (B, 1, P)
    count = graph.op("ReduceSum", is_new, graph.of(np.array([2])))
    count = graph.op("Max", count, graph.of(np.float32(1.0)))
    of_new = graph.op("Div", graph.op("MatMul", is_new, "tokens"), count)
    column = graph.op("Transpose", is_new, perm=[0, 2, 1])
    shown = graph.op("Where", graph.op("Cast", column, to=TensorProto.BOOL), "tokens", graph.of(np.float32(-1.0)))
    most = graph.op("ReduceMax", shown, graph.of(np.array([1])))
    pooled = graph.op("Squeeze", graph.op("Concat", of_new, most, axis=2), graph.of(np.array([1])))  # (B, 2F)
    into = torch.cat([uncertainty.learned.into, uncertainty.prior.into], dim=1) / uncertainty.deviation.unsqueeze(1)
    bias = torch.cat([uncertainty.learned.bias, uncertainty.prior.bias]) - uncertainty.centre @ into
    members = len(uncertainty.learned.out)
    own = torch.eye(members).unsqueeze(2)  # each member reads its own hidden units only
    out = torch.cat([(own * each.out).reshape(members, -1) for each in (uncertainty.learned, uncertainty.prior)], dim=1)
    hidden = graph.op("Relu", graph.op("Gemm", pooled, graph.of(into), graph.of(bias)))
    answers = graph.op("MatMul", hidden, graph.of((uncertainty.gain * out).t()))  # (B, members)
    centred = torch.eye(members) - 1.0 / members
    apart = graph.op("MatMul", answers, graph.of(centred))
    return graph.op("ReduceMean", graph.op("Mul", apart, apart), graph.of(np.array([1])), keepdims=1)


def _answers(graph: Graph, level: str, scale: str, uncertainty: str, last: str) -> None:
    """RewardNet.forward, from the members' levels and scales (B, P, members) and the uncertainty (B, 1)."""
    centre = graph.op("ReduceMean", level, last, keepdims=1)
    graph.op("Exp", graph.op("Squeeze", centre, last), name="speed")
    apart = graph.op("Sub", level, centre)
    disagreement = graph.op("Mul", apart, apart)
    expected = graph.op("Exp", graph.op("Mul", scale, graph.of(np.float32(2.0))))
    variance = graph.op("Add", disagreement, graph.op("Mul", expected, graph.of(np.float32(2.0))))
    variance = graph.op("Add", graph.op("ReduceMean", variance, last, keepdims=0), uncertainty)
    graph.op("Sqrt", variance, name="spread")


def _clipped(graph: Graph, x: str, least: float, most: float) -> str:
    return graph.op("Clip", x, graph.of(np.float32(least)), graph.of(np.float32(most)))
