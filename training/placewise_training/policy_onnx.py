"""Harmony's policy as two ONNX graphs: an encoder run once per batch of jobs, a decoder run once per task.

In the form that is served (models.policy_serving): one request at a time, dynamic in jobs and nodes, opset pinned.
Trains nothing; export_policy.py makes a bundle's files of it.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from placewise_core.features import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, feature_schema
from placewise_training.models.policy import PolicyNet
from placewise_training.models.policy_serving import ServingDecoder, ServingEncoder

OPSET = 18
ENCODER, DECODER = "policy_encoder.onnx", "policy_decoder.onnx"
_ENCODER_INPUTS = ("nodes", "jobs", "placement", "job_mask", "node_mask")
_ENCODER_OUTPUTS = ("node_state", "job_state", "minutes")
_DECODER_INPUTS = ("node_state", "job_state", "step")
_AXES: Mapping[str, Mapping[int, str]] = {
    "nodes": {1: "nodes"},
    "jobs": {1: "jobs"},
    "placement": {1: "jobs", 2: "nodes"},
    "job_mask": {1: "jobs"},
    "node_mask": {1: "nodes"},
    "node_state": {1: "nodes"},
    "minutes": {1: "jobs"},
    "step": {1: "nodes"},
    "logits": {1: "actions"},
}
# (nodes, jobs, how many of the jobs run): one of each, nothing running, more jobs than nodes and the other way round.
SIZES = ((1, 1, 0), (6, 1, 0), (6, 20, 17), (30, 48, 32), (64, 3, 2), (2, 30, 29))

Arrays = Mapping[str, NDArray[Any]]


def write_onnx(net: PolicyNet, encoder: Path, decoder: Path) -> None:
    """Both graphs alone, the feature schema in their own metadata."""
    net.eval()
    inputs = random_inputs(3, 5, 2, seed=0)
    served = ServingEncoder(net.encoder, net.decoder).eval()
    with torch.no_grad():
        nodes, jobs, _ = served(*_tensors(inputs, _ENCODER_INPUTS))
    _write(served, _tensors(inputs, _ENCODER_INPUTS), _ENCODER_INPUTS, _ENCODER_OUTPUTS, encoder)
    step = torch.from_numpy(np.ascontiguousarray(inputs["step"]))
    _write(ServingDecoder(net.decoder).eval(), (nodes, jobs[:, 0], step), _DECODER_INPUTS, ("logits",), decoder)


def _write(
    module: torch.nn.Module,
    example: tuple[torch.Tensor, ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    path: Path,
) -> None:
    # `job_state` is (1, J, D) where it leaves the encoder and (1, D) where it enters the decoder.
    axes = {**_AXES, "job_state": {} if "step" in inputs else {1: "jobs"}}
    with warnings.catch_warnings():
        # The tracer is deprecated; the exporter that follows it needs a further package for the same small graph.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            module,
            example,
            str(path),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: dict(axes[name]) for name in (*inputs, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"feature_schema": str(feature_schema("policy")["hash"])})
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def parity(net: PolicyNet, encoder: Path, decoder: Path) -> float:
    """Largest difference between torch and ONNX Runtime, over 1 + |value|, in every output on inputs of many sizes."""
    sessions = (_session(encoder), _session(decoder))
    worst = 0.0
    for seed, size in enumerate(SIZES * 2):
        inputs = random_inputs(*size, seed)
        theirs = _run_onnx(*sessions, inputs)
        for name, ours in _run_torch(net, inputs).items():
            worst = max(worst, float((np.abs(ours - theirs[name]) / (1 + np.abs(ours))).max()))
    return worst


def random_inputs(nodes: int, jobs: int, running: int, seed: int) -> dict[str, NDArray[Any]]:
    """One observation with features of the size they have, `running` of the jobs placed at random, and a step."""
    rng = np.random.default_rng((seed, 43))
    placement = np.zeros((1, jobs, nodes, 2), dtype=np.float32)
    for j in range(jobs - running, jobs):
        placement[0, j, rng.integers(0, nodes, 3), rng.integers(0, 2, 3)] = 0.5
    return {
        "nodes": rng.uniform(0.0, 1.2, (1, nodes, NODE_FEATURES)).astype(np.float32),
        "jobs": rng.uniform(0.0, 1.2, (1, jobs, JOB_FEATURES)).astype(np.float32),
        "placement": placement,
        "job_mask": np.ones((1, jobs), dtype=np.float32),
        "node_mask": np.ones((1, nodes), dtype=np.float32),
        "step": rng.uniform(0.0, 1.2, (1, nodes, STEP_FEATURES)).astype(np.float32),
    }


def sample_of(encoder: Path, decoder: Path) -> dict[str, object]:
    """A small input with the answers both graphs must give, as plain lists: the service reads it."""
    inputs = {name: np.round(array, 3) for name, array in random_inputs(3, 4, 2, seed=99).items()}
    answers = _run_onnx(_session(encoder), _session(decoder), inputs)
    given = {name: inputs[name][0].tolist() for name in ("nodes", "jobs", "placement", "step")}
    return {**given, "job": 0, **{name: array[0].tolist() for name, array in answers.items()}}


def _run_torch(net: PolicyNet, inputs: Arrays) -> dict[str, NDArray[Any]]:
    with torch.no_grad():
        nodes, jobs, minutes = net.encoder(*_tensors(inputs, _ENCODER_INPUTS))
        logits = net.decoder(nodes, jobs[:, 0], torch.from_numpy(inputs["step"]))
        nodes, jobs = net.decoder.of_node(nodes), net.decoder.of_job(jobs)  # as they are served
    named = {"node_state": nodes, "job_state": jobs, "minutes": minutes, "logits": logits}
    return {name: tensor.numpy() for name, tensor in named.items()}


def _run_onnx(
    encoder: onnxruntime.InferenceSession, decoder: onnxruntime.InferenceSession, inputs: Arrays
) -> dict[str, NDArray[Any]]:
    feeds = {name: inputs[name] for name in _ENCODER_INPUTS}
    nodes, jobs, minutes = encoder.run(list(_ENCODER_OUTPUTS), feeds)
    (logits,) = decoder.run(["logits"], {"node_state": nodes, "job_state": jobs[:, 0], "step": inputs["step"]})
    return {"node_state": nodes, "job_state": jobs, "minutes": minutes, "logits": logits}


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _tensors(inputs: Arrays, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names)
