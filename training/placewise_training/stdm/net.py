"""IAWP's neural collaborative filtering (LDWP/IAWP, equations 4 and 5), and an amortised net for the same task.

`Ncf` is the paper's: subtask and metric by number, so that a new subtask needs training. `MetricCompletion` reads the
known metrics themselves, so that a subtask it never saw is completed by one forward pass. Trains nothing itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_LAYERS = (128, 64, 32)  # IAWP, 5.1


def _tower(width: int, layers: Sequence[int]) -> nn.Sequential:
    """Dense layers with ReLU."""
    parts: list[nn.Module] = []
    for size in layers:
        parts += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*parts)


class Ncf(nn.Module):
    """subtask (B,), metric (B,) → (B,) value in [0, 1]: embeddings → concatenation → 128-64-32 ReLU → sigmoid (4)."""

    def __init__(self, subtasks: int, metrics: int, width: int = 16) -> None:
        super().__init__()
        self.subtask = nn.Embedding(subtasks, width)  # one-hot times U
        self.metric = nn.Embedding(metrics, width)
        self.tower = _tower(2 * width, _LAYERS)
        self.out = nn.Linear(_LAYERS[-1], 1, bias=False)  # h in (4)

    def forward(self, subtask: Tensor, metric: Tensor) -> Tensor:
        joined = torch.cat([self.subtask(subtask), self.metric(metric)], dim=-1)
        value: Tensor = torch.sigmoid(self.out(self.tower(joined))).squeeze(-1)
        return value

    def table(self) -> Tensor:
        """(M, N) every value."""
        m, n = self.subtask.num_embeddings, self.metric.num_embeddings
        subtasks, metrics = (torch.arange(count, device=self.subtask.weight.device) for count in (m, n))
        values: Tensor = self(subtasks.repeat_interleave(n), metrics.repeat(m))
        return values.reshape(m, n)

    def weights(self) -> Tensor:
        """Σ w² of (5), over the perceptron's weight matrices."""
        matrices = [layer.weight for layer in self.tower if isinstance(layer, nn.Linear)]
        return torch.stack([w.square().sum() for w in (*matrices, self.out.weight)]).sum()


def loss(predicted: Tensor, true: Tensor, weights: Tensor, decay: float, cells: int) -> Tensor:
    """Equation (5) with the sum over the batch's known cells; `cells` = M·N spreads the weights' share over all."""
    value: Tensor = 0.5 * ((predicted - true).square().mean() + decay * weights / cells)
    return value


def with_subtasks(net: Ncf, new: int) -> Ncf:
    """The net with `new` subtasks more, each beginning as the mean of those known."""
    grown = Ncf(net.subtask.num_embeddings + new, net.metric.num_embeddings, net.metric.embedding_dim)
    known = net.subtask.weight.detach()
    return _filled(grown, net, torch.cat([known, known.mean(dim=0).expand(new, -1)]), net.metric.weight.detach())


def with_gpus(net: Ncf, gpu_metrics: Sequence[int], gpus: int) -> Ncf:
    """Parameter transfer to a node of more GPUs (4.3.4): every GPU gets a copy of the GPU metrics' parameters.

    `gpu_metrics` are the columns of the one GPU the net knows. Columns keep their order; the copies for the second GPU
    and on follow behind all of them.
    """
    kept = net.metric.weight.detach()
    copies = kept[list(gpu_metrics)].repeat(gpus - 1, 1)
    grown = Ncf(net.subtask.num_embeddings, len(kept) + len(copies), net.metric.embedding_dim)
    return _filled(grown, net, net.subtask.weight.detach(), torch.cat([kept, copies]))


def _filled(grown: Ncf, net: Ncf, subtasks: Tensor, metrics: Tensor) -> Ncf:
    state = dict(net.state_dict())
    grown.load_state_dict({**state, "subtask.weight": subtasks, "metric.weight": metrics})
    return grown


class MetricCompletion(nn.Module):
    """known (B, C) with anything where unknown, mask (B, C) of 0 and 1 → (B, C) all values, in [0, 1].

    Known values come back as they were given: only holes are filled.
    """

    def __init__(self, columns: int, layers: Sequence[int] = _LAYERS) -> None:
        super().__init__()
        self.tower = _tower(2 * columns, layers)
        self.out = nn.Linear(layers[-1], columns)

    def forward(self, known: Tensor, mask: Tensor) -> Tensor:
        seen = known * mask
        filled = torch.sigmoid(self.out(self.tower(torch.cat([seen, mask], dim=-1))))
        completed: Tensor = seen + filled * (1.0 - mask)
        return completed
