"""Harmony's policy, size-agnostic: tokens of nodes and jobs in, a logit per candidate node × {worker, PS} out.

The paper feeds one fixed-size row per job, as long as the cluster has servers. Here nodes and jobs are tokens of their
own, and a job has an edge to each node that holds its tasks: a Transformer encoder attends over all tokens with a
learned bias along the edges, and a pointer scores every candidate node for the next task of the gang. Jobs that are to
be placed attend to the cluster, and no token attends to them: the encoding of a cluster does not depend on the request,
and serves until the cluster changes; that of a job does not depend on the other jobs. One net serves any number of
nodes and jobs; permuting either permutes the answer. Decoded per task (placewise_core.policies.harmony). Trains nothing
itself.
"""

import torch
from torch import Tensor, nn

from placewise_core.inputs.cluster import JOB_COLUMNS, JOB_FEATURES, LINEAR_SPEED_COLUMNS, NODE_FEATURES, STEP_FEATURES
from placewise_core.inputs.policy import IS_NEW
from placewise_core.speed.linear_speed import MOST_LOG_MINUTES
from placewise_training.lab.encoder_layer import BiasedLayer

_MASKED = -1e9
_ROLES = 2  # worker, parameter server: the last axis of a placement and the halves of the actions
LINEAR_MINUTES = len(JOB_COLUMNS) + [column.name for column in LINEAR_SPEED_COLUMNS].index("linear_minutes_left")
MINUTES_SCALE = next(column.scale for column in LINEAR_SPEED_COLUMNS if column.name == "linear_minutes_left")


class PolicyEncoder(nn.Module):
    """nodes (B, M, NODE_FEATURES), jobs (B, J, JOB_FEATURES), placement (B, J, M, 2), job_mask (B, J) and node_mask
    (B, M), 1 for real tokens → node_state (B, M, D), job_state (B, J, D), minutes (B, J).

    `minutes` is the net's guess of how long each job will run once placed. The order of a batch rests on it.
    Needs at least one node and one job.
    """

    def __init__(self, width: int = 64, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.of_node = nn.Sequential(nn.Linear(NODE_FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.of_job = nn.Sequential(nn.Linear(JOB_FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        # Tasks on a node add up: attention alone, an average, could not count.
        self.job_to_node = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(_ROLES)])
        self.node_to_job = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(_ROLES)])
        self.layers = nn.ModuleList([EdgeLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.length = nn.Linear(width, 1)

    def forward(
        self, nodes: Tensor, jobs: Tensor, placement: Tensor, job_mask: Tensor, node_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = jobs.shape[1]
        of_node = self.of_node(nodes)  # (B, M, D)
        of_job = self.of_job(jobs) * job_mask.unsqueeze(2)  # (B, J, D)
        by_role = placement.unbind(3)  # each (B, J, M)
        gathered = [where.transpose(1, 2) @ f(of_job) for f, where in zip(self.job_to_node, by_role, strict=True)]
        visited = [where @ f(of_node) for f, where in zip(self.node_to_job, by_role, strict=True)]
        x = torch.cat([of_job + visited[0] + visited[1], of_node + gathered[0] + gathered[1]], dim=1)  # (B, J + M, D)
        edges = _edges(placement)  # (B, J + M, J + M, 2)
        blocked = _blocked(jobs[..., IS_NEW], job_mask, node_mask)
        for layer in self.layers:
            x = layer(x, edges, blocked.unsqueeze(1))
        x = self.norm(x)
        job_state = x[:, :count]
        return x[:, count:], job_state, self.minutes(jobs, job_state)

    def minutes(self, jobs: Tensor, job_state: Tensor) -> Tensor:
        """(…, J) minutes each job will run, from its token (…, J, JOB_FEATURES) and its state (…, J, D)."""
        log_minutes = jobs[..., LINEAR_MINUTES] / MINUTES_SCALE + self.length(job_state).squeeze(-1)
        return torch.exp(log_minutes.clamp(0.0, MOST_LOG_MINUTES)) - 1.0


def _blocked(is_new: Tensor, job_mask: Tensor, node_mask: Tensor) -> Tensor:
    """(B, 1, J + M): tokens that no token may attend to: padding and new jobs."""
    is_there = torch.cat([job_mask * (1.0 - is_new), node_mask], dim=1)
    return ((1.0 - is_there) * _MASKED).unsqueeze(1)


def _edges(placement: Tensor) -> Tensor:
    """(B, J + M, J + M, 2): the placement between job and node tokens, both ways; nothing between equals."""
    job_rows = torch.cat([_square(placement, 1), placement], dim=2)
    node_rows = torch.cat([placement.transpose(1, 2), _square(placement, 2)], dim=2)
    return torch.cat([job_rows, node_rows], dim=1)


def _square(placement: Tensor, axis: int) -> Tensor:
    """(B, n, n, 2) zeros with n the size of that axis, made from the tensor itself so that it may vary in ONNX."""
    first = placement.amax(dim=3 - axis)  # (B, n, 2)
    return (first.unsqueeze(1) + first.unsqueeze(2)) * 0.0


class EdgeLayer(BiasedLayer):
    """Its attention is biased, per head, by the tasks of a job on a node."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.along = nn.Linear(_ROLES, heads, bias=False)
        nn.init.constant_(self.along.weight, 2.0)  # begins by looking along the edges

    def biased(self, scores: Tensor, *relations: Tensor) -> Tensor:
        edges, blocked = relations
        biased: Tensor = scores + self.along(edges).permute(0, 3, 1, 2) + blocked
        return biased


class PolicyDecoder(nn.Module):
    """node_state (B, M, D), job_state (B, D) of the job being placed, step (B, M, STEP_FEATURES) → (B, 2M) logits.

    Actions in the order of placewise_core.gang.actions. A node is judged beside the best of the others (the maximum
    over nodes), so that the net can tell "none takes the whole gang" from "some does". `node_mask` (B, M) hides
    padding.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.of_node = nn.Linear(width, width)
        self.of_job = nn.Linear(width, width, bias=False)
        self.of_step = nn.Sequential(nn.Linear(STEP_FEATURES, width), nn.ReLU(), nn.Linear(width, width, bias=False))
        self.of_best = nn.Linear(width, width, bias=False)
        self.dense = nn.Linear(width, width)
        self.logits = nn.Linear(width, _ROLES)

    def forward(self, node_state: Tensor, job_state: Tensor, step: Tensor, node_mask: Tensor | None = None) -> Tensor:
        x = self.of_node(node_state) + self.of_job(job_state).unsqueeze(1) + self.of_step(step)
        x = torch.relu(x)  # (B, M, D)
        seen = x if node_mask is None else x * node_mask.unsqueeze(2)
        x = torch.relu(self.dense(x) + self.of_best(seen.amax(dim=1, keepdim=True)))
        out: Tensor = self.logits(x).transpose(1, 2).flatten(1)
        return out


class PolicyNet(nn.Module):
    """Encoder, decoder, and a value head that exists in training only."""

    def __init__(self, width: int = 64, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.shape = {"width": width, "heads": heads, "layers": layers}
        self.encoder = PolicyEncoder(width, heads, layers)
        self.decoder = PolicyDecoder(width)
        self.value = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def worth(self, node_state: Tensor, job_state: Tensor, job_mask: Tensor, node_mask: Tensor) -> Tensor:
        """(B,) value of the states: sums of jobs, because a queue counts, and the mean node."""
        jobs = (job_state * job_mask.unsqueeze(2)).sum(dim=1) / 16.0
        nodes = (node_state * node_mask.unsqueeze(2)).sum(dim=1) / node_mask.sum(dim=1, keepdim=True)
        out: Tensor = self.value(torch.cat([jobs, nodes], dim=1)).squeeze(1)
        return out


def masked_log_probabilities(logits: Tensor, mask: Tensor) -> Tensor:
    """(B, 2M) log π, −1e9 for masked actions."""
    return torch.log_softmax(logits.masked_fill(~mask, _MASKED), dim=1)
