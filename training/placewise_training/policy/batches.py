"""Kept encodings and steps as padded tensors, and the losses on them. Simulates nothing and optimises nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, STEP_FEATURES
from placewise_training.policy.net import PolicyNet, masked_log_probabilities
from placewise_training.policy.rollouts import Chunk, RolloutStep


@dataclass(frozen=True, slots=True)
class Batch:
    """B encodings padded to M nodes and J jobs, and the T tasks placed on them.

    nodes (B, M, F) · jobs (B, J, F) · placement (B, J, M, 2) · job_mask (B, J) · node_mask (B, M) · minutes (B, J), 0
    if unknown · chunk (T,) row of the task's encoding · job (T,) its job token · step (T, M, S) · mask and
    target (T, 2M) · action (T,) · probability (T,) of the action when it was taken.
    """

    nodes: Tensor
    jobs: Tensor
    placement: Tensor
    job_mask: Tensor
    node_mask: Tensor
    minutes: Tensor
    chunk: Tensor
    job: Tensor
    step: Tensor
    mask: Tensor
    target: Tensor
    action: Tensor
    probability: Tensor


@dataclass(frozen=True, slots=True)
class Answers:
    """The net's answers to a batch: log π (T, 2M), value (B,), minutes (B, J)."""

    log_pi: Tensor
    value: Tensor
    minutes: Tensor


def collate(
    chunks: Sequence[Chunk], device: torch.device, steps: Sequence[Sequence[RolloutStep]] | None = None
) -> Batch:
    """`steps` per chunk; None takes all of them."""
    chosen = [chunk.steps for chunk in chunks] if steps is None else steps
    count, total = len(chunks), sum(len(each) for each in chosen)
    m = max(len(chunk.seen.nodes) for chunk in chunks)
    j = max(len(chunk.seen.jobs) for chunk in chunks)
    made: dict[str, Any] = {
        "nodes": np.zeros((count, m, NODE_FEATURES), np.float32),
        "jobs": np.zeros((count, j, JOB_FEATURES), np.float32),
        "placement": np.zeros((count, j, m, 2), np.float32),
        "job_mask": np.zeros((count, j), np.float32),
        "node_mask": np.zeros((count, m), np.float32),
        "minutes": np.zeros((count, j), np.float32),
        "chunk": np.zeros(total, np.int64),
        "job": np.zeros(total, np.int64),
        "step": np.zeros((total, m, STEP_FEATURES), np.float32),
        "mask": np.zeros((total, 2, m), np.bool_),
        "target": np.zeros((total, 2, m), np.float32),
        "action": np.zeros(total, np.int64),
        "probability": np.ones(total, np.float32),
    }
    t = 0
    for b, (chunk, each) in enumerate(zip(chunks, chosen, strict=True)):
        own_m, own_j = len(chunk.seen.nodes), len(chunk.seen.jobs)
        made["nodes"][b, :own_m], made["jobs"][b, :own_j] = chunk.seen.nodes, chunk.seen.jobs
        made["placement"][b, :own_j, :own_m] = chunk.seen.placement
        made["job_mask"][b, :own_j], made["node_mask"][b, :own_m] = 1.0, 1.0
        for row, minutes in chunk.minutes.items():
            made["minutes"][b, row] = minutes
        for step in each:
            made["chunk"][t], made["job"][t], made["probability"][t] = b, step.job, step.probability
            made["step"][t, :own_m] = step.step
            made["mask"][t, :, :own_m] = step.mask.reshape(2, own_m)
            if len(step.target):
                made["target"][t, :, :own_m] = step.target.reshape(2, own_m)
            made["action"][t] = step.action // own_m * m + step.action % own_m
            t += 1
    made["mask"], made["target"] = made["mask"].reshape(total, 2 * m), made["target"].reshape(total, 2 * m)
    return Batch(**{name: torch.from_numpy(array).to(device) for name, array in made.items()})


def ask(net: PolicyNet, batch: Batch) -> Answers:
    """One pass: every encoding once, every task by its own step."""
    nodes, jobs, minutes = net.encoder(batch.nodes, batch.jobs, batch.placement, batch.job_mask, batch.node_mask)
    value = net.worth(nodes, jobs, batch.job_mask, batch.node_mask)
    at = batch.chunk
    logits = net.decoder(nodes[at], jobs[at, batch.job], batch.step, batch.node_mask[at])
    return Answers(masked_log_probabilities(logits, batch.mask), value, minutes)


def imitation_loss(batch: Batch, answers: Answers) -> tuple[Tensor, Tensor]:
    """(Kullback-Leibler divergence from the teacher's distributions, error of the logarithm of the minutes).

    Cross-entropy has the same gradient, but says little: most of it is the teacher's own indifference between nodes.
    """
    is_taught = batch.target.sum(dim=1) > 0
    log_ratio = torch.log(batch.target.clamp(min=1e-12)) - answers.log_pi
    divergence = (batch.target * log_ratio).sum(dim=1)[is_taught].mean()
    is_known = batch.minutes > 0
    wrong = torch.nn.functional.smooth_l1_loss(
        torch.log1p(answers.minutes[is_known]), torch.log1p(batch.minutes[is_known])
    )
    return divergence, wrong


def entropy(batch: Batch, answers: Answers) -> Tensor:
    """(T,) entropy of π over the allowed actions."""
    return -(answers.log_pi.exp() * answers.log_pi).masked_fill(~batch.mask, 0.0).sum(dim=1)


def log_pi_taken(batch: Batch, answers: Answers) -> Tensor:
    """(T,) log π of the actions that were taken."""
    return answers.log_pi.gather(1, batch.action.unsqueeze(1)).squeeze(1)
