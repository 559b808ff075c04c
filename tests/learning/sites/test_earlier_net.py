"""A reward model of a release whose tokens had fewer columns goes on serving, and reads those alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from placewise_core.inputs.cluster import PART_FEATURES, earlier_schemas, feature_schema
from placewise_core.inputs.reward import PartTokens
from placewise_models.bundle import MANIFEST, BundleError, Manifest, load, schema_in, schema_of, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.reward import RewardRuntime
from placewise_models.session import ModelError
from placewise_service.cli import invoke
from placewise_training.lab.export import export_graph
from placewise_training.lab.onnx_graph import OPSET
from placewise_training.reward import export
from placewise_training.reward.net import RewardNet
from placewise_training.reward.serving import serving_reward
from placewise_training.reward.weights import begun

FEWER = PART_FEATURES - 2
(EARLIER,) = earlier_schemas("reward")


def _net_of(features: int, schema: str, path: Path) -> RewardNet:
    torch.manual_seed(3)
    net = RewardNet(features, 16, 2, 1, 2).eval()
    model = serving_reward(net, features)
    onnx.helper.set_model_props(model, {"feature_schema": schema})
    onnx.save(model, str(path))
    return net


def _tokens(seed: int, **changes: Any) -> PartTokens:
    inputs = export.random_inputs((3, 9), seed)
    parts = inputs["tokens"]
    parts[..., FEWER:] = changes.get("links", 0.0)
    return PartTokens(parts, inputs["job"], inputs["node"], ())


def test_it_answers_as_it_did_whatever_the_new_columns_say(tmp_path: Path) -> None:
    net = _net_of(FEWER, EARLIER, tmp_path / "reward.onnx")
    runtime = RewardRuntime.from_file(tmp_path / "reward.onnx")
    tokens = _tokens(1)
    with torch.no_grad():
        speed, _ = net(
            torch.from_numpy(tokens.parts[..., :FEWER]), torch.from_numpy(tokens.job), torch.from_numpy(tokens.node)
        )
    is_token = tokens.job >= 0
    assert np.allclose(runtime.speeds(tokens)[is_token], speed.numpy()[is_token], rtol=1e-4)
    assert np.array_equal(runtime.speeds(_tokens(1, links=0.7)), runtime.speeds(tokens))


def test_a_net_of_this_release_reads_them(tmp_path: Path) -> None:
    _net_of(PART_FEATURES, str(feature_schema("reward")["hash"]), tmp_path / "reward.onnx")
    runtime = RewardRuntime.from_file(tmp_path / "reward.onnx")
    assert not np.allclose(runtime.speeds(_tokens(1, links=0.7)), runtime.speeds(_tokens(1)))


def test_a_net_of_any_other_tables_is_refused(tmp_path: Path) -> None:
    _net_of(FEWER - 1, "0" * 64, tmp_path / "reward.onnx")
    with pytest.raises(ModelError, match="other features"):
        RewardRuntime.from_file(tmp_path / "reward.onnx")


def test_training_begins_with_it_and_gives_the_new_columns_no_weight_yet(tmp_path: Path) -> None:
    net = _net_of(FEWER, EARLIER, tmp_path / "reward.onnx")
    wider = begun(tmp_path / "reward.onnx")
    tokens = _tokens(1, links=0.7)
    asked = (torch.from_numpy(tokens.job), torch.from_numpy(tokens.node))
    with torch.no_grad():
        speed, _ = net(torch.from_numpy(tokens.parts[..., :FEWER]), *asked)
        again, _ = wider(torch.from_numpy(tokens.parts), *asked)
    is_token = tokens.job >= 0
    assert np.allclose(again.numpy()[is_token], speed.numpy()[is_token], rtol=1e-4)


@pytest.mark.parametrize(("schema", "is_loaded"), [(EARLIER, True), ("1" * 64, False)])
def test_a_bundle_of_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str, is_loaded: bool) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    net = _net_of(FEWER, EARLIER, tmp_path / "reward.onnx")
    monkeypatch.setattr(export, "PART_FEATURES", FEWER)  # of the parity sample
    (tmp_path / export.REPORT).write_text('{"schema": "placewise.reward/1", "spread_limit": 1.0}')

    def written(path: Path) -> None:
        path.write_bytes((tmp_path / "reward.onnx").read_bytes())

    export_graph(tmp_path, folder, export.GRAPH, export.REPORT, net, written, OPSET)
    files = dict.fromkeys(("reward.onnx", "reward.json"), "")
    assert schema_of(files) == feature_schema("reward")["hash"]
    assert schema_in(folder, files) == EARLIER
    write_manifest(folder, Manifest("site", created="2026-01-01T00:00:00Z", files=files, feature_schema=schema))
    if is_loaded:
        assert load(folder).reward is not None
    else:
        with pytest.raises(BundleError, match="other features"):
            load(folder)


def test_a_bundle_built_around_it_loads_in_the_release_that_made_it(tmp_path: Path) -> None:
    """That release takes the shipped bundle's hash for nets of these files, and refuses another."""
    folder = tmp_path / "mine"
    assert invoke(["bundle", "build", str(folder), "--from", str(shipped_bundle())]) == 0
    shipped = json.loads((shipped_bundle() / MANIFEST).read_text())
    built = json.loads((folder / MANIFEST).read_text())
    assert built["feature_schema"] == shipped["feature_schema"]
