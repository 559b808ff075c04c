"""Trainers compute on a GPU if there is one. Otherwise torch's meta device stands for it: it computes
nothing, but refuses a tensor that stayed on the CPU, as a GPU would."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from placewise_core.inputs.cluster import PART_FEATURES
from placewise_core.inputs.ldwp import COLUMNS
from placewise_training.lab.device import chosen_device
from placewise_training.ldwp import train as train_ldwp
from placewise_training.ldwp.data import MOST_NODES, Replay
from placewise_training.policy import args as policy_args
from placewise_training.policy import batches as policy_batches
from placewise_training.policy import train as train_policy
from placewise_training.policy.checkpoint import Checkpoint, copied, keep, restore
from placewise_training.policy.export import load_net as load_policy
from placewise_training.policy.net import PolicyNet
from placewise_training.policy.rollouts import Conduct, rollout, situation
from placewise_training.reward import train as train_reward
from placewise_training.reward.data import Sample, collate
from placewise_training.reward.net import RewardNet, relative_error, scale_loss
from placewise_training.reward.uncertainty import train_ensemble
from placewise_training.reward.weights import load_net
from placewise_training.sharing import train as train_sharing
from placewise_training.sharing.net import CoRunCompletion
from placewise_training.stdm import train as train_stdm
from placewise_training.stdm.net import MetricCompletion, Ncf

ELSEWHERE = ["meta", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize(
    ("is_there", "asked", "expected"),
    [(True, "", "cuda"), (False, "", "cpu"), (True, "cpu", "cpu"), (False, "cuda:1", "cuda:1")],
)
def test_a_gpu_is_chosen_where_there_is_one_unless_another_device_is_asked_for(
    is_there: bool, asked: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    assert chosen_device(asked) == torch.device(expected)


class AskedError(Exception):
    """A trainer asked where to compute."""


@pytest.mark.parametrize(
    ("trainer", "args"),
    [
        (train_reward, train_reward.Args),
        (train_policy, policy_args.Args),
        (train_ldwp, train_ldwp.Args),
        (train_stdm, partial(train_stdm.Args, processes=1)),
        (train_sharing, partial(train_sharing.Args, processes=1, draws=1)),
    ],
    ids=["reward", "policy", "ldwp", "stdm", "sharing"],
)
def test_every_trainer_asks_where_to_compute(
    trainer: ModuleType, args: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(asked: str) -> torch.device:
        raise AskedError(asked)

    monkeypatch.setattr(trainer, "chosen_device", ask)
    with pytest.raises(AskedError, match=r"^somewhere$"):
        trainer.train(args(out=tmp_path, device="somewhere"))


@pytest.mark.parametrize("device", ELSEWHERE)
def test_ldwp_learns_where_its_net_is(device: str) -> None:
    args = replace(train_ldwp.Args(), batch=8, device=device, target_every=2)
    state = train_ldwp.fresh(args)
    rng = np.random.default_rng(0)
    shape = (20, MOST_NODES)
    rows, action = rng.random((*shape, len(COLUMNS)), dtype=np.float32), rng.integers(MOST_NODES, size=20)
    reward = rng.random(20).astype(np.float32)
    state.replay = Replay(rows, np.ones(shape, dtype=np.float32), action, action, reward, np.full(20, -1))
    for _ in range(2):
        assert train_ldwp.update(state, args, 1.0).device.type == device
    assert {parameter.device.type for parameter in state.target.parameters()} == {device}


@pytest.mark.parametrize("device", ELSEWHERE)
def test_completions_learn_where_they_are(device: str) -> None:
    values = np.random.default_rng(0).random((5, 6))
    known = np.where(np.arange(6) < 2, values, np.nan)
    metrics, co_runs = MetricCompletion(6).to(device), CoRunCompletion(2, members=2).to(device)
    errors = [train_stdm.mean_error(metrics, values, known), train_sharing.mean_error(co_runs, values, known, values)]
    cells = train_stdm.Cells.of(values, torch.device(device))
    ncf = Ncf(5, 6).to(device)
    errors.append((ncf(cells.subtask, cells.metric) - cells.value).mean() + ncf.table().mean() + ncf.weights())
    for error in errors:
        error.backward()  # type: ignore[no-untyped-call]
        assert error.device.type == device
    grown = [p.grad for net in (metrics, co_runs, ncf) for p in net.parameters()]
    assert {grad.device.type for grad in grown if grad is not None} == {device}


def reward_samples() -> list[Sample]:
    tokens = np.random.default_rng(0).random((4, PART_FEATURES), dtype=np.float32)
    return [Sample(tokens, np.array([0, 0, 1, 1]), np.arange(4), np.ones(4, dtype=np.float32))] * 3


@pytest.mark.parametrize("device", ELSEWHERE)
def test_the_reward_model_learns_where_it_is(device: str) -> None:
    net = RewardNet(PART_FEATURES, width=16, heads=4, members=2).to(device)
    tensors = train_reward._tensors(collate(reward_samples()), torch.device(device))
    tokens, job, node, speed, weight, bound = tensors
    level, scale = net.members(tokens, job, node)
    args = replace(train_reward.Args(), members=2)
    true, weights = speed.unsqueeze(2), train_reward._weights(job, weight, args, np.random.default_rng(0))
    loss = relative_error(level.exp(), true, weights, bound.unsqueeze(2)) + scale_loss(level, scale, true, weights)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.device.type == device


@pytest.mark.parametrize("device", ELSEWHERE)
def test_the_policy_learns_where_it_is(device: str, tmp_path: Path) -> None:
    net = PolicyNet(16, 2, 1).eval()
    episode = rollout(situation(3, 6), train_policy.exported(net, tmp_path), Conduct(sampled=True))
    batch = policy_batches.collate([interval.chunks[0] for interval in episode.intervals], torch.device(device))
    answers = policy_batches.ask(net.to(device), batch)
    taken, spread = policy_batches.log_pi_taken(batch, answers), policy_batches.entropy(batch, answers)
    loss = (taken + spread).mean() + answers.value.mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.device.type == device


@pytest.mark.parametrize("device", ELSEWHERE)
def test_the_doubt_learns_where_its_net_is(device: str) -> None:
    net = RewardNet(PART_FEATURES, width=16, heads=4).to(device)
    train_ensemble(net, reward_samples(), 2, np.random.default_rng(0))
    assert {parameter.device.type for parameter in net.uncertainty.parameters()} == {device}


def test_checkpoints_are_read_onto_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If they are written beside a GPU, they are resumed and exported without one."""
    asked: list[Any] = []
    load = torch.load

    def watched(*where: Any, **options: Any) -> Any:
        asked.append(options.get("map_location"))
        return load(*where, **options)

    ldwp = replace(train_ldwp.Args(), out=tmp_path, width=8)
    train_ldwp.keep(ldwp, train_ldwp.fresh(ldwp), 0.0)
    net = PolicyNet(16, 2, 1)
    run = Checkpoint(net, torch.optim.Adam(net.parameters()), best_state=copied(net))
    keep(tmp_path, run)
    reward = {"simulations": 2, "judged_simulations": 1, "steps": 1, "width": 8, "heads": 2, "doubt_steps": 1}
    trained = train_reward.Args(out=tmp_path, practice=1, held_back=0.5, **reward)
    train_reward.train(trained)

    monkeypatch.setattr(torch, "load", watched)
    train_ldwp.restored(ldwp)
    restore(tmp_path, run)
    load_policy(tmp_path / "policy.pt")
    load_net(tmp_path / "reward.pt")
    train_reward.train(replace(trained, steps=1, resume=True))
    assert asked == ["cpu"] * 5
