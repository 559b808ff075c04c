"""The reward model: it does not care about order, its trainer learns, and a stopped run goes on from its checkpoint."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from placewise_core.inputs.cluster import PART_COLUMNS, PART_FEATURES
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.speed.linear_speed import linear_speed
from placewise_models.reward import RewardRuntime
from placewise_training.reward import data as reward_samples
from placewise_training.reward.card import card
from placewise_training.reward.data import (
    Recorder,
    Sample,
    collate,
    judging_situation,
    record,
    training_situation,
    wide_situation,
)
from placewise_training.reward.export import GRAPH, export_reward, random_inputs, write_onnx
from placewise_training.reward.judge import NEVER, JobErrors, beyond, calibration, constant_error, spread_limit
from placewise_training.reward.net import RewardNet, relative_error, scale_loss
from placewise_training.reward.train import Args, train
from placewise_training.reward.weights import load_net
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.jobs import workers_of

TINY = {
    "simulations": 6,
    "judged_simulations": 1,
    "batch": 32,
    "width": 32,
    "heads": 4,
    "warm_up": 40,
    "held_back": 0.34,
    "doubt_steps": 40,
    "practice": 1,
}


def net(seed: int = 0) -> RewardNet:
    torch.manual_seed(seed)
    return RewardNet(PART_FEATURES, width=16, heads=4).eval()


def predict(model: RewardNet, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs.values()))[0])


@pytest.mark.parametrize("seed", range(3))
def test_permuting_tokens_permutes_the_answer(seed: int) -> None:
    inputs = random_inputs((1, 12), seed)
    order = np.random.default_rng(seed).permutation(12)
    shuffled = {name: array[:, order] for name, array in inputs.items()}
    np.testing.assert_allclose(predict(net(), inputs)[:, order], predict(net(), shuffled), rtol=1e-4)


def test_names_of_jobs_and_nodes_do_not_matter() -> None:
    inputs = random_inputs((1, 12), 5)
    renamed = {**inputs, "job": 7 - inputs["job"] + 100, "node": 50 - inputs["node"]}
    np.testing.assert_allclose(predict(net(), inputs), predict(net(), renamed), rtol=1e-5)


def test_padding_changes_nothing() -> None:
    inputs = random_inputs((1, 6), 1)
    padded = {
        "tokens": np.concatenate([inputs["tokens"], np.full((1, 4, PART_FEATURES), 9.0, np.float32)], axis=1),
        **{name: np.concatenate([inputs[name], np.full((1, 4), -1)], axis=1) for name in ("job", "node")},
    }
    np.testing.assert_allclose(predict(net(), inputs), predict(net(), padded)[:, :6], rtol=1e-4)


def test_all_tokens_of_a_job_get_one_speed() -> None:
    inputs = random_inputs((2, 10), 2)
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
    assert GRAPH.parity(load_net(tmp_path / "whole" / "reward.pt"), model) <= 1e-5
    report = (tmp_path / "bundle" / "reward.json").read_text("utf-8")
    assert '"sample"' in report
    assert 0 < whole["spread_limit"] <= NEVER
    assert "Limits" in card(whole)

    go_on = Args(out=tmp_path / "whole", steps=440, validate_every=20, resume=True, **TINY)  # type: ignore[arg-type]
    longer = train(go_on)
    assert longer["metrics"]["held_back"]["mean_relative_error"] <= held_back["mean_relative_error"] + 1e-9


@pytest.mark.slow
def test_a_stopped_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    few = {**TINY, "simulations": 2, "held_back": 0.5, "steps": 8, "validate_every": 4, "doubt_steps": 2}

    def stop(title: str, done: int, total: int) -> None:
        if title.startswith("training, ") and done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Args(out=tmp_path / "cut", **few), stop)  # type: ignore[arg-type]
    resumed = train(Args(out=tmp_path / "cut", resume=True, **few))  # type: ignore[arg-type]
    whole = train(Args(out=tmp_path / "whole", **few))  # type: ignore[arg-type]
    assert {name: resumed[name] for name in ("data", "metrics", "doubt")} == {
        name: whole[name] for name in ("data", "metrics", "doubt")
    }


@pytest.mark.slow
def test_the_command_gives_the_same_file_in_another_process(tmp_path: Path) -> None:
    """Whatever the order of sets and the folder; another seed gives another file."""
    few = "--simulations 2 --held-back 0.5 --judged-simulations 1 --steps 6 --validate-every 3 --batch 8 --width 32"
    few += " --heads 4 --doubt-steps 2 --practice 1"
    made: list[bytes] = []
    for hash_seed, seed in (("1", "0"), ("2", "0"), ("1", "1")):
        out = tmp_path / f"{hash_seed}-{seed}"
        command = [sys.executable, "-m", "placewise_service.cli", "train", "reward", "--out", str(out), "--seed", seed]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run([*command, *few.split()], check=True, capture_output=True, env=environment, timeout=600)
        made.append((out / "reward.onnx").read_bytes())
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    few = {**TINY, "simulations": 2, "held_back": 0.5}
    train(Args(out=tmp_path, steps=2, validate_every=1, **few))  # type: ignore[arg-type]
    other = {**few, "width": 16}
    with pytest.raises(ValueError, match="another net"):
        train(Args(out=tmp_path, steps=4, resume=True, **other))  # type: ignore[arg-type]
    checkpoint = str(tmp_path / "reward.pt")
    with pytest.raises(ValueError, match="of another shape"):
        train(Args(out=tmp_path, steps=4, start=checkpoint, **other))  # type: ignore[arg-type]
    report = train(Args(out=tmp_path, steps=2, validate_every=1, start=checkpoint, **few))  # type: ignore[arg-type]
    assert len(report["data"]["start"]) == 64


@pytest.mark.parametrize(("placements", "tokens"), [(1, 1), (1, 96), (8, 3), (5, 40)])
def test_parity_on_edge_shapes(tmp_path: Path, placements: int, tokens: int) -> None:
    write_onnx(net(3), tmp_path / "m.onnx")
    inputs = random_inputs((placements, tokens), 7)
    with torch.no_grad():
        ours = net(3)(*(torch.from_numpy(array) for array in inputs.values()))
    is_token = inputs["job"] >= 0
    session = RewardRuntime.from_file(tmp_path / "m.onnx").session
    for mine, theirs in zip(ours, session.run(["speed", "spread"], inputs), strict=True):
        np.testing.assert_allclose(mine.numpy()[is_token], theirs[is_token], rtol=1e-5, atol=1e-5)


def test_one_number_for_all_is_what_the_constant_means() -> None:
    tokens = np.zeros((2, PART_FEATURES), np.float32)
    same = [Sample(tokens, np.array([0, 1]), np.array([0, 1]), np.array([0.5, 0.5], np.float32))]
    assert constant_error(same, same) == pytest.approx(0.0)


def test_the_spread_is_disagreement_and_expected_error() -> None:
    model = net(1)
    inputs = [torch.from_numpy(array) for array in random_inputs((1, 8), 3).values()]
    with torch.no_grad():
        model.level[:] = model.level[:1]  # members that agree, and each expects an error of 10 %
        model.scale[:] = 0.0
        model.scale_bias[:] = float(np.log(0.1))
        model.uncertainty.gain.fill_(0.0)
        np.testing.assert_allclose(model(*inputs)[1].numpy(), 0.1 * 2**0.5, rtol=1e-5)
        model.level_bias[:] = torch.tensor([-0.3, 0.3, -0.3, 0.3])
        np.testing.assert_allclose(model(*inputs)[1].numpy(), (2 * 0.1**2 + 0.3**2) ** 0.5, rtol=1e-4)


def test_the_scale_loss_is_least_at_the_mean_error_and_leaves_the_speed_alone() -> None:
    true = torch.exp(torch.tensor([[0.1, -0.2, 0.3]])).unsqueeze(2)
    level = torch.zeros((1, 3, 1), requires_grad=True)
    losses = {
        scale: float(scale_loss(level, torch.full((1, 3, 1), float(np.log(scale))), true, torch.ones((1, 3, 1))))
        for scale in (0.1, 0.15, 0.2, 0.25, 0.3)
    }
    assert min(losses, key=losses.__getitem__) == 0.2
    scale_loss(level, torch.zeros((1, 3, 1), requires_grad=True), true, torch.ones((1, 3, 1))).backward()  # type: ignore[no-untyped-call]
    assert level.grad is None


def seen(wrong: np.ndarray, spread: np.ndarray) -> JobErrors:
    yes = np.ones(len(wrong), dtype=np.bool_)
    return JobErrors(wrong, np.log1p(wrong), spread, yes, yes)


def test_the_limit_separates_what_errs_more_and_is_out_of_reach_where_nothing_does() -> None:
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.05, 0.5, 2000)
    knows = seen(np.abs(rng.normal(0.0, spread)), spread)
    limit, separates = spread_limit(knows)
    assert 0.4 < limit < 0.5
    assert separates["error_beyond"] > separates["error_within"]
    sides = beyond(knows, limit)
    assert sides["error_beyond"] > sides["error_within"]
    assert sides["share_beyond"] == pytest.approx(1 - separates["kept_share"], abs=0.01)
    expected = [each["spread"] for each in calibration(knows)]
    assert expected == sorted(expected)
    assert calibration(knows)[-1]["log_error_rms"] > 2 * calibration(knows)[0]["log_error_rms"]
    blind = seen(np.abs(rng.normal(0.0, 0.2, 40)), spread[:40])
    assert spread_limit(blind)[0] == NEVER


def test_shared_gpus_and_interval_batches_are_among_the_samples() -> None:
    situations = [training_situation(seed) for seed in range(12)]
    assert {situation.every_s for situation in situations} == {0.0, 1200.0}
    shared = next(situation for situation in situations if situation.sharing_share)
    held = [column.name for column in PART_COLUMNS].index("gpus_held") - len(PART_COLUMNS)
    assert max(float(sample.tokens[:, held].max()) for sample in record(shared)) > 1.0


def test_wide_situations_differ_in_machines_and_disturbance_alone() -> None:
    pairs = [(training_situation(seed), wide_situation(seed)) for seed in range(40)]
    for usual, wide in pairs:
        assert wide.workload == usual.workload
        assert [spec.gpu_model for spec in wide.nodes] == [spec.gpu_model for spec in usual.nodes]
        assert 3e9 <= wide.nodes[0].interconnect_bps <= 3e11
        assert usual.nodes[0].interconnect_bps == 0.0
    bursts = [wide.truth.burst for _, wide in pairs]
    assert max(bursts) > 4
    assert min(bursts) < 2
    reported = [wide.nodes[0].node.hardware.interconnect_gbps > 0 for _, wide in pairs]
    assert 8 < sum(reported) < 32


def test_samples_of_another_share_of_wide_situations_are_not_taken_for_these(tmp_path: Path) -> None:
    few = Args(out=tmp_path, simulations=2, judged_simulations=1, steps=2, doubt_steps=2, practice=1, width=16, heads=2)
    first = train(few)
    again = train(replace(few, wide_share=1.0))
    assert first["data"]["training"] != again["data"]["training"]
