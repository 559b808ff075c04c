"""An ensemble that says how far from its training data a placement is: members with randomised priors. Trains nothing.

Each member is a small net plus a random one that is never trained (Osband et al., Randomized Prior Functions, 2018).
Training makes their sums agree on the data; elsewhere every prior keeps its random shape, and their disagreement
grows. They read the encoder's inputs, not its outputs: a trunk maps unknown inputs onto known ones.
"""

import torch
from torch import Tensor, nn

MEMBERS, WIDTH = 8, 16
_LEAST_DEVIATION = 0.25  # of a feature: one that never varied in training must not decide alone when it does


class PriorEnsemble(nn.Module):
    """pooled (B, 2 · features) of `pooled_of_new` → (B,) variance of the members' answers.

    The members answer by how much the logarithm of the speed is off. `gain` is what their disagreement counts.
    """

    centre: Tensor
    deviation: Tensor
    gain: Tensor

    def __init__(self, features: int, members: int = MEMBERS, width: int = WIDTH) -> None:
        super().__init__()
        self.learned = _Members(2 * features, members, width, scale=0.5)
        self.prior = _Members(2 * features, members, width, scale=1.0)
        for parameter in self.prior.parameters():
            parameter.requires_grad = False
        self.register_buffer("centre", torch.zeros(2 * features))
        self.register_buffer("deviation", torch.ones(2 * features))
        self.register_buffer("gain", torch.ones(()))

    def standardise(self, pooled: Tensor) -> None:
        """Centre and deviation of the features from those of the training placements (N, 2 · features)."""
        self.centre.copy_(pooled.mean(dim=0))
        self.deviation.copy_(pooled.std(dim=0).clamp(min=_LEAST_DEVIATION))

    def forward(self, pooled: Tensor) -> Tensor:
        variance: Tensor = self.gain.square() * self.members(pooled).var(dim=1, correction=0)
        return variance

    def members(self, pooled: Tensor) -> Tensor:
        """(B, members) answers."""
        x = (pooled - self.centre) / self.deviation
        answers: Tensor = self.learned(x) + self.prior(x)
        return answers


class _Members(nn.Module):
    """As many nets of one hidden layer, side by side: (B, F) → (B, members)."""

    def __init__(self, features: int, members: int, width: int, scale: float) -> None:
        super().__init__()
        self.into = nn.Parameter(scale * (2.0 / features) ** 0.5 * torch.randn(features, members * width))
        self.bias = nn.Parameter(0.5 * torch.randn(members * width))
        self.out = nn.Parameter(torch.randn(members, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x @ self.into + self.bias).view(-1, *self.out.shape)  # (B, members, width)
        answers: Tensor = (hidden * self.out).sum(dim=2)
        return answers


def pooled_of_new(tokens: Tensor, job: Tensor) -> Tensor:
    """tokens (B, P, F), job (B, P) → (B, 2F): mean and maximum over the tokens of the new job, which is job 0."""
    is_new = (job == 0).unsqueeze(2)
    count = is_new.sum(dim=1).clamp(min=1)
    mean = (tokens * is_new).sum(dim=1) / count
    most = torch.where(is_new, tokens, torch.full_like(tokens, -1.0)).amax(dim=1)
    return torch.cat([mean, most], dim=1)
