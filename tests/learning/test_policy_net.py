"""The policy net: order does not matter to it, padding changes nothing, a cluster's encoding is the same for every
request, and its graphs answer as torch does."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from placewise_core.inputs.cluster import JOB_COLUMNS, JOB_FEATURES, LINEAR_SPEED_COLUMNS
from placewise_core.inputs.policy import IS_NEW
from placewise_core.speed.linear_speed import stretched
from placewise_models.policy import PolicyRuntime
from placewise_training.policy.graphs import SIZES, parity, random_inputs, write_onnx
from placewise_training.policy.net import LINEAR_MINUTES, PolicyNet, masked_log_probabilities

SEEDS = range(3)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small only wait for further threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(seed: int = 0, layers: int = 2) -> PolicyNet:
    torch.manual_seed(seed)
    return PolicyNet(width=32, heads=4, layers=layers).eval()


def tensors(nodes: int, jobs: int, running: int, seed: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in random_inputs(nodes, jobs, running, seed).items()}


def encoded(model: PolicyNet, x: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        states: tuple[Tensor, Tensor, Tensor] = model.encoder(
            x["nodes"], x["jobs"], x["placement"], x["job_mask"], x["node_mask"]
        )
    return states


def logits(model: PolicyNet, x: dict[str, Tensor], job: int = 0) -> Tensor:
    nodes, jobs, _ = encoded(model, x)
    with torch.no_grad():
        out: Tensor = model.decoder(nodes, jobs[:, job], x["step"], x["node_mask"])
    return out


@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_nodes_permutes_the_actions(seed: int) -> None:
    x = tensors(7, 9, 6, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(7))
    turned = {**x, "nodes": x["nodes"][:, order], "step": x["step"][:, order], "placement": x["placement"][:, :, order]}
    expected = logits(net(), x).reshape(2, 7)[:, order].reshape(1, 14)
    torch.testing.assert_close(logits(net(), turned), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_permuting_jobs_permutes_their_states_and_changes_no_action(seed: int) -> None:
    x = tensors(5, 8, 5, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(8))
    turned = {**x, "jobs": x["jobs"][:, order], "placement": x["placement"][:, order]}
    nodes, jobs, minutes = encoded(net(), x)
    turned_nodes, turned_jobs, turned_minutes = encoded(net(), turned)
    torch.testing.assert_close(turned_nodes, nodes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(turned_jobs, jobs[:, order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(turned_minutes, minutes[:, order], rtol=1e-4, atol=1e-4)
    where = int((order == 2).nonzero())
    torch.testing.assert_close(logits(net(), turned, where), logits(net(), x, 2), rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing() -> None:
    x = tensors(4, 5, 3, 1)
    padded = {
        "nodes": torch.cat([x["nodes"], torch.full((1, 2, x["nodes"].shape[2]), 3.0)], dim=1),
        "jobs": torch.cat([x["jobs"], torch.full((1, 3, JOB_FEATURES), 3.0)], dim=1),
        "placement": torch.zeros(1, 8, 6, 2),
        "job_mask": torch.tensor([[1.0] * 5 + [0.0] * 3]),
        "node_mask": torch.tensor([[1.0] * 4 + [0.0] * 2]),
        "step": torch.cat([x["step"], torch.full((1, 2, x["step"].shape[2]), 3.0)], dim=1),
    }
    padded["placement"][:, :5, :4] = x["placement"]
    got = logits(net(), padded).reshape(2, 6)[:, :4].reshape(1, 8)
    torch.testing.assert_close(got, logits(net(), x), rtol=1e-4, atol=1e-5)


def test_nobody_looks_at_new_jobs_and_they_look_at_the_cluster() -> None:
    """The cached encoding of a cluster must not depend on the request, nor that of a job on the rest of its batch."""
    x = tensors(5, 8, 5, 4)
    nodes, jobs, _ = encoded(net(), x)
    other = {**x, "jobs": x["jobs"].clone()}
    other["jobs"][0, 0, 1:20] += 0.5  # the first is new
    assert float(other["jobs"][0, 0, IS_NEW]) == 1.0
    other_nodes, other_jobs, _ = encoded(net(), other)
    torch.testing.assert_close(other_nodes, nodes, rtol=0.0, atol=1e-6)
    torch.testing.assert_close(other_jobs[:, 1:], jobs[:, 1:], rtol=0.0, atol=1e-6)
    assert float((other_jobs[:, 0] - jobs[:, 0]).abs().max()) > 1e-2
    changed = {**x, "jobs": x["jobs"].clone()}
    changed["jobs"][0, 7, 1:20] += 0.5  # this one runs
    assert float((encoded(net(), changed)[1][:, 1] - jobs[:, 1]).abs().max()) > 1e-4


def test_what_runs_on_a_node_counts() -> None:
    """Two equal jobs on a node are not the same as one: attention alone would average them away."""
    x = tensors(3, 4, 0, 2)
    x["jobs"][:, 2] = x["jobs"][:, 3]
    x["placement"][0, 2, 0] = x["placement"][0, 3, 0] = torch.tensor([0.5, 0.0])
    one = {**x, "placement": x["placement"].clone()}
    one["placement"][0, 3, 0] = 0.0
    assert float((logits(net(), x) - logits(net(), one)).abs().max()) > 1e-3


def test_masked_actions_have_no_probability() -> None:
    mask = torch.tensor([[True, False, True, False]])
    odds = masked_log_probabilities(torch.zeros(1, 4), mask).exp()
    torch.testing.assert_close(odds, torch.tensor([[0.5, 0.0, 0.5, 0.0]]))


def test_the_guess_of_the_minutes_starts_from_what_the_job_declares() -> None:
    model = net()
    torch.nn.init.zeros_(model.encoder.length.weight)
    torch.nn.init.zeros_(model.encoder.length.bias)
    x = tensors(3, 2, 0, 3)
    column = next(i for i, c in enumerate(LINEAR_SPEED_COLUMNS) if c.name == "linear_minutes_left")
    x["jobs"][0, 0, len(JOB_COLUMNS) + column] = LINEAR_SPEED_COLUMNS[column].scale * float(np.log1p(37.0))
    assert float(encoded(model, x)[2][0, 0]) == pytest.approx(37.0, rel=1e-4)


def test_the_service_says_the_same_minutes() -> None:
    model, x = net(), tensors(3, 4, 2, 5)
    _, jobs, minutes = encoded(model, x)
    scale = next(column.scale for column in LINEAR_SPEED_COLUMNS if column.name == "linear_minutes_left")
    with torch.no_grad():
        stretch = model.encoder.length(jobs)[0, :, 0]
    declared = torch.expm1(x["jobs"][0, :, LINEAR_MINUTES] / scale)
    found = [stretched(float(each), float(by)) for each, by in zip(declared, stretch, strict=True)]
    np.testing.assert_allclose(found, minutes[0].numpy(), rtol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layers", [1, 3])
def test_the_graphs_answer_as_torch_on_edge_shapes(tmp_path: Path, seed: int, layers: int) -> None:
    model = net(seed, layers)
    write_onnx(model, tmp_path)
    assert (1, 1, 0) in SIZES
    assert parity(model, tmp_path) <= 1e-5
    assert parity(net(seed + 1, layers), tmp_path) > 1e-3  # a parity that can fail


def test_a_graph_of_other_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_onnx(net(), tmp_path)
    monkeypatch.setattr("placewise_models.session.feature_schema", lambda model: {"hash": "other"})
    with pytest.raises(ValueError, match="features"):
        PolicyRuntime.from_folder(tmp_path)


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="heads"):
        PolicyNet(width=30, heads=4)
