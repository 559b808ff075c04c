"""One round's learning of the policy net: imitation, PPO, Harmony's actor-critic. Simulates and judges nothing."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from placewise_training.policy.args import Args, reward_scale, warm_share
from placewise_training.policy.batches import ask, collate, entropy, imitation_loss, log_pi_taken
from placewise_training.policy.checkpoint import Checkpoint
from placewise_training.policy.net import PolicyNet
from placewise_training.policy.rollouts import Chunk, Episode

_CLIP = 0.2  # PPO's
_MOST_RATIO = 2.0  # importance ratio of a replayed sample: beyond it, it says more about the past than about π
_FORGETTING = 0.02  # of the moving average of returns, per interval


def imitate(
    args: Args,
    run: Checkpoint,
    kept: deque[Chunk],
    episodes: Sequence[Episode],
    share: float,
    rng: np.random.Generator,
    device: torch.device,
) -> dict[str, float]:
    """Towards the teacher's distributions, on all kept chunks."""
    fresh = [chunk for episode in episodes for interval in episode.intervals for chunk in interval.chunks]
    kept.extend(fresh)
    rate = args.imitation_rate * (1.0 - 0.9 * min(1.0, share / warm_share(args)))
    divergences, wrongs = [], []
    pool = list(kept)
    sizes = np.array([len(chunk.seen.nodes) for chunk in pool])
    for _ in range(max(1, round(args.passes * len(fresh) / args.chunks))):
        chosen = [pool[i] for i in _alike(sizes, args.chunks, rng)]
        batch = collate(chosen, device)
        answers = ask(run.net, batch)
        divergence, wrong = imitation_loss(batch, answers)
        _step(run, divergence + 0.2 * wrong, rate)
        divergences.append(float(divergence.detach()))
        wrongs.append(float(wrong.detach()))
    return {"divergence": float(np.mean(divergences)), "minutes_error": float(np.mean(wrongs))}


def ppo(
    args: Args, run: Checkpoint, episodes: Sequence[Episode], rng: np.random.Generator, device: torch.device
) -> dict[str, float]:
    """Proximal policy optimisation: clipped ratios, advantages by GAE over scheduling intervals."""
    samples: list[tuple[Chunk, float, float]] = []  # encoding, advantage, return
    for episode in episodes:
        values = _values(run.net, [interval.chunks[0] for interval in episode.intervals], device)
        rewards = [interval.reward * reward_scale(args, "ppo") for interval in episode.intervals]
        discounts = [args.gamma**interval.passed for interval in episode.intervals]
        advantages = gae(rewards, values if args.value else [0.0] * len(values), discounts, args.gae)
        for interval, advantage, value in zip(episode.intervals, advantages, values, strict=True):
            samples += [(chunk, advantage, advantage + value) for chunk in interval.chunks]
    spread = np.array([advantage for _, advantage, _ in samples])
    mean, deviation = float(spread.mean()), float(spread.std()) + 1e-6
    policy_losses, value_losses = [], []
    sizes = np.array([len(chunk.seen.nodes) for chunk, _, _ in samples])
    for _ in range(args.epochs * max(1, round(len(samples) / args.chunks))):
        chosen = [samples[i] for i in _alike(sizes, args.chunks, rng)]
        batch = collate([chunk for chunk, _, _ in chosen], device)
        answers = ask(run.net, batch)
        normal = torch.tensor([(a - mean) / deviation for _, a, _ in chosen], device=device)[batch.chunk]
        wanted = torch.tensor([r for _, _, r in chosen], device=device)
        ratio = torch.exp(log_pi_taken(batch, answers) - torch.log(batch.probability))
        clipped = torch.minimum(ratio * normal, ratio.clamp(1.0 - _CLIP, 1.0 + _CLIP) * normal)
        value_loss = torch.nn.functional.smooth_l1_loss(answers.value, wanted)
        loss = -clipped.mean() + 0.5 * value_loss * args.value - 0.02 * args.entropy * entropy(batch, answers).mean()
        _step(run, loss, args.rate)
        policy_losses.append(float(-clipped.detach().mean()))
        value_losses.append(float(value_loss.detach()))
    return {"policy_loss": float(np.mean(policy_losses)), "value_loss": float(np.mean(value_losses))}


@dataclass(frozen=True, slots=True)
class Sample:
    """One encoding with all its tasks, the reward of its interval, and its successor: `discount` to the encoding
    `after` it (None at the end), `total` of the discounted rewards from here on."""

    chunk: Chunk
    reward: float
    discount: float
    after: Chunk | None
    total: float


class Replay:
    """A FIFO of at most that many tasks, whole encodings at a time, and the moving average of their returns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: deque[Sample] = deque()
        self._tasks = 0
        self.mean = 0.0
        self._seen = 0

    def add(self, fresh: Sequence[Sample]) -> None:
        for sample in fresh:
            self._kept.append(sample)
            self._tasks += len(sample.chunk.steps)
            self._seen += 1
            self.mean += max(_FORGETTING, 1.0 / self._seen) * (sample.total - self.mean)
        while self._tasks > self._most and len(self._kept) > 1:
            self._tasks -= len(self._kept.popleft().chunk.steps)

    def draw(self, tasks: int, rng: np.random.Generator) -> list[Sample]:
        """Encodings drawn evenly until they hold that many tasks."""
        drawn: list[Sample] = []
        held = 0
        while held < tasks:
            drawn.append(self._kept[int(rng.integers(len(self._kept)))])
            held += len(drawn[-1].chunk.steps)
        return drawn


def samples_of(episodes: Sequence[Episode], gamma: float, scale: float) -> list[Sample]:
    """Every encoding of the episodes, in the order of the intervals."""
    found: list[Sample] = []
    for episode in episodes:
        following, total, reversed_samples = None, 0.0, []
        for interval in reversed(episode.intervals):
            discount = gamma**interval.passed
            total = interval.reward * scale + discount * total
            reversed_samples += [
                Sample(chunk, interval.reward * scale, discount, following, total)
                for chunk in reversed(interval.chunks)
            ]
            following = interval.chunks[0]
        found += reversed_samples[::-1]
    return found


def actor_critic(
    args: Args,
    run: Checkpoint,
    replay: Replay,
    episodes: Sequence[Episode],
    share: float,
    rng: np.random.Generator,
    device: torch.device,
) -> dict[str, float]:
    """Harmony's (2): ∇ log π (Q − V) + β H, Q = r + γ V(s′) of the interval, V by temporal difference, samples drawn
    from a FIFO. Without a value net Q is the return that was seen, and its moving average the baseline, as in the
    paper's ablation. [!] A replayed sample was drawn by an older π or by the explorer: it is weighted by the ratio of
    the probabilities, clipped, which the paper leaves out."""
    fresh = samples_of(episodes, args.gamma, reward_scale(args, "actor-critic"))
    replay.add(fresh)
    count = args.updates * sum(len(episode.intervals) for episode in episodes)
    losses, value_losses = [], []
    for update in range(count):
        # Without replay the round's own, in order.
        chosen = replay.draw(args.batch, rng) if args.replay else _window(fresh, update / count, args.batch)
        batch = collate([sample.chunk for sample in chosen], device)
        answers = ask(run.net, batch)
        if args.value:
            q = torch.tensor(_targets(run.net, chosen, device), device=device)
            advantage = q - answers.value.detach()
            value_loss = torch.nn.functional.smooth_l1_loss(answers.value, q)
        else:
            advantage = torch.tensor([sample.total - replay.mean for sample in chosen], device=device)
            value_loss = torch.zeros((), device=device)
        taken = log_pi_taken(batch, answers)
        weight = torch.exp(taken.detach() - torch.log(batch.probability)).clamp(max=_MOST_RATIO)
        bonus = args.entropy * (1.0 - share) * entropy(batch, answers).mean()
        loss = -(weight * taken * advantage[batch.chunk]).mean() - bonus + 0.5 * value_loss
        _step(run, loss, args.rate)
        losses.append(float(loss.detach()))
        value_losses.append(float(value_loss.detach()))
    return {"loss": float(np.mean(losses)), "value_loss": float(np.mean(value_losses))}


def _targets(net: PolicyNet, chosen: Sequence[Sample], device: torch.device) -> list[float]:
    """r + γ V(s′), V(s′) as the net sees it now."""
    known = [sample.after for sample in chosen if sample.after is not None]
    ahead = iter(_values(net, known, device) if known else [])
    return [s.reward + s.discount * (next(ahead) if s.after is not None else 0.0) for s in chosen]


def _window(fresh: Sequence[Sample], share: float, tasks: int) -> list[Sample]:
    """Consecutive encodings with about that many tasks, from that share of the round on."""
    first = int(share * len(fresh))
    chosen: list[Sample] = []
    held = 0
    for sample in fresh[first:]:
        chosen.append(sample)
        held += len(sample.chunk.steps)
        if held >= tasks:
            break
    return chosen


def gae(rewards: Sequence[float], values: Sequence[float], discounts: Sequence[float], smoothing: float) -> list[float]:
    """Generalised advantage estimates: A_t = δ_t + γ_t λ A_{t+1}, δ_t = r_t + γ_t V_{t+1} − V_t, zero after the end."""
    advantages: list[float] = []
    following, worth = 0.0, 0.0
    for reward, value, discount in zip(reversed(rewards), reversed(values), reversed(discounts), strict=True):
        following = reward + discount * worth - value + discount * smoothing * following
        worth = value
        advantages.append(following)
    return advantages[::-1]


def _step(run: Checkpoint, loss: torch.Tensor, rate: float) -> None:
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    run.optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)
    run.optimiser.step()


def _values(net: PolicyNet, chunks: Sequence[Chunk], device: torch.device) -> list[float]:
    found: list[float] = []
    with torch.no_grad():
        for first in range(0, len(chunks), 128):
            batch = collate(chunks[first : first + 128], device)
            nodes, jobs, _ = net.encoder(batch.nodes, batch.jobs, batch.placement, batch.job_mask, batch.node_mask)
            found += net.worth(nodes, jobs, batch.job_mask, batch.node_mask).tolist()
    return found


def _alike(sizes: Any, count: int, rng: np.random.Generator) -> Any:
    """Encodings of about the same number of nodes: less of a batch is padding."""
    order = np.argsort(sizes + rng.uniform(0.0, 4.0, len(sizes)), kind="stable")
    first = int(rng.integers(0, max(1, len(order) - count + 1)))
    return order[first : first + count]
