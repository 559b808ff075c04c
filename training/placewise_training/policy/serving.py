"""Harmony's policy as it is served: the function of net.py for one request, as ONNX graphs written by hand.

A decision runs nets this small in a fraction of a millisecond, of which half would go into starting operators. So the
graphs have few of them: no batch axis and no mask, so that every linear layer is one fused product (Gemm); attention is
one operator (opset 23). No token looks at a new job, so that the cluster's tokens, layer by layer, are one graph, and
the answers to new jobs another. Of the cluster only the keys and values of each layer and the nodes' last states are
given on. Terms of the decoder that depend on the states alone are computed once, not for each task. Weights are shared
with the trained form; the parity of both is checked at every export.
"""

import numpy as np
import onnx
from torch import nn

from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES
from placewise_core.inputs.policy import (
    DECODER_INPUTS,
    ENCODER_INPUTS,
    JOB_STATE,
    LOGITS,
    NODE_STATE,
    STRETCH,
    memory_names,
)
from placewise_training.lab.onnx_graph import Graph, Shape, linears
from placewise_training.policy.net import EdgeLayer, PolicyDecoder, PolicyNet

# Of each layer the names of its keys and values, and the layer.
_Memories = list[tuple[str, str, EdgeLayer]]


def serving_encoder(net: PolicyNet) -> onnx.ModelProto:
    """ENCODER_INPUTS as policy_inputs.encoder_inputs makes them → node_state (M, D), and a key and a value (1, P, D) of
    every layer."""
    encoder, decoder, graph = net.encoder, net.decoder, Graph()
    width = decoder.dense.in_features
    of_node = graph.mlp("nodes", encoder.of_node)  # (M, D)
    of_job = graph.mlp("jobs", encoder.of_job)  # (J, D)
    # What every token sends along an edge, a row for each role: of (P, D) each, and the two by turns.
    sent = graph.op("Concat", graph.wide(of_node, encoder.node_to_job), graph.wide(of_job, encoder.job_to_node), axis=0)
    sent = graph.op("Reshape", sent, graph.of(np.array([-1, width])))  # (2P, D)
    own = graph.op("Concat", of_node, of_job, axis=0)
    x = graph.op("Gemm", graph.op("Flatten", "edges", axis=1), sent, own)  # (P, D)
    memories = _memories(encoder.layers)
    for key, value, layer in memories:
        every = graph.norm(x, layer.before_attention)
        # A bias of the keys would add the same to every score of a row; that of the values comes out of the mean as it
        # is (_layer).
        _, of_key, of_value = layer.qkv.weight.chunk(3)
        tokens = graph.op("Unsqueeze", every, graph.first)
        graph.op("MatMul", tokens, graph.of(of_key.t()), name=key)
        graph.op("MatMul", tokens, graph.of(of_value.t()), name=value)
        asking, edges = every, "edges"
        if layer is memories[-1][2]:  # no token attends to them any more: only the nodes' states are needed
            count = graph.op("Shape", "nodes", start=0, end=1)
            x, asking, edges = (graph.op("Slice", each, graph.first, count) for each in (x, every, edges))
        x = _layer(graph, layer, x, asking, key, value, _bias(graph, layer, edges))
    graph.linear(graph.norm(x, encoder.norm), decoder.of_node, name=NODE_STATE)
    shapes: tuple[Shape, ...] = (("M", NODE_FEATURES), ("J", JOB_FEATURES), ("P", "P", 2))
    outputs: dict[str, Shape] = {NODE_STATE: ("M", width)} | _shapes(memories, width)
    return graph.model(dict(zip(ENCODER_INPUTS, shapes, strict=True)), outputs)


def serving_jobs(net: PolicyNet) -> onnx.ModelProto:
    """jobs (N, JOB_FEATURES), all of them new, and the encoder's keys and values → job_state (N, D), stretch (N, 1)."""
    encoder, decoder, graph = net.encoder, net.decoder, Graph()
    width = decoder.dense.in_features
    x = graph.mlp("jobs", encoder.of_job)  # (N, D)
    memories = _memories(encoder.layers)
    for key, value, layer in memories:
        x = _layer(graph, layer, x, graph.norm(x, layer.before_attention), key, value)
    x = graph.norm(x, encoder.norm)
    graph.linear(x, decoder.of_job, name=JOB_STATE)
    graph.linear(x, encoder.length, name=STRETCH)
    inputs: dict[str, Shape] = {"jobs": ("N", JOB_FEATURES)} | _shapes(memories, width)
    return graph.model(inputs, {JOB_STATE: ("N", width), STRETCH: ("N", 1)})


def _memories(layers: nn.ModuleList) -> _Memories:
    found = [layer for layer in layers if isinstance(layer, EdgeLayer)]
    names = memory_names(len(found))
    return list(zip(names[::2], names[1::2], found, strict=True))


def _shapes(memories: _Memories, width: int) -> dict[str, Shape]:
    return {name: (1, "P", width) for key, value, _ in memories for name in (key, value)}


def _layer(graph: Graph, layer: EdgeLayer, x: str, asking: str, keys: str, values: str, *bias: str) -> str:
    """EdgeLayer of the tokens x (Q, D), which ask as `asking`, their norms."""
    query, _, _ = layer.qkv.weight.chunk(3)
    query_bias, _, value_bias = layer.qkv.bias.chunk(3)
    asked = graph.op("Gemm", asking, graph.of(query.t()), graph.of(query_bias))
    mixed = graph.op(
        "Attention",
        graph.op("Unsqueeze", asked, graph.first),
        keys,
        values,
        *bias,
        q_num_heads=layer.heads,
        kv_num_heads=layer.heads,
    )
    mix, after = layer.mix.weight, layer.mix.bias + layer.mix.weight @ value_bias
    mixed = graph.op("Gemm", graph.op("Squeeze", mixed, graph.first), graph.of(mix.t()), graph.of(after))
    x = graph.op("Add", x, mixed)
    return graph.op("Add", x, graph.mlp(graph.norm(x, layer.before_dense), layer.dense))


def _bias(graph: Graph, layer: EdgeLayer, edges: str) -> str:
    """(1, H, Q, P): the terms that the edges (Q, P, 2) add to each head's scores."""
    flat = graph.op("Reshape", edges, graph.of(np.array([-1, 2])))
    by_head = graph.op("Gemm", graph.of(layer.along.weight), flat, transB=1)  # (H, Q · P)
    tokens = graph.op("Shape", "edges", start=1, end=2)
    shape = graph.op("Concat", graph.of(np.array([1, layer.heads, -1])), tokens, axis=0)
    return graph.op("Reshape", by_head, shape)


def serving_decoder(net: PolicyDecoder) -> onnx.ModelProto:
    """states (M, D), those of the nodes and of the job added up, step (M, STEP_FEATURES) → logits (2, M)."""
    graph, width = Graph(), net.dense.in_features
    first, second = linears(net.of_step)
    now = graph.op("Relu", graph.linear("step", first))
    x = graph.op("Relu", graph.op("Gemm", now, graph.of(second.weight.t()), "states"))  # (M, D)
    best = graph.op("ReduceMax", x, graph.first, keepdims=1)
    best = graph.op("Gemm", best, graph.of(net.of_best.weight.t()), graph.of(net.dense.bias))
    x = graph.op("Relu", graph.op("Gemm", x, graph.of(net.dense.weight.t()), best))
    bias = graph.of(net.logits.bias.unsqueeze(1))
    graph.op("Gemm", graph.of(net.logits.weight), x, bias, transB=1, name=LOGITS)
    shapes: tuple[Shape, ...] = (("M", width), ("M", STEP_FEATURES))
    return graph.model(dict(zip(DECODER_INPUTS, shapes, strict=True)), {LOGITS: (2, "M")})
