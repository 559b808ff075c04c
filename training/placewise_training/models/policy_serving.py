"""Harmony's policy as it is served: the function of models.policy for one request, as ONNX graphs written by hand.

A decision runs a net this small in a quarter of a millisecond, of which half would go into starting operators. So the
graphs have few of them: no batch axis and no mask, so that every linear layer is one fused product (Gemm); shapes come
in as inputs; attention is one operator (opset 23). The last layer gives states of nodes and new jobs alone, which is
what the decoder reads. What the decoder would compute of the states alone, anew for each task, the encoder computes
once. Weights are shared with the trained form; the parity of both is checked at every export.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import nn

from placewise_core.features import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES
from placewise_core.policy_inputs import DECODER_INPUTS, ENCODER_INPUTS, ENCODER_OUTPUTS
from placewise_training.models.onnx_graph import Graph, Shape, linears
from placewise_training.models.policy import (
    LINEAR_MINUTES,
    MINUTES_SCALE,
    MOST_LOG_MINUTES,
    EdgeLayer,
    PolicyDecoder,
    PolicyNet,
)


def serving_encoder(net: PolicyNet) -> onnx.ModelProto:
    """ENCODER_INPUTS as policy_inputs.encoder_inputs makes them → node_state (M, D), job_state (N, D), minutes (N,)."""
    encoder, decoder, graph = net.encoder, net.decoder, Graph()
    width = decoder.dense.in_features
    of_node = graph.mlp("nodes", encoder.of_node)  # (M, D)
    of_job = graph.mlp("jobs", encoder.of_job)  # (J, D)
    # What every token sends along an edge, a row for each role: of (P, D) each, and the two by turns.
    sent = graph.op("Concat", graph.wide(of_node, encoder.node_to_job), graph.wide(of_job, encoder.job_to_node), axis=0)
    sent = graph.op("Reshape", sent, graph.of(np.array([-1, width])))  # (2P, D)
    own = graph.op("Concat", of_node, of_job, axis=0)
    x = graph.op("Gemm", graph.op("Flatten", "edges", axis=1), sent, own)  # (P, D)
    layers = [layer for layer in encoder.layers if isinstance(layer, EdgeLayer)]
    for layer in layers:
        x = _layer(graph, layer, x, is_last=layer is layers[-1])
    nodes, jobs = graph.split(graph.norm(x, encoder.norm), "sizes")
    graph.linear(nodes, decoder.of_node, name="node_state")
    graph.linear(jobs, decoder.of_job, name="job_state")
    _minutes(graph, encoder.length, jobs)
    shapes: tuple[Shape, ...] = (("M", NODE_FEATURES), ("J", JOB_FEATURES), ("P", "P", 2), (2,), (1,))
    inputs = dict(zip(ENCODER_INPUTS, shapes, strict=True))
    outputs = dict(zip(ENCODER_OUTPUTS, (("M", width), ("N", width), ("N",)), strict=True))
    return graph.model(inputs, outputs, integers=("sizes", "kept"))


def _layer(graph: Graph, layer: EdgeLayer, x: str, *, is_last: bool) -> str:
    """EdgeLayer on (P, D); the last one on all tokens for those of `kept` alone."""
    every = graph.norm(x, layer.before_attention)
    asking, edges = every, "edges"
    if is_last:
        x, asking, edges = (graph.op("Slice", each, graph.first, "kept") for each in (x, every, edges))
    query, key, value = layer.qkv.weight.chunk(3)
    query_bias, _, value_bias = layer.qkv.bias.chunk(3)
    # A bias of the keys adds the same to every score of a row; one of the values comes out of the mean as it is.
    tokens = graph.op("Unsqueeze", every, graph.first)
    asked = graph.op("Gemm", asking, graph.of(query.t()), graph.of(query_bias))
    mixed = graph.op(
        "Attention",
        graph.op("Unsqueeze", asked, graph.first),
        graph.op("MatMul", tokens, graph.of(key.t())),
        graph.op("MatMul", tokens, graph.of(value.t())),
        _bias(graph, layer, edges),
        q_num_heads=layer.heads,
        kv_num_heads=layer.heads,
    )
    mix, after = layer.mix.weight, layer.mix.bias + layer.mix.weight @ value_bias
    mixed = graph.op("Gemm", graph.op("Squeeze", mixed, graph.first), graph.of(mix.t()), graph.of(after))
    x = graph.op("Add", x, mixed)
    return graph.op("Add", x, graph.mlp(graph.norm(x, layer.before_dense), layer.dense))


def _bias(graph: Graph, layer: EdgeLayer, edges: str) -> str:
    """(1, H, Q, P): what the edges (Q, P, 2) add to each head's scores."""
    flat = graph.op("Reshape", edges, graph.of(np.array([-1, 2])))
    by_head = graph.op("Gemm", graph.of(layer.along.weight), flat, transB=1)  # (H, Q · P)
    tokens = graph.op("Shape", "edges", start=1, end=2)
    shape = graph.op("Concat", graph.of(np.array([1, layer.heads, -1])), tokens, axis=0)
    return graph.op("Reshape", by_head, shape)


def _minutes(graph: Graph, length: nn.Linear, job_state: str) -> None:
    """PolicyEncoder.minutes of the new jobs."""
    declared: NDArray[np.float32] = np.zeros((JOB_FEATURES, 1), dtype=np.float32)
    declared[LINEAR_MINUTES] = 1.0 / MINUTES_SCALE
    new = graph.op("Slice", "sizes", graph.of(np.array([1])), graph.of(np.array([2])))
    jobs = graph.op("Slice", "jobs", graph.first, new)
    linear = graph.op("Gemm", jobs, graph.of(declared), graph.of(length.bias))
    found = graph.op("Gemm", job_state, graph.of(length.weight.t()), linear)
    found = graph.op("Clip", found, graph.of(np.float32(0.0)), graph.of(np.float32(MOST_LOG_MINUTES)))
    found = graph.op("Sub", graph.op("Exp", found), graph.of(np.float32(1.0)))
    graph.op("Squeeze", found, graph.of(np.array([1])), name="minutes")


def serving_decoder(net: PolicyDecoder) -> onnx.ModelProto:
    """node_state (M, D) and job_state (1, D) of the encoder, step (M, STEP_FEATURES) → (2M,) logits."""
    graph, width = Graph(), net.dense.in_features
    first, second = linears(net.of_step)
    now = graph.op("Relu", graph.linear("step", first))
    states = graph.op("Add", "node_state", "job_state")
    x = graph.op("Relu", graph.op("Gemm", now, graph.of(second.weight.t()), states))  # (M, D)
    best = graph.op("ReduceMax", x, graph.first, keepdims=1)
    best = graph.op("Gemm", best, graph.of(net.of_best.weight.t()), graph.of(net.dense.bias))
    x = graph.op("Relu", graph.op("Gemm", x, graph.of(net.dense.weight.t()), best))
    by_role = graph.op("Gemm", graph.of(net.logits.weight), x, graph.of(net.logits.bias.unsqueeze(1)), transB=1)
    graph.op("Reshape", by_role, graph.of(np.array([-1])), name="logits")
    shapes: tuple[Shape, ...] = (("M", width), (1, width), ("M", STEP_FEATURES))
    return graph.model(dict(zip(DECODER_INPUTS, shapes, strict=True)), {"logits": ("A",)})
