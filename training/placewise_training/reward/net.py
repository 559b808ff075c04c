"""Harmony's reward model, size-agnostic: from where jobs are to how fast each of them runs.

The paper embeds one fixed-size row per job (x_n, w_n, p_n, d_n), with d_n as long as the cluster has servers. Here a
token is a job's tasks on one node (placewise_core.inputs.reward), so that one net serves any number of jobs and nodes,
and a Transformer encoder of two layers and eight heads relates them: attention gets a learned bias per head for tokens
of one job and for tokens on one node. Permuting tokens permutes the answer, and renaming jobs or nodes changes nothing.
Layer norm replaces the paper's batch norm, whose statistics padding would spoil. Trains nothing itself.
"""

import torch
from torch import Tensor, nn

from placewise_core.inputs.reward import REPORTED
from placewise_training.lab.encoder_layer import BiasedLayer
from placewise_training.reward.ensemble import PriorEnsemble, pooled_of_new

SPREAD_PARAMETERS = ("scale", "scale_bias")  # of RewardNet: its expected error; no speed depends on them
_MASKED = -1e9
LOWEST = -1e3  # below any activation
LEAST, MOST = -6.0, 1.5  # of the logarithm of the speed: 0.25 % to 4.5 times the linear speed
LEAST_SCALE, MOST_SCALE, _FIRST_SCALE = -6.0, 1.0, -2.3  # of the logarithm of the error's scale; it begins at 10 %


class RewardNet(nn.Module):
    """tokens (B, P, F), job and node (B, P) with −1 for padding → (B, P) speed of the token's job, and its spread.

    Speed is in units of linear speed: 1 if each worker is as fast as the job alone on one GPU (speed/linear_speed.py).
    Spread is the standard deviation of its logarithm. It adds up the disagreement of heads on one trunk (each trained
    on its own weights of the samples), the error that they expect of themselves, and, the same for all tokens of a
    placement, the distance of its new job from the training data (ensemble.py). All tokens of a job get the same
    values; those of padding mean nothing.
    """

    def __init__(self, features: int, width: int = 64, heads: int = 8, layers: int = 2, members: int = 4) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList([RelationLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(2 * width, width)
        self.level = nn.Parameter(torch.randn(members, width) / width**0.5)
        self.scale = nn.Parameter(torch.zeros(members, width))
        self.level_bias = nn.Parameter(torch.zeros(members))
        self.scale_bias = nn.Parameter(torch.full((members,), _FIRST_SCALE))
        self.uncertainty = PriorEnsemble(features)

    def forward(self, tokens: Tensor, job: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        level, scale = self.members(tokens, job, node)
        variance = self.expected(level, scale) + self.uncertainty(pooled_of_new(tokens, job)).unsqueeze(1)
        return level.mean(dim=2).exp(), variance.sqrt()

    def expected(self, level: Tensor, scale: Tensor) -> Tensor:
        """(B, P) variance that the heads expect, from `members`."""
        of_each = 2.0 * (2.0 * scale).exp().mean(dim=2)  # the variance of a Laplace distribution of that scale
        disagreement: Tensor = ((level - level.mean(dim=2, keepdim=True)) ** 2).mean(dim=2)
        return of_each + disagreement

    def members(self, tokens: Tensor, job: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P, members) each: the logarithms of the speed, and of the scale of its error."""
        is_token = job >= 0  # (B, P)
        is_pair = is_token.unsqueeze(2) & is_token.unsqueeze(1)  # (B, P, P)
        same_job = ((job.unsqueeze(2) == job.unsqueeze(1)) & is_pair).to(tokens.dtype)
        same_node = ((node.unsqueeze(2) == node.unsqueeze(1)) & is_pair).to(tokens.dtype)
        blocked = (~is_token).to(tokens.dtype).unsqueeze(1).unsqueeze(1) * _MASKED  # (B, 1, 1, P)
        x = self.embed(tokens)  # (B, P, D)
        for layer in self.layers:
            x = layer(x, same_job, same_node, blocked)
        x = self.norm(x)
        tokens_of_job = same_job.sum(dim=2, keepdim=True).clamp(min=1.0)
        mean = same_job @ x / tokens_of_job  # (B, P, D)
        # A gang runs as fast as its slowest member: hence the maximum beside the mean. Gathered at each job's first
        # token, as an array over pairs of tokens would be the widest of the net and leave the cache.
        first = same_job.argmax(dim=2, keepdim=True).expand_as(x)  # (B, P, D); 0 for padding, which is below any token
        lowest = torch.full_like(x, LOWEST)
        raised = lowest.scatter_reduce(1, first, torch.where(is_token.unsqueeze(2), x, lowest), "amax")
        slowest = raised.gather(1, first)
        hidden = torch.relu(self.hidden(torch.cat([mean, slowest], dim=2)))
        # Most jobs go on as reported: the net predicts the factor by which the new neighbour changes it. Without a
        # report the factor is of 1, the linear speed.
        reported = tokens[:, :, REPORTED.start + 1 : REPORTED.stop].clamp(min=1e-3).log()
        reported = same_job @ (reported * tokens[:, :, REPORTED.start : REPORTED.start + 1]) / tokens_of_job
        level = hidden @ self.level.T + self.level_bias + reported
        scale = hidden @ self.scale.T + self.scale_bias
        return level.clamp(LEAST, MOST), scale.clamp(LEAST_SCALE, MOST_SCALE)


class RelationLayer(BiasedLayer):
    """Its attention knows which tokens are of one job and which are on one node."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        # Half of the heads begin by looking at the own node, half at the own job.
        begin = torch.zeros(2, heads)
        begin[0, heads // 2 :], begin[1, : heads // 2] = 3.0, 3.0
        self.relation = nn.Parameter(begin)

    def biased(self, scores: Tensor, *relations: Tensor) -> Tensor:
        same_job, same_node, blocked = relations
        of_job, on_node = self.relation[0].reshape(1, -1, 1, 1), self.relation[1].reshape(1, -1, 1, 1)
        biased: Tensor = scores + of_job * same_job.unsqueeze(1) + on_node * same_node.unsqueeze(1) + blocked
        return biased


def relative_error(predicted: Tensor, true: Tensor, weight: Tensor, bound: Tensor | None = None) -> Tensor:
    """Harmony's loss, (1/N) Σ |c′ − c| / c′ with c′ the true speed: weighted mean, shapes that broadcast. Where `bound`
    is true, the speed is at most c′: a lower prediction is no error."""
    above = predicted - true
    error = above.abs() if bound is None else torch.where(bound, above.clamp(min=0.0), above.abs())
    error = error / true.clamp(min=1e-6)
    return (error * weight).sum() / weight.expand_as(error).sum().clamp(min=1e-9)


def scale_loss(level: Tensor, scale: Tensor, true: Tensor, weight: Tensor) -> Tensor:
    """Negative log-likelihood of the log-speed's error under a Laplace distribution; moves the scale, not the speed."""
    error = (level.detach() - true.clamp(min=1e-6).log()).abs()
    likelihood = error * (-scale).exp() + scale
    return (likelihood * weight).sum() / weight.expand_as(likelihood).sum().clamp(min=1e-9)
