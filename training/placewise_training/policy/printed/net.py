"""Harmony's nets as printed: a row per job → Transformer encoder → attention over the other jobs' decisions → actions.

The paper prints no decoder in full. Ours asks, for every job, what the others have decided (w, p, d, u), and adds that
to the job's own state; two layers and 2M logits follow. The value net has an encoder of its own. Trains nothing.
"""

import torch
from torch import Tensor, nn

from placewise_core.inputs.harmony_paper import columns, decision_columns
from placewise_training.lab.encoder_layer import BiasedLayer

_BLOCKED = -1e9


class JobLayer(BiasedLayer):
    """Its attention leaves out rows that are padding."""

    def biased(self, scores: Tensor, *relations: Tensor) -> Tensor:
        (blocked,) = relations  # (B, 1, 1, J)
        return scores + blocked


class Encoder(nn.Module):
    """rows (B, J, columns), mask (B, J), 1 for jobs → (B, J, D)."""

    def __init__(self, nodes: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(len(columns(nodes)), width), nn.ReLU())
        self.layers = nn.ModuleList([JobLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(rows)
        blocked = ((1.0 - mask) * _BLOCKED).unsqueeze(1).unsqueeze(1)
        for layer in self.layers:
            x = layer(x, blocked)
        out: Tensor = self.norm(x)
        return out


class PaperPolicy(nn.Module):
    """rows (B, J, columns), mask (B, J) → (B, J, 2M) logits for the next task of each job."""

    def __init__(self, nodes: int, width: int = 128, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.shape = {"nodes": nodes, "width": width, "heads": heads, "layers": layers}
        self.encoder = Encoder(nodes, width, heads, layers)
        self._decided = decision_columns(nodes)
        decided = sum(len(columns(nodes)[at]) for at in self._decided)
        self.ask = nn.Linear(width, width)
        self.key, self.heard = nn.Linear(decided, width), nn.Linear(decided, width)
        self.dense = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.out = nn.Linear(width, 2 * nodes)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(rows, mask)  # (B, J, D)
        decisions = torch.cat([rows[..., at] for at in self._decided], dim=2)
        scores = self.ask(x) @ self.key(decisions).transpose(1, 2) / x.shape[2] ** 0.5  # (B, J, J)
        number = torch.cumsum(torch.ones_like(mask), dim=1)
        own = (number.unsqueeze(2) == number.unsqueeze(1)).to(mask.dtype)  # a job does not look at its own
        heard = torch.softmax(scores + ((1.0 - mask).unsqueeze(1) + own) * _BLOCKED, dim=2) @ self.heard(decisions)
        out: Tensor = self.out(self.dense(x + heard))
        return out


class PaperValue(nn.Module):
    """rows (B, J, columns), mask (B, J) → (B,) value of the state: a linear head on the sum over the jobs."""

    def __init__(self, nodes: int, width: int = 128, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.encoder = Encoder(nodes, width, heads, layers)
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        x = (self.encoder(rows, mask) * mask.unsqueeze(2)).sum(dim=1) / 8.0
        out: Tensor = self.head(x).squeeze(1)
        return out
