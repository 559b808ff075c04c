"""Bundles whose reward model is bad on purpose. Nobody places by one outside the demonstration."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from placewise_models.bundle import MANIFEST, Manifest, schema_of, write_manifest
from placewise_models.public_key import SIGNATURES
from placewise_models.reward import REWARD_MODEL, REWARD_REPORT
from placewise_models.session import open_session


def flipped(start: Path, folder: Path) -> Path:
    """A bundle like `start` whose reward model is upside down: the slower a placement, the faster it says it is."""
    return _changed(start, folder, _flip)


def shuffled(start: Path, folder: Path, seed: int = 0) -> Path:
    """A bundle like `start` with the weights of each layer of its reward model dealt out again within the layer."""
    return _changed(start, folder, lambda model: _shuffle(model, np.random.default_rng(seed)))


def _flip(model: onnx.ModelProto) -> None:
    """speed → 0.5 / (speed + 0.05)."""
    for node in model.graph.node:
        node.output[:] = ["upright" if name == "speed" else name for name in node.output]
    for name, value in (("least", 0.05), ("fastest", 0.5)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
    model.graph.node.append(helper.make_node("Add", ["upright", "least"], ["above"]))
    model.graph.node.append(helper.make_node("Div", ["fastest", "above"], ["speed"]))


def _shuffle(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            values = numpy_helper.to_array(tensor)
            mixed = rng.permutation(values.ravel()).reshape(values.shape)
            tensor.CopyFrom(numpy_helper.from_array(mixed, tensor.name))


def _changed(start: Path, folder: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    shutil.copytree(start, folder, ignore=shutil.ignore_patterns(SIGNATURES))
    model = onnx.load(str(folder / REWARD_MODEL))
    change(model)
    onnx.save(model, str(folder / REWARD_MODEL))
    report = json.loads((folder / REWARD_REPORT).read_text("utf-8"))
    sample = report["sample"]
    feeds = {name: np.asarray(sample[name], dtype) for name, dtype in _FEEDS.items()}
    session = open_session((folder / REWARD_MODEL).read_bytes(), REWARD_MODEL)
    answers = [name for name in sample if name not in feeds]
    sample |= {name: found.tolist() for name, found in zip(answers, session.run(answers, feeds), strict=True)}
    (folder / REWARD_REPORT).write_text(json.dumps(report), "utf-8")
    parent = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    files = sorted(set(parent.files) - {SIGNATURES})
    write_manifest(folder, Manifest(folder.name, "", dict.fromkeys(files, ""), feature_schema=schema_of(files)))
    return folder


_FEEDS = {"tokens": np.float32, "job": np.int64, "node": np.int64}
