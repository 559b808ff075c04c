"""Harmony's trainer: every method solves a toy problem, imitation learns, a stopped run goes on, the shipped net
serves."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES, Observation
from placewise_training.policy.args import Args
from placewise_training.policy.batches import ask, collate, log_pi_taken
from placewise_training.policy.card import card
from placewise_training.policy.checkpoint import Checkpoint, load_net
from placewise_training.policy.export import export_policy
from placewise_training.policy.net import PolicyNet, masked_log_probabilities
from placewise_training.policy.rollouts import (
    Chunk,
    Conduct,
    Episode,
    Interval,
    RolloutStep,
    jobs_of,
    rollout,
    situation,
)
from placewise_training.policy.teacher import Teacher
from placewise_training.policy.train import exported, train
from placewise_training.policy.updates import Replay, actor_critic, gae, imitate, ppo, samples_of
from placewise_training.sim.policies import opened, placement_policy

NODES = 4
TINY = Args(width=16, heads=2, layers=1, simulations=3, jobs=8, judged_seeds=1, judged_jobs=8, validation_simulations=1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Nets this small only wait for further threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def toy(rng: np.random.Generator, model: PolicyNet) -> tuple[Episode, float]:
    """One task, four nodes, one of them marked in its step features: the reward is 1 for a worker there, else 0. The
    action is drawn from π; also given is π's probability of the right one."""
    right = int(rng.integers(NODES))
    step = rng.uniform(0, 0.2, (NODES, STEP_FEATURES)).astype(np.float32)
    step[right, 3] = 1.0
    seen = Observation(
        rng.uniform(0, 1, (NODES, NODE_FEATURES)).astype(np.float32),
        rng.uniform(0, 1, (1, JOB_FEATURES)).astype(np.float32),
        np.zeros((1, NODES, 2), np.float32),
        -1,
    )
    mask = np.array([True] * NODES + [False] * NODES)
    with torch.no_grad():
        nodes, jobs, _ = model.encoder(
            torch.from_numpy(seen.nodes)[None],
            torch.from_numpy(seen.jobs)[None],
            torch.from_numpy(seen.placement)[None],
            torch.ones(1, 1),
            torch.ones(1, NODES),
        )
        logits = model.decoder(nodes, jobs[:, 0], torch.from_numpy(step)[None])
        odds = masked_log_probabilities(logits, torch.from_numpy(mask)[None]).exp()[0].double().numpy()
    action = int(rng.choice(2 * NODES, p=odds / odds.sum()))
    chunk = Chunk(seen, [RolloutStep(0, step, mask, action, float(odds[action]))])
    reward = 20.0 * float(action == right)  # the trainer scales JCT rewards by a twentieth
    return Episode([Interval([chunk], reward)], 0.0, 1), float(odds[right])


def run_of(model: PolicyNet) -> Checkpoint:
    return Checkpoint(model, torch.optim.Adam(model.parameters()))


def test_gae_is_its_definition() -> None:
    rewards, values, discounts = [1.0, -2.0, 0.5], [0.3, 0.1, -0.4], [0.9, 0.81, 0.9]
    deltas = [r + d * v - w for r, d, v, w in zip(rewards, discounts, [*values[1:], 0.0], values, strict=True)]
    expected = [
        deltas[0] + 0.9 * 0.8 * deltas[1] + 0.9 * 0.8 * 0.81 * 0.8 * deltas[2],
        deltas[1] + 0.81 * 0.8 * deltas[2],
        deltas[2],
    ]
    assert gae(rewards, values, discounts, 0.8) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("method", "technique"),
    [
        ("ppo", {}),
        *(
            pytest.param("actor-critic", technique, marks=pytest.mark.slow)
            for technique in ({}, {"value": False}, {"replay": 0})
        ),
    ],
)
def test_a_toy_problem_is_solved(method: str, technique: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model, rng = PolicyNet(16, 2, 1), np.random.default_rng(5)
    args = replace(TINY, rate=5e-3, entropy=0.02, chunks=32, reward="jct", **technique)
    run, replay = run_of(model), Replay(256)
    first = np.mean([toy(rng, model)[1] for _ in range(32)])
    for _ in range(20):
        episodes = [toy(rng, model)[0] for _ in range(32)]
        if method == "ppo":
            ppo(args, run, episodes, rng, CPU)
        else:
            actor_critic(args, run, replay, episodes, 0.5, rng, CPU)
    last = np.mean([toy(rng, model)[1] for _ in range(32)])
    assert first < 0.5
    assert last > 0.85


def test_the_return_of_a_sample_is_the_discounted_sum_of_rewards() -> None:
    rng = np.random.default_rng(3)
    chunks = [toy(rng, PolicyNet(16, 2, 1))[0].intervals[0].chunks[0] for _ in range(4)]
    episode = Episode(
        [Interval(chunks[:2], 2.0, 1.0), Interval([chunks[2]], 3.0, 2.0), Interval([chunks[3]], 5.0)], 0.0, 4
    )
    found = samples_of([episode], 0.5, 10.0)
    assert [sample.chunk for sample in found] == chunks
    assert [sample.total for sample in found] == pytest.approx([20 + 0.5 * 42.5, 20 + 0.5 * 42.5, 42.5, 50])
    assert [sample.after for sample in found] == [chunks[2], chunks[2], chunks[3], None]


def test_a_replay_holds_the_latest_tasks() -> None:
    rng = np.random.default_rng(3)
    samples = samples_of([toy(rng, PolicyNet(16, 2, 1))[0] for _ in range(9)], 0.9, 1.0)
    replay = Replay(4)
    replay.add(samples)
    drawn = replay.draw(200, rng)
    assert len(drawn) == 200
    assert {id(sample) for sample in drawn} == {id(sample) for sample in samples[-4:]}
    assert replay.mean == pytest.approx(np.mean([sample.total for sample in samples]))


def test_imitation_learns_the_teachers_placements(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = PolicyNet(32, 4, 1)
    run, kept = run_of(model), deque[Chunk](maxlen=1000)
    args = replace(TINY, imitation_rate=2e-3, passes=40.0, chunks=16)
    acting = exported(model.eval(), tmp_path)
    taught = Conduct(taught=1.0)
    episodes = [
        rollout(situation(seed, 25), acting, taught, teacher=Teacher(np.random.default_rng(seed))) for seed in (1, 2)
    ]
    rng = np.random.default_rng(0)
    first = imitate(replace(args, passes=0.5), run, kept, episodes, 0.0, rng, CPU)
    imitate(args, run, kept, episodes, 0.0, rng, CPU)
    last = imitate(replace(args, passes=0.5), run, kept, episodes, 0.0, rng, CPU)
    assert last["divergence"] < 0.8 * first["divergence"]
    assert last["minutes_error"] < first["minutes_error"]


def test_a_taught_actor_beats_one_that_draws_at_random(tmp_path: Path) -> None:
    """The imitated teacher is worth imitating: on training truths, paired by seed."""
    model = exported(PolicyNet(16, 2, 1).eval(), tmp_path)
    better = 0
    for seed in range(3):
        drawn = situation(50 + seed, 25)
        teacher = Teacher(np.random.default_rng(seed))
        taught = rollout(drawn, model, Conduct(taught=1.0), teacher=teacher).avg_jct_s
        better += taught < rollout(drawn, model, Conduct(sampled=True)).avg_jct_s
    assert better == 3


def test_every_kept_probability_is_the_policys_own(tmp_path: Path) -> None:
    """Also of the gangs an explorer placed: importance ratios rest on it."""
    model = PolicyNet(16, 2, 1).eval()
    episode = rollout(situation(3, 12), exported(model, tmp_path), Conduct(explore=0.5))
    chunks = [chunk for interval in episode.intervals for chunk in interval.chunks]
    batch = collate(chunks, CPU)
    with torch.no_grad():
        answers = ask(model, batch)
    now = log_pi_taken(batch, answers).exp()
    torch.testing.assert_close(now, batch.probability, rtol=1e-3, atol=1e-5)
    assert episode.steps == len(now)


def test_a_count_of_epochs_tells_nothing_of_the_length() -> None:
    jobs = [job for seed in range(6) for job in jobs_of(situation(seed, 40))]
    epochs, length = np.log([job.job.total_epochs for job in jobs]), np.log([job.ideal_s for job in jobs])
    assert abs(float(np.corrcoef(epochs, length)[0, 1])) < 0.8
    same = situation(0, 5)
    plain = same.workload.generate(same.truth, same.seed)
    for changed, job in zip(jobs_of(same), plain, strict=True):
        assert changed.job.total_iterations == pytest.approx(job.job.total_iterations, rel=1e-2)
        assert changed.samples == job.samples


def test_large_clusters_take_their_share_and_leave_the_others_as_they_are() -> None:
    usual = [situation(seed, 5) for seed in range(60)]
    mixed = [situation(seed, 5, large_share=0.5) for seed in range(60)]
    large = [drawn for drawn in mixed if len(drawn.nodes) > 12]
    assert max(len(drawn.nodes) for drawn in usual) <= 12
    assert 20 <= len(large) <= 40
    assert max(len(drawn.nodes) for drawn in large) > 28
    assert {drawn.workload.most_tasks for drawn in large} == {5, 8, 10}
    for before, after in zip(usual, mixed, strict=True):
        assert len(after.nodes) > 12 or after.workload == before.workload


@pytest.mark.slow
def test_training_runs_resumes_exports_and_serves(tmp_path: Path) -> None:
    args = replace(TINY, out=tmp_path, method="imitate+ppo", tasks=120, warm_share=0.5, validate_every=1)
    report = train(args)
    assert report["tasks"] >= 120
    assert set(report["metrics"]["avg_jct_s"]) == {"harmony", "consolidate", "load-balance"}
    assert list((tmp_path / "tensorboard").iterdir())

    export_policy(tmp_path, tmp_path / "bundle")
    written = json.loads((tmp_path / "bundle" / "policy.json").read_text("utf-8"))
    assert written["parity"] <= 1e-5
    assert "2 to 12 nodes" in card(written)
    assert "2 to 32 nodes" in card({**written, "args": {**written["args"], "large_share": 0.5}})
    assert placement_policy("harmony", opened(tmp_path / "bundle")).name == "harmony"

    longer = train(replace(args, tasks=200, resume=True))
    assert longer["tasks"] >= 200
    assert longer["history"][: len(report["history"])] == report["history"]
    with pytest.raises(ValueError, match="another net"):
        train(replace(args, width=32, resume=True))
    assert sum(p.numel() for p in load_net(tmp_path / "policy.pt").parameters()) > report["parameters"]


@pytest.mark.parametrize("wrong", [{"method": "magic"}, {"teacher": "judge"}, {"reward": "praise"}])
def test_what_there_is_not_is_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        train(replace(TINY, out=tmp_path, **wrong))  # type: ignore[arg-type]
