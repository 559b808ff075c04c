"""Harmony's policy as three ONNX graphs: one run when the cluster changed, one per batch of jobs, one per task.

In the form that is served (serving.py): one request at a time, dynamic in jobs and nodes, opset pinned.
Trains nothing; export.py makes a bundle's files of it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from placewise_core.inputs.cluster import (
    JOB_FEATURES,
    NODE_FEATURES,
    STEP_FEATURES,
    Observation,
    feature_schema,
)
from placewise_core.inputs.policy import IS_NEW, JOB_STATE, LOGITS, NODE_STATE, STRETCH
from placewise_models.policy import POLICY_GRAPHS, PolicyRuntime
from placewise_training.lab.export import Arrays, gap
from placewise_training.policy.net import PolicyNet
from placewise_training.policy.serving import serving_decoder, serving_encoder, serving_jobs

_FORMS: Mapping[str, Callable[[PolicyNet], onnx.ModelProto]] = dict(
    zip(POLICY_GRAPHS, (serving_encoder, serving_jobs, lambda net: serving_decoder(net.decoder)), strict=True)
)
_TRAINED_INPUTS = ("nodes", "jobs", "placement", "job_mask", "node_mask")
# (nodes, jobs, how many of the jobs run): one of each, nothing running, more jobs than nodes and the other way round.
SIZES = ((1, 1, 0), (6, 1, 0), (6, 20, 17), (30, 48, 32), (64, 3, 2), (2, 30, 29))


def write_onnx(net: PolicyNet, folder: Path) -> None:
    """The graphs alone, the feature schema in their own metadata."""
    net.eval()
    for file, form in _FORMS.items():
        model = form(net)
        onnx.helper.set_model_props(model, {"feature_schema": str(feature_schema("policy")["hash"])})
        onnx.save(model, str(folder / file))


def parity(net: PolicyNet, folder: Path) -> float:
    """Largest difference between torch and ONNX Runtime, over 1 + |value|, in every output on inputs of many sizes."""
    served = PolicyRuntime.from_folder(folder)
    gaps = []
    for seed, size in enumerate(SIZES * 2):
        inputs = random_inputs(*size, seed)
        new = size[1] - size[2]
        theirs = _run_onnx(served, inputs, new)
        for name, ours in _run_torch(net, inputs, new).items():
            gaps.append(gap(ours, theirs[name]).max())
    return float(np.max(gaps))


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


def sample_of(folder: Path) -> dict[str, object]:
    """A small input with the answers the graphs must give, as plain lists: the service reads it."""
    inputs = {name: np.round(array, 3) for name, array in random_inputs(3, 4, 2, seed=99).items()}
    seen, new_jobs = _apart(inputs, new=2)
    given = {"nodes": seen.nodes, "jobs": seen.jobs, "placement": seen.placement, "new_jobs": new_jobs}
    given |= {"step": inputs["step"][0], **_run_onnx(PolicyRuntime.from_folder(folder), inputs, new=2)}
    return {"job": 0, **{name: array.tolist() for name, array in given.items()}}


def _run_torch(net: PolicyNet, inputs: Arrays, new: int) -> dict[str, NDArray[Any]]:
    """The answers of the trained form: all nodes, and the first `new` jobs."""
    with torch.no_grad():
        nodes, jobs, _ = net.encoder(*_tensors(inputs, _TRAINED_INPUTS))
        logits = net.decoder(nodes, jobs[:, 0], torch.from_numpy(inputs["step"]))[0]
        node_state, job_state = net.decoder.of_node(nodes[0]), net.decoder.of_job(jobs[0, :new])
        stretch = net.encoder.length(jobs[0, :new])
    named = {NODE_STATE: node_state, JOB_STATE: job_state, STRETCH: stretch, LOGITS: logits}
    return {name: tensor.numpy() for name, tensor in named.items()}


def _run_onnx(served: PolicyRuntime, inputs: Arrays, new: int) -> dict[str, NDArray[Any]]:
    seen, new_jobs = _apart(inputs, new)
    state = served.read(served.look(seen), new_jobs)
    assert state.stretch is not None
    logits = served.decode(state, 0, inputs["step"][0])
    return {NODE_STATE: state.nodes, JOB_STATE: state.jobs, STRETCH: state.stretch, LOGITS: logits}


def _apart(inputs: Arrays, new: int) -> tuple[Observation, NDArray[Any]]:
    """The cluster with the jobs that run, and the first `new` jobs, which do not."""
    jobs, placement = inputs["jobs"][0], inputs["placement"][0]
    return Observation(inputs["nodes"][0], jobs[new:], placement[new:], current=-1), jobs[:new]


def _tensors(inputs: Arrays, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in names)
