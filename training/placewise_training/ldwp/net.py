"""LDWP's Q nets (Zhang, Geng, Ma, 4.2): the paper's, with an input and an output per node, and one for any number.

Train nothing themselves.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_HIDDEN = (256, 128)  # LDWP, 5.1
_MASKED = -1e9


class FixedDqn(nn.Module):
    """The paper's: x_t = (task, S_1 … S_M), the task before it and its node → Q of M nodes.

    The state is the sequence of observations and actions, and a net of fixed size takes no more of it. The columns are
    those of core/inputs/ldwp_paper.py.
    """

    def __init__(self, nodes: Sequence[str], task_features: int, node_features: int) -> None:
        super().__init__()
        self.nodes = tuple(nodes)
        self.task_features, self.node_features = task_features, node_features
        wide = 2 * task_features + len(nodes) * (node_features + 1)
        self.first = nn.Linear(wide, _HIDDEN[0])
        self.hidden = nn.Linear(*_HIDDEN)
        self.last = nn.Linear(_HIDDEN[1], len(nodes))

    def forward(self, state: Tensor) -> Tensor:
        """(B, 2T + 7M) → (B, M)"""
        values: Tensor = self.last(torch.relu(self.hidden(torch.relu(self.first(state)))))
        return values

    def columns(self, node: str) -> list[int]:
        """Inputs that are about one node: its features, and whether it was chosen before."""
        i, size = self.nodes.index(node), self.node_features
        start = self.task_features + i * size
        return [*range(start, start + size), 2 * self.task_features + len(self.nodes) * size + i]

    def task_columns(self) -> list[int]:
        """Inputs that are about the task, now and before."""
        one = self.task_features + len(self.nodes) * self.node_features
        return [*range(self.task_features), *range(one, one + self.task_features)]


def transferred(net: FixedDqn, nodes: Sequence[str]) -> FixedDqn:
    """Parameter transfer (4.2.2): the hidden layer as it is, input and output rebuilt for the nodes there are now.

    What belongs to a node that stays moves with it; a new node starts as the mean of all that were known.
    """
    new = FixedDqn(nodes, net.task_features, net.node_features)
    with torch.no_grad():
        new.hidden.load_state_dict(net.hidden.state_dict())
        new.first.bias.copy_(net.first.bias)
        new.first.weight[:, new.task_columns()] = net.first.weight[:, net.task_columns()]
        known = torch.stack([net.first.weight[:, net.columns(name)] for name in net.nodes])
        for i, name in enumerate(new.nodes):
            is_known = name in net.nodes
            before = net.nodes.index(name) if is_known else 0
            new.first.weight[:, new.columns(name)] = known[before] if is_known else known.mean(dim=0)
            new.last.weight[i] = net.last.weight[before] if is_known else net.last.weight.mean(dim=0)
            new.last.bias[i] = net.last.bias[before] if is_known else net.last.bias.mean()
    return new


class NodeDqn(nn.Module):
    """For any number of nodes: one embedding for all, deep sets for what surrounds them, dueling heads.

    rows (B, C, F), mask (B, C) with 1 for nodes → Q (B, C), very low for padding. Permuting nodes permutes Q.
    """

    def __init__(self, features: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.context = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        there = mask.unsqueeze(2)  # (B, C, 1)
        each = self.embed(rows) * there  # (B, C, D), ≥ 0
        count = there.sum(dim=1).clamp(min=1.0)  # (B, 1)
        around = self.context(torch.cat([each.sum(dim=1) / count, each.amax(dim=1)], dim=1))  # (B, D)
        beside = around.unsqueeze(1).expand_as(each)
        advantage = self.advantage(torch.cat([each, beside], dim=2)).squeeze(2) * mask  # (B, C)
        mean = advantage.sum(dim=1, keepdim=True) / count
        values: Tensor = (self.value(around) + advantage - mean) * mask + (1.0 - mask) * _MASKED
        return values
