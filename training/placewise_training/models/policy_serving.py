"""Harmony's policy as it is served: the same function as models.policy for one request without padding, in fewer steps.

Without a batch axis every linear layer is one fused product (Gemm), and nothing needs a mask. The bias along the edges
is made once for all layers, and only where jobs meet nodes. What the decoder would compute of the states alone, anew
for each task, is computed once, by the encoder. It takes about two thirds of the time of the form that is trained; the
parity of both is checked at every export.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from placewise_training.models.policy import EdgeLayer, PolicyDecoder, PolicyEncoder


class ServingEncoder(nn.Module):
    """Inputs and outputs as PolicyEncoder's, batch axis of 1 and masks of 1; the states are those of ServingDecoder."""

    along: Tensor  # (roles, layers · heads): every layer's bias per edge

    def __init__(self, encoder: PolicyEncoder, decoder: PolicyDecoder) -> None:
        super().__init__()
        self.encoder, self.of_node, self.of_job = encoder, decoder.of_node, decoder.of_job
        self._layers = [layer for layer in encoder.layers if isinstance(layer, EdgeLayer)]
        self.register_buffer("along", torch.cat([layer.along.weight for layer in self._layers]).t().contiguous())

    def forward(
        self, nodes: Tensor, jobs: Tensor, placement: Tensor, job_mask: Tensor, node_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        net, where, count = self.encoder, placement[0], jobs.shape[1]
        of_node, of_job = net.of_node(nodes[0]), net.of_job(jobs[0])  # (M, D), (J, D)
        by_role = where.unbind(2)  # each (J, M)
        gathered = [there.t() @ f(of_job) for f, there in zip(net.job_to_node, by_role, strict=True)]
        visited = [there @ f(of_node) for f, there in zip(net.node_to_job, by_role, strict=True)]
        x = torch.cat([of_job + visited[0] + visited[1], of_node + gathered[0] + gathered[1]])  # (P, D)
        biases = self._biases(where)
        for layer, bias in zip(self._layers, biases, strict=True):
            width, heads = layer.width, layer.heads
            qkv = layer.qkv(layer.before_attention(x)).reshape(-1, 3, heads, width // heads)
            query, key, value = qkv.permute(1, 2, 0, 3).unbind(0)  # each (H, P, D/H)
            mixed = torch.softmax(query @ key.transpose(1, 2) / (width // heads) ** 0.5 + bias, dim=2) @ value
            x = x + layer.mix(mixed.transpose(0, 1).reshape(-1, width))
            x = x + layer.dense(layer.before_dense(x))
        x = net.norm(x)
        job_state, node_state = x[:count], x[count:]
        minutes = net.minutes(jobs[0], job_state)
        masks = 0.0 * (job_mask.sum() + node_mask.sum())  # inputs of the trained form, so that callers need not care
        return self.of_node(node_state).unsqueeze(0), self.of_job(job_state).unsqueeze(0), minutes.unsqueeze(0) + masks

    def _biases(self, where: Tensor) -> list[Tensor]:
        """Per layer (H, P, P): its bias where a job has tasks on a node, both ways, and 0 between equals."""
        jobs, nodes, roles = where.shape
        block = (where.reshape(-1, roles) @ self.along).reshape(jobs, nodes, -1).permute(2, 0, 1)  # (layers · H, J, M)
        upper = functional.pad(block, (jobs, 0, 0, nodes))
        return list((upper + upper.transpose(1, 2)).chunk(len(self._layers)))


class ServingDecoder(nn.Module):
    """node_state (1, M, D) and job_state (1, D) of ServingEncoder, step (1, M, STEP_FEATURES) → (1, 2M) logits."""

    def __init__(self, decoder: PolicyDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, node_state: Tensor, job_state: Tensor, step: Tensor) -> Tensor:
        net = self.decoder
        x = torch.relu(node_state[0] + job_state + net.of_step(step[0]))  # (M, D)
        x = torch.relu(net.dense(x) + net.of_best(x.amax(dim=0, keepdim=True)))
        logits: Tensor = net.logits(x).t().reshape(1, -1)
        return logits
