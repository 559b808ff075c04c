"""Completes the row of a job among reference models on a shared GPU, from one or two co-runs. Trains nothing.

Speeds are compared in log-odds: speed s is 1 / (1 + extra time), so that log-odds are −log of the extra time, and a
move of them moves extra times in proportion. Steps longer than assumed move own speeds up and the partners'
down. The differences of the co-runs that remain move the rest: own speeds by the mean of their differences, shrunk for
few of them, the partners' by the mean of theirs.

These are four numbers. `members` small nets may correct every column on top, within `BOUND`: on the few networks
measured that is no better (docs/models/sharing.md), and the shipped model has none.
"""

import itertools

import torch
from torch import Tensor, nn

BOUND = 0.3  # of a correction, in log-odds
_LEAST, _MOST = 0.02, 0.98
_WIDTH = 32


def log_odds(speeds: Tensor) -> Tensor:
    """Finite for any speed."""
    inside = speeds.clamp(_LEAST, _MOST)
    value: Tensor = torch.log(inside) - torch.log(1.0 - inside)
    return value


class CoRunCompletion(nn.Module):
    """prior (B, C) assumed values, known (B, C) with anything for unknown, mask (B, C) of 0 and 1 → (B, C) all
    values; C = 2 · references + 2, speeds and last the seconds per step (speed.sharing_row). Known values come back as
    they were given; unknown steps as they were assumed."""

    kinds: Tensor  # (2, C − 1) which columns are own speeds, and which partners'

    def __init__(self, references: int, members: int = 0) -> None:
        super().__init__()
        own = torch.zeros(2 * references + 1)
        own[:references] = own[-1] = 1.0  # beside itself is an own speed too
        self.register_buffer("kinds", torch.stack([own, 1.0 - own]), persistent=False)
        self.steps = nn.Parameter(torch.zeros(2))  # log-odds per e-fold of longer steps: own, partners'
        self.shrinkage = nn.Parameter(torch.zeros(2))  # log λ: a shift is Σ differences / (n + λ)
        sizes = (2 * len(own) + 2, _WIDTH, _WIDTH)
        pairs = list(itertools.pairwise(sizes)) if members else []
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(members, a, b) * (2.0 / a) ** 0.5) for a, b in pairs])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, b)) for _, b in pairs])
        self.out = nn.ParameterList([nn.Parameter(torch.zeros(members, _WIDTH, len(own)))] if members else [])

    def forward(self, prior: Tensor, known: Tensor, mask: Tensor) -> Tensor:
        speeds, is_known = known[:, :-1], mask[:, :-1]
        longer = (torch.log(known[:, -1:].clamp(min=1e-9)) - torch.log(prior[:, -1:].clamp(min=1e-9))) * mask[:, -1:]
        assumed = log_odds(prior[:, :-1]) + (longer * self.steps) @ self.kinds
        differences = (log_odds(speeds) - assumed) * is_known
        counts = is_known @ self.kinds.T
        shift = (differences @ self.kinds.T) / (counts + torch.exp(self.shrinkage))  # (B, 2)
        moved = assumed + shift @ self.kinds
        if len(self.out):
            moved = moved + self._correction(torch.cat([differences, is_known, longer, mask[:, -1:]], dim=-1))
        filled = torch.cat([torch.sigmoid(moved), prior[:, -1:]], dim=-1)
        completed: Tensor = known * mask + filled * (1.0 - mask)
        return completed

    def _correction(self, seen: Tensor) -> Tensor:
        """(B, C − 1) mean over the members."""
        hidden = seen.unsqueeze(0)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.relu(hidden @ weight + bias)
        correction: Tensor = (BOUND * torch.tanh(hidden @ self.out[0] / BOUND)).mean(dim=0)
        return correction
