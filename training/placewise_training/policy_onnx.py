"""Harmony's policy as two ONNX graphs: an encoder run once per batch of jobs, a decoder run once per task.

In the form that is served (models.policy_serving): one request at a time, dynamic in jobs and nodes, opset pinned.
Trains nothing; export_policy.py makes a bundle's files of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from placewise_core.features import (
    JOB_FEATURES,
    NODE_FEATURES,
    STEP_FEATURES,
    Observation,
    feature_schema,
)
from placewise_core.policy_inputs import ENCODER_OUTPUTS, IS_NEW, encoder_inputs
from placewise_training.models.policy import PolicyNet
from placewise_training.models.policy_serving import serving_decoder, serving_encoder

ENCODER, DECODER = "policy_encoder.onnx", "policy_decoder.onnx"
_TRAINED_INPUTS = ("nodes", "jobs", "placement", "job_mask", "node_mask")
# (nodes, jobs, how many of the jobs run): one of each, nothing running, more jobs than nodes and the other way round.
SIZES = ((1, 1, 0), (6, 1, 0), (6, 20, 17), (30, 48, 32), (64, 3, 2), (2, 30, 29))

Arrays = Mapping[str, NDArray[Any]]


def write_onnx(net: PolicyNet, encoder: Path, decoder: Path) -> None:
    """Both graphs alone, the feature schema in their own metadata."""
    net.eval()
    for model, path in ((serving_encoder(net), encoder), (serving_decoder(net.decoder), decoder)):
        onnx.helper.set_model_props(model, {"feature_schema": str(feature_schema("policy")["hash"])})
        onnx.save(model, str(path))


def parity(net: PolicyNet, encoder: Path, decoder: Path) -> float:
    """Largest difference between torch and ONNX Runtime, over 1 + |value|, in every output on inputs of many sizes."""
    sessions = (_session(encoder), _session(decoder))
    worst = 0.0
    for seed, size in enumerate(SIZES * 2):
        inputs = random_inputs(*size, seed)
        theirs = _run_onnx(*sessions, inputs)
        for name, ours in _run_torch(net, inputs, new=size[1] - size[2]).items():
            worst = max(worst, float((np.abs(ours - theirs[name]) / (1 + np.abs(ours))).max()))
    return worst


def random_inputs(nodes: int, jobs: int, running: int, seed: int) -> dict[str, NDArray[Any]]:
    """One observation with features of the size they have, `running` of the jobs placed at random, and a step."""
    rng = np.random.default_rng((seed, 43))
    placement = np.zeros((1, jobs, nodes, 2), dtype=np.float32)
    for j in range(jobs - running, jobs):
        placement[0, j, rng.integers(0, nodes, 3), rng.integers(0, 2, 3)] = 0.5
    tokens = rng.uniform(0.0, 1.2, (1, jobs, JOB_FEATURES)).astype(np.float32)
    tokens[..., IS_NEW] = np.arange(jobs) < jobs - running
    return {
        "nodes": rng.uniform(0.0, 1.2, (1, nodes, NODE_FEATURES)).astype(np.float32),
        "jobs": tokens,
        "placement": placement,
        "job_mask": np.ones((1, jobs), dtype=np.float32),
        "node_mask": np.ones((1, nodes), dtype=np.float32),
        "step": rng.uniform(0.0, 1.2, (1, nodes, STEP_FEATURES)).astype(np.float32),
    }


def sample_of(encoder: Path, decoder: Path) -> dict[str, object]:
    """A small input with the answers both graphs must give, as plain lists: the service reads it."""
    inputs = {name: np.round(array, 3) for name, array in random_inputs(3, 4, 2, seed=99).items()}
    given = {name: inputs[name][0].tolist() for name in ("nodes", "jobs", "placement", "step")}
    answers = _run_onnx(_session(encoder), _session(decoder), inputs)
    return {**given, "job": 0, **{name: array.tolist() for name, array in answers.items()}}


def _run_torch(net: PolicyNet, inputs: Arrays, new: int) -> dict[str, NDArray[Any]]:
    """What is served, by the trained form: all nodes, and the first `new` jobs."""
    with torch.no_grad():
        nodes, jobs, minutes = net.encoder(*_tensors(inputs, _TRAINED_INPUTS))
        logits = net.decoder(nodes, jobs[:, 0], torch.from_numpy(inputs["step"]))[0]
        node_state, job_state = net.decoder.of_node(nodes[0]), net.decoder.of_job(jobs[0, :new])
    named = {"node_state": node_state, "job_state": job_state, "minutes": minutes[0, :new], "logits": logits}
    return {name: tensor.numpy() for name, tensor in named.items()}


def _run_onnx(
    encoder: onnxruntime.InferenceSession, decoder: onnxruntime.InferenceSession, inputs: Arrays
) -> dict[str, NDArray[Any]]:
    seen = Observation(inputs["nodes"][0], inputs["jobs"][0], inputs["placement"][0], current=-1)
    states = dict(zip(ENCODER_OUTPUTS, encoder.run(ENCODER_OUTPUTS, encoder_inputs(seen)), strict=True))
    feeds = {"node_state": states["node_state"], "job_state": states["job_state"][:1], "step": inputs["step"][0]}
    return states | {"logits": decoder.run(("logits",), feeds)[0]}


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _tensors(inputs: Arrays, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names)
