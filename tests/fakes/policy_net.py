"""A policy net in three small ONNX graphs that was never trained: for every test of serving but the choices
themselves."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, Observation, feature_schema
from placewise_core.inputs.policy import encoder_inputs

ENCODER, JOBS, DECODER, REPORT = "policy_encoder.onnx", "policy_jobs.onnx", "policy_decoder.onnx", "policy.json"
FILES = (ENCODER, JOBS, DECODER, REPORT)
_WIDTH = 8


def write_policy(directory: Path, seed: int = 0, schema: str = "") -> None:
    """The graphs and their report, with a sample that they answer right."""
    rng = np.random.default_rng(seed)
    schema = schema or str(feature_schema("policy")["hash"])
    _save(directory / ENCODER, _encoder(rng), schema)
    _save(directory / JOBS, _jobs(rng), schema)
    _save(directory / DECODER, _decoder(rng), schema)
    (directory / REPORT).write_bytes(msgspec.json.encode(report_of(directory)))


def report_of(directory: Path) -> dict[str, object]:
    """The report of the graphs in a directory, with their sample."""
    rng = np.random.default_rng(99)
    nodes, jobs = rng.random((3, NODE_FEATURES), np.float32), rng.random((2, JOB_FEATURES), np.float32)
    placement, step = rng.random((2, 3, 2), np.float32), rng.random((3, STEP_FEATURES), np.float32)
    new_jobs = rng.random((2, JOB_FEATURES), np.float32)
    encoder, reader, decoder = (onnxruntime.InferenceSession(str(directory / file)) for file in FILES[:3])
    node_state, mean = encoder.run(["node_state", "mean"], encoder_inputs(Observation(nodes, jobs, placement, -1)))
    job_state = reader.run(["job_state"], {"jobs": new_jobs, "mean": mean})[0]
    given = decoder.run(["logits"], {"states": node_state + job_state[1], "step": step})[0].reshape(-1)
    sample = {"nodes": nodes, "jobs": jobs, "placement": placement, "step": step, "new_jobs": new_jobs}
    sample |= {"node_state": node_state, "job_state": job_state, "logits": given}
    lists: dict[str, object] = {name: values.tolist() for name, values in sample.items()}
    return {"schema": "placewise.policy/3", "sample": lists | {"job": 1}}


def _encoder(rng: np.random.Generator) -> onnx.GraphProto:
    """Each node alone, and the mean of them."""
    nodes = [
        helper.make_node("MatMul", ["nodes", "of_node"], ["node_state"]),
        helper.make_node("ReduceMean", ["node_state", "axis"], ["mean"]),
    ]
    inputs = [
        _tensor("nodes", ["M", NODE_FEATURES]),
        _tensor("jobs", ["J", JOB_FEATURES]),
        _tensor("edges", ["P", "P", 2]),
    ]
    weights = [
        _weight(rng, "of_node", (NODE_FEATURES, _WIDTH)),
        numpy_helper.from_array(np.array([0], np.int64), "axis"),
    ]
    outputs = [_tensor("node_state", ["M", _WIDTH]), _tensor("mean", [1, _WIDTH])]
    return helper.make_graph(nodes, "encoder", inputs, outputs, weights)


def _jobs(rng: np.random.Generator) -> onnx.GraphProto:
    """Each job alone, and the mean of the nodes added."""
    nodes = [
        helper.make_node("MatMul", ["jobs", "of_job"], ["own"]),
        helper.make_node("Add", ["own", "mean"], ["job_state"]),
    ]
    inputs = [_tensor("jobs", ["N", JOB_FEATURES]), _tensor("mean", [1, _WIDTH])]
    weights = [_weight(rng, "of_job", (JOB_FEATURES, _WIDTH))]
    return helper.make_graph(nodes, "jobs", inputs, [_tensor("job_state", ["N", _WIDTH])], weights)


def _decoder(rng: np.random.Generator) -> onnx.GraphProto:
    """relu(states + step·W)·V, workers first."""
    nodes = [
        helper.make_node("MatMul", ["step", "of_step"], ["now"]),
        helper.make_node("Add", ["now", "states"], ["all"]),
        helper.make_node("Relu", ["all"], ["positive"]),
        helper.make_node("MatMul", ["positive", "of_role"], ["pairs"]),
        helper.make_node("Transpose", ["pairs"], ["logits"], perm=[1, 0]),
    ]
    inputs = [
        _tensor("states", ["M", _WIDTH]),
        _tensor("step", ["M", STEP_FEATURES]),
    ]
    weights = [
        _weight(rng, "of_step", (STEP_FEATURES, _WIDTH)),
        _weight(rng, "of_role", (_WIDTH, 2)),
    ]
    return helper.make_graph(nodes, "decoder", inputs, [_tensor("logits", [2, "M"])], weights)


def _tensor(name: str, shape: list[str | int], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> onnx.TensorProto:
    return numpy_helper.from_array(rng.normal(0.0, 0.5, shape).astype(np.float32), name)


def _save(path: Path, graph: onnx.GraphProto, schema: str) -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    helper.set_model_props(model, {"feature_schema": schema})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
