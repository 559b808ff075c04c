"""The reward model's uncertainty: small on learned inputs, large on others, and no speed rests on it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from placewise_core.inputs.cluster import PART_FEATURES
from placewise_models.reward import RewardRuntime
from placewise_training.reward.data import record
from placewise_training.reward.ensemble import PriorEnsemble, pooled_of_new
from placewise_training.reward.export import GRAPH, random_inputs, write_onnx
from placewise_training.reward.judge_uncertainty import knowledge, predicted, rank_correlation
from placewise_training.reward.net import RewardNet
from placewise_training.reward.uncertainty import choose_gain, errors_of_new, train_ensemble
from placewise_training.reward.unfamiliar import PRACTICE, SITUATIONS
from placewise_training.reward.weights import net_of


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small only wait for further threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(seed: int = 0) -> RewardNet:
    torch.manual_seed(seed)
    return RewardNet(PART_FEATURES, width=16, heads=4).eval()


def answers(model: RewardNet, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        speed, spread = model(*(torch.from_numpy(array) for array in random_inputs((2, 9), seed).values()))
    return speed, spread


def test_pooling_sees_the_new_job_alone() -> None:
    tokens = torch.tensor([[[1.0, 5.0], [3.0, 1.0], [9.0, 9.0], [7.0, 7.0]]])
    pooled = pooled_of_new(tokens, torch.tensor([[0, 0, 1, -1]]))
    assert pooled.tolist() == [[2.0, 3.0, 3.0, 5.0]]


def test_members_agree_on_their_data_and_nowhere_else() -> None:
    torch.manual_seed(0)
    ensemble, rng = PriorEnsemble(3), np.random.default_rng(0)
    known = torch.from_numpy(rng.uniform(-1, 1, (400, 6)).astype(np.float32))
    wanted = 0.3 * known[:, :1]
    ensemble.standardise(known)
    optimiser = torch.optim.Adam(ensemble.learned.parameters(), lr=1e-2)
    untrained = float(ensemble(known).detach().mean())
    for _ in range(300):
        loss = (ensemble.members(known) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        near, far = float(ensemble(known).mean()), float(ensemble(known + 6.0).mean())
    assert near < 0.1 * untrained
    assert far > 20 * near


def test_a_spread_grows_with_the_uncertainty_and_no_speed_changes() -> None:
    model = net()
    speed, spread = answers(model)
    model.uncertainty.gain.fill_(3.0)
    again, wider = answers(model)
    torch.testing.assert_close(again, speed, rtol=0, atol=0)
    assert bool((wider > spread).all())


def test_the_prior_is_never_trained() -> None:
    model = net()
    before = [parameter.clone() for parameter in model.uncertainty.prior.parameters()]
    samples = record(SITUATIONS["familiar"](1))[:64]
    train_ensemble(model, samples, 20, np.random.default_rng(0))
    for parameter, was in zip(model.uncertainty.prior.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, was, rtol=0, atol=0)


def test_training_lowers_the_uncertainty_of_what_it_saw_and_less_of_what_it_did_not() -> None:
    model = net()
    familiar = record(SITUATIONS["familiar"](1))
    strange = record(SITUATIONS["K80 beside A100"](1))[:200]
    train_ensemble(model, familiar, 300, np.random.default_rng(0))
    with torch.no_grad():
        near, far = (float(model.uncertainty(errors_of_new(model, of)[0]).mean()) for of in (familiar, strange))
    assert far > 2 * near


def test_the_gain_is_the_likeliest() -> None:
    model = net()
    practice = [record(make(3))[:80] for make in list(PRACTICE.values())[:2]]
    losses = choose_gain(model, practice)
    assert float(model.uncertainty.gain) == float(min(losses, key=lambda gain: losses[gain]))
    assert len(set(losses.values())) == len(losses)


def test_a_served_graph_comes_back_as_a_net(tmp_path: Path) -> None:
    model = net(4)
    model.uncertainty.gain.fill_(2.0)
    write_onnx(model, tmp_path / "reward.onnx")
    assert GRAPH.parity(model, tmp_path / "reward.onnx") <= 1e-5
    torch.testing.assert_close(answers(net_of(tmp_path / "reward.onnx"))[0], answers(model)[0], rtol=1e-5, atol=1e-6)

    stored = onnx.load(str(tmp_path / "reward.onnx"))
    onnx.helper.set_model_props(stored, {"feature_schema": "other"})
    onnx.save(stored, str(tmp_path / "other.onnx"))
    with pytest.raises(ValueError, match="other features"):
        net_of(tmp_path / "other.onnx")


def test_what_the_spread_knows_is_measured(tmp_path: Path) -> None:
    write_onnx(net(), tmp_path / "reward.onnx")
    scorer = RewardRuntime.from_file(tmp_path / "reward.onnx")
    samples = record(SITUATIONS["familiar"](1))[:90]
    wrong, spread = predicted(scorer, samples)
    assert len(wrong) == len(spread) == 90
    true = np.array([sample.speed[sample.job == 0][0] for sample in samples])
    assert np.isfinite(np.log(true)).all()
    found = knowledge(wrong, spread, float(np.median(spread)))
    assert found["share_beyond"] == pytest.approx(0.5, abs=0.05)
    assert rank_correlation(np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.3, 9.0])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 2.0, 4.0]), np.array([9.0, 0.3, 0.1])) == pytest.approx(-1.0)


def test_every_situation_has_jobs_and_is_repeatable() -> None:
    for make in (*SITUATIONS.values(), *PRACTICE.values()):
        drawn = make(5)
        first, again = (drawn.workload.generate(drawn.truth, drawn.seed) for _ in range(2))
        assert [job.samples for job in first] == [job.samples for job in again]
        assert first
