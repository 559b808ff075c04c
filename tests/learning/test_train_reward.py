"""The reward model: it does not care about order, its trainer learns, and a stopped run goes on where it was."""

from pathlib import Path

import numpy as np
import pytest
import torch

from placewise_core.features import PART_FEATURES
from placewise_core.pace import linear_speed
from placewise_core.place.load_balance import LoadBalance
from placewise_training.data import reward_samples
from placewise_training.data.reward_samples import (
    Recorder,
    Sample,
    collate,
    judging_situation,
    record,
    training_situation,
)
from placewise_training.export import export_reward, parity, random_inputs, write_onnx
from placewise_training.model_card import card
from placewise_training.models.reward import RewardNet, relative_error
from placewise_training.sim.engine import SimOptions, Simulation
from placewise_training.sim.jobs import workers_of
from placewise_training.sim.nets import OnnxScorer
from placewise_training.train_reward import Args, constant_error, load_net, train

TINY = {
    "simulations": 6,
    "judged_simulations": 1,
    "batch": 32,
    "width": 32,
    "heads": 4,
    "warm_up": 40,
    "held_back": 0.34,
}


def net(seed: int = 0) -> RewardNet:
    torch.manual_seed(seed)
    return RewardNet(PART_FEATURES, width=16, heads=4).eval()


def predict(model: RewardNet, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs.values())))


@pytest.mark.parametrize("seed", range(3))
def test_permuting_tokens_permutes_the_answer(seed: int) -> None:
    inputs = random_inputs(1, 12, seed)
    order = np.random.default_rng(seed).permutation(12)
    shuffled = {name: array[:, order] for name, array in inputs.items()}
    np.testing.assert_allclose(predict(net(), inputs)[:, order], predict(net(), shuffled), rtol=1e-4)


def test_names_of_jobs_and_nodes_do_not_matter() -> None:
    inputs = random_inputs(1, 12, 5)
    renamed = {**inputs, "job": 7 - inputs["job"] + 100, "node": 50 - inputs["node"]}
    np.testing.assert_allclose(predict(net(), inputs), predict(net(), renamed), rtol=1e-5)


def test_padding_changes_nothing() -> None:
    inputs = random_inputs(1, 6, 1)
    padded = {
        "tokens": np.concatenate([inputs["tokens"], np.full((1, 4, PART_FEATURES), 9.0, np.float32)], axis=1),
        **{name: np.concatenate([inputs[name], np.full((1, 4), -1)], axis=1) for name in ("job", "node")},
    }
    np.testing.assert_allclose(predict(net(), inputs), predict(net(), padded)[:, :6], rtol=1e-4)


def test_all_tokens_of_a_job_get_one_speed() -> None:
    inputs = random_inputs(2, 10, 2)
    speeds = predict(net(), inputs)
    for row, jobs in zip(speeds, inputs["job"], strict=True):
        for job in set(jobs.tolist()) - {-1}:
            assert np.ptp(row[jobs == job]) < 1e-5 * row[jobs == job].max()


def test_the_loss_is_the_papers() -> None:
    predicted, true = torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[2.0, 2.0, 9.0]])
    weight = torch.tensor([[1.0, 1.0, 0.0]])
    assert float(relative_error(predicted, true, weight)) == pytest.approx((0.5 + 0.5) / 2)


def test_samples_are_repeatable_and_true() -> None:
    first, again = (record(judging_situation(3))[:5] for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.speed, b.speed)
    for sample in first:
        assert np.isfinite(sample.tokens).all()
        assert (sample.speed > 0).all()
        assert sample.job.min() == 0


def test_the_label_is_what_then_happens() -> None:
    """The recorder takes the first placement it recorded: the job then runs at the speed the sample says."""
    situation = judging_situation(1)
    jobs = situation.workload.generate(situation.truth, situation.seed)
    recorder = Recorder([LoadBalance()], np.random.default_rng(0), [])
    sim = Simulation(situation.nodes, jobs, situation.truth, recorder, options=SimOptions(reports_progress=True))
    recorder.simulation = sim
    compared = 0
    while compared < 5:
        before = len(recorder.samples)
        sim.run_until(sim.events.next_time_s)
        if len(recorder.samples) == before + 1:
            live = list(sim.running.values())[-1]
            linear = linear_speed(live.sim.job, workers_of(live.sim.job))
            speed = live.rate / (live.sim.samples / live.sim.job.total_epochs) / linear
            sample = recorder.samples[-1]
            assert sample.speed[sample.job == 0] == pytest.approx(speed, rel=1e-5)
            compared += 1


def test_every_job_counts_once() -> None:
    samples = record(judging_situation(1))[:3]
    weights = collate(samples)["weight"].sum(axis=1)
    assert weights.tolist() == pytest.approx([len(set(s.job.tolist())) for s in samples])


def test_samples_survive_the_disk(tmp_path: Path) -> None:
    samples = record(training_situation(0))[:7]
    reward_samples.save(tmp_path / "s.npz", samples)
    read = reward_samples.read(tmp_path / "s.npz")
    assert reward_samples.fingerprint(read) == reward_samples.fingerprint(samples)


@pytest.mark.slow
def test_training_learns_resumes_and_exports(tmp_path: Path) -> None:
    whole = train(Args(out=tmp_path / "whole", steps=400, validate_every=100, **TINY))  # type: ignore[arg-type]
    held_back = whole["metrics"]["held_back"]
    assert held_back["mean_relative_error"] < 0.7 * held_back["mean_relative_error_constant"]

    model = export_reward(tmp_path / "whole", tmp_path / "bundle")
    assert parity(load_net(tmp_path / "whole" / "reward.pt"), model) <= 1e-5
    report = (tmp_path / "bundle" / "reward.json").read_text("utf-8")
    assert '"sample"' in report
    assert "Limits" in card(whole)

    go_on = Args(out=tmp_path / "whole", steps=440, validate_every=20, resume=True, **TINY)  # type: ignore[arg-type]
    longer = train(go_on)
    assert longer["metrics"]["held_back"]["mean_relative_error"] <= held_back["mean_relative_error"] + 1e-9


def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    few = {**TINY, "simulations": 2, "held_back": 0.5}
    train(Args(out=tmp_path, steps=2, validate_every=1, **few))  # type: ignore[arg-type]
    other = {**few, "width": 16}
    with pytest.raises(ValueError, match="another net"):
        train(Args(out=tmp_path, steps=4, resume=True, **other))  # type: ignore[arg-type]


@pytest.mark.parametrize(("placements", "tokens"), [(1, 1), (1, 96), (8, 3), (5, 40)])
def test_parity_on_edge_shapes(tmp_path: Path, placements: int, tokens: int) -> None:
    write_onnx(net(3), tmp_path / "m.onnx")
    inputs = random_inputs(placements, tokens, 7)
    theirs = OnnxScorer.load(tmp_path / "m.onnx").session.run(["speed"], inputs)[0]
    is_token = inputs["job"] >= 0
    np.testing.assert_allclose(predict(net(3), inputs)[is_token], theirs[is_token], rtol=1e-5, atol=1e-5)


def test_one_number_for_all_is_what_the_constant_means() -> None:
    tokens = np.zeros((2, PART_FEATURES), np.float32)
    same = [Sample(tokens, np.array([0, 1]), np.array([0, 1]), np.array([0.5, 0.5], np.float32))]
    assert constant_error(same, same) == pytest.approx(0.0)
