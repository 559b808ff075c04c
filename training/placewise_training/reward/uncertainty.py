"""Trains the reward model's uncertainty: an ensemble on its errors, and its weight. No speed changes.

The members learn the errors of the finished net on its training placements. The gain is then chosen on placements it
was not trained on, familiar and unfamiliar (data.unfamiliar.PRACTICE), by the likelihood of its errors there.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from placewise_training.reward.data import Sample, collate
from placewise_training.reward.ensemble import pooled_of_new
from placewise_training.reward.net import RewardNet

_GAINS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_RATE, _BATCH = 3e-3, 256
_BEND = 0.3  # of the error of a log-speed: beyond it a member follows the median


def train_ensemble(net: RewardNet, training: Sequence[Sample], steps: int, rng: np.random.Generator) -> None:
    """Fits the members on the net's device, each to a bootstrap of its own. Leaves the rest of the net as it is."""
    pooled, wrong, _ = errors_of_new(net, training)
    uncertainty = net.uncertainty
    uncertainty.standardise(pooled)
    members = uncertainty.learned.out.shape[0]
    weights = torch.from_numpy(rng.poisson(1.0, (len(wrong), members)).astype(np.float32)).to(wrong.device)
    optimiser = torch.optim.Adam(uncertainty.learned.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for _ in range(steps):
        chosen = torch.from_numpy(rng.integers(0, len(wrong), _BATCH)).to(wrong.device)
        missed = uncertainty.members(pooled[chosen]) - wrong[chosen].unsqueeze(1)
        loss = torch.nn.functional.smooth_l1_loss(missed, torch.zeros_like(missed), reduction="none", beta=_BEND)
        optimiser.zero_grad()
        (loss * weights[chosen]).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


def choose_gain(net: RewardNet, practice: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """Sets the gain under which the errors are likeliest, every set counting the same; the loss by gain."""
    seen = [errors_of_new(net, samples) for samples in practice]
    losses: dict[str, float] = {}
    for gain in _GAINS:
        net.uncertainty.gain.fill_(gain)
        with torch.no_grad():
            each = [_likelihood(wrong, (expected + net.uncertainty(pooled)).sqrt()) for pooled, wrong, expected in seen]
        losses[f"{gain:g}"] = float(np.mean(each))
    net.uncertainty.gain.fill_(float(min(losses, key=lambda gain: losses[gain])))
    return losses


def _likelihood(wrong: Tensor, spread: Tensor) -> float:
    """Mean negative log-likelihood of a Laplace distribution of that standard deviation."""
    scale = spread / 2.0**0.5
    return float((scale.log() + wrong.abs() / scale).mean())


def errors_of_new(net: RewardNet, samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Of the new job of every placement: pooled features (N, 2F), error of the log-speed and the variance (N,) that
    the net expects of it without the ensemble."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    net.eval()
    device = net.uncertainty.centre.device
    for start in range(0, len(samples), _BATCH):
        batch = collate(samples[start : start + _BATCH])
        arrays = (np.asarray(batch[name]) for name in ("tokens", "job", "node", "speed"))
        tokens, job, node, speed = (torch.from_numpy(array).to(device) for array in arrays)
        with torch.no_grad():
            level, scale = net.members(tokens, job, node)
            at = (job == 0).long().argmax(dim=1, keepdim=True)  # the first token of the new job
            wrong = (speed.log() - level.mean(dim=2)).gather(1, at).squeeze(1)
            expected = net.expected(level, scale).gather(1, at).squeeze(1)
        parts.append((pooled_of_new(tokens, job), wrong, expected))
    net.train()
    pooled, wrong, expected = (torch.cat(column) for column in zip(*parts, strict=True))
    return pooled, wrong, expected
