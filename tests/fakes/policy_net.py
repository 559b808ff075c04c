"""A policy net in two small ONNX graphs that was never trained: for everything about serving but what it decides."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from placewise_core.features import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, Observation, feature_schema
from placewise_core.policy_inputs import IS_NEW, encoder_inputs

ENCODER, DECODER, REPORT = "policy_encoder.onnx", "policy_decoder.onnx", "policy.json"
FILES = (ENCODER, DECODER, REPORT)
_WIDTH = 8


def write_policy(directory: Path, seed: int = 0, schema: str = "") -> None:
    """Both graphs and their report, with a sample that they answer right."""
    rng = np.random.default_rng(seed)
    schema = schema or str(feature_schema("policy")["hash"])
    _save(directory / ENCODER, _encoder(rng), schema)
    _save(directory / DECODER, _decoder(rng), schema)
    (directory / REPORT).write_bytes(msgspec.json.encode(report_of(directory)))


def report_of(directory: Path) -> dict[str, object]:
    """The report of the graphs in a directory, with their sample."""
    rng = np.random.default_rng(99)
    nodes, jobs = rng.random((3, NODE_FEATURES), np.float32), rng.random((2, JOB_FEATURES), np.float32)
    jobs[:, IS_NEW] = 1.0
    placement, step = rng.random((2, 3, 2), np.float32), rng.random((3, STEP_FEATURES), np.float32)
    encoder, decoder = (onnxruntime.InferenceSession(str(directory / file)) for file in (ENCODER, DECODER))
    feeds = encoder_inputs(Observation(nodes, jobs, placement, -1))
    node_state, job_state = encoder.run(["node_state", "job_state"], feeds)
    given = decoder.run(["logits"], {"node_state": node_state, "job_state": job_state[1:2], "step": step})[0]
    sample = {"nodes": nodes, "jobs": jobs, "placement": placement, "step": step}
    sample |= {"node_state": node_state, "job_state": job_state, "logits": given}
    lists: dict[str, object] = {name: values.tolist() for name, values in sample.items()}
    return {"schema": "placewise.policy/2", "sample": lists | {"job": 1}}


def _encoder(rng: np.random.Generator) -> onnx.GraphProto:
    """Each token alone, and the mean of the nodes added to the jobs."""
    nodes = [
        helper.make_node("MatMul", ["nodes", "of_node"], ["node_state"]),
        helper.make_node("ReduceMean", ["node_state", "axis"], ["mean"]),
        helper.make_node("MatMul", ["jobs", "of_job"], ["own"]),
        helper.make_node("Add", ["own", "mean"], ["all"]),
        helper.make_node("Slice", ["sizes", "one", "two"], ["new"]),
        helper.make_node("Slice", ["all", "axis", "new"], ["job_state"]),
    ]
    inputs = [
        _tensor("nodes", ["M", NODE_FEATURES]),
        _tensor("jobs", ["J", JOB_FEATURES]),
        _tensor("edges", ["P", "P", 2]),
        _tensor("sizes", [2], TensorProto.INT64),
        _tensor("kept", [1], TensorProto.INT64),
    ]
    weights = [
        _weight(rng, "of_node", (NODE_FEATURES, _WIDTH)),
        _weight(rng, "of_job", (JOB_FEATURES, _WIDTH)),
        *(numpy_helper.from_array(np.array([i], np.int64), name) for i, name in enumerate(("axis", "one", "two"))),
    ]
    outputs = [_tensor("node_state", ["M", _WIDTH]), _tensor("job_state", ["N", _WIDTH])]
    return helper.make_graph(nodes, "encoder", inputs, outputs, weights)


def _decoder(rng: np.random.Generator) -> onnx.GraphProto:
    """relu(node + job + step·W)·V, workers first."""
    nodes = [
        helper.make_node("MatMul", ["step", "of_step"], ["now"]),
        helper.make_node("Sum", ["now", "job_state", "node_state"], ["all"]),
        helper.make_node("Relu", ["all"], ["positive"]),
        helper.make_node("MatMul", ["positive", "of_role"], ["pairs"]),
        helper.make_node("Transpose", ["pairs"], ["by_role"], perm=[1, 0]),
        helper.make_node("Reshape", ["by_role", "flat"], ["logits"]),
    ]
    inputs = [
        _tensor("node_state", ["M", _WIDTH]),
        _tensor("job_state", [1, _WIDTH]),
        _tensor("step", ["M", STEP_FEATURES]),
    ]
    weights = [
        _weight(rng, "of_step", (STEP_FEATURES, _WIDTH)),
        _weight(rng, "of_role", (_WIDTH, 2)),
        numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"),
    ]
    return helper.make_graph(nodes, "decoder", inputs, [_tensor("logits", ["A"])], weights)


def _tensor(name: str, shape: list[str | int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> onnx.TensorProto:
    return numpy_helper.from_array(rng.normal(0.0, 0.5, shape).astype(np.float32), name)


def _save(path: Path, graph: onnx.GraphProto, schema: str) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, {"feature_schema": schema})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
