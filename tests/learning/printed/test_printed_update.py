"""Harmony's actor-critic as printed: where explored gangs go, and one update by hand."""

from collections import deque

import numpy as np
import pytest
import torch
from tests.fakes.proteus_queue import cluster_of
from torch import Tensor, nn

from placewise_core.domain.cluster import Gpu, Node
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import ClusterView
from placewise_training.policy.printed.net import PaperPolicy
from placewise_training.policy.printed.rollouts import PaperActor, PaperStep
from placewise_training.policy.printed.train import Sample, _PaperTraining, _update

LAST = 3  # the node that the net prefers


def cluster() -> ClusterView:
    """Node 0 is small: bin packing takes it. Load balancing takes node 1 first, then the others of its size."""
    sizes = (2, 8, 8, 8)
    return cluster_of(
        tuple(
            Node(
                NodeId(f"n{i}"),
                Resources(cpu_cores=4.0 * gpus, gpus=gpus, memory_gib=16.0 * gpus, network_gbps=50),
                tuple(Gpu(g, "V100", 16) for g in range(gpus)),
            )
            for i, gpus in enumerate(sizes)
        )
    )


GANG = Job(JobId("g"), model="vgg16", groups=(TaskGroup(Role.WORKER, 2, Resources(cpu_cores=2, gpus=1, memory_gib=8)),))


def net_for_the_last_node() -> PaperPolicy:
    torch.manual_seed(0)
    net = PaperPolicy(4, 16, 4, 1)
    with torch.no_grad():
        net.out.weight.zero_()
        net.out.bias.copy_(torch.tensor([5.0 * (i == LAST) for i in range(8)]))
    return net


def places(actor: PaperActor) -> tuple[str, ...]:
    proposal = actor.propose(GANG, cluster(), PlaceContext(0.0, 0))
    assert proposal is not None
    return tuple(assignment.node for assignment in proposal.assignments)


def test_explored_gangs_go_where_bin_packing_or_load_balance_puts_them() -> None:
    policies, wanted = placement_policies(), set()
    for name in ("bin-packing", "load-balance"):
        proposal = policies[name].propose(GANG, cluster(), PlaceContext(0.0, 0))
        assert proposal is not None
        wanted.add(tuple(assignment.node for assignment in proposal.assignments))
    assert len(wanted) == 2
    always = PaperActor(net_for_the_last_node(), np.random.default_rng(1), None, 1.0)
    assert {places(always) for _ in range(30)} == wanted
    never = PaperActor(net_for_the_last_node(), np.random.default_rng(1), None, 0.0, is_sampled=False)
    assert {places(never) for _ in range(30)} == {(f"n{LAST}", f"n{LAST}")}


def test_a_step_keeps_the_probability_that_the_net_gave_the_explorers_action() -> None:
    actor = PaperActor(net_for_the_last_node(), np.random.default_rng(1), None, 1.0)
    places(actor)
    odds = {True: np.exp(5.0) / (np.exp(5.0) + 3.0), False: 1.0 / (np.exp(5.0) + 3.0)}  # servers are closed
    assert len(actor._steps) == 2
    for step in actor._steps:
        assert step.probability == pytest.approx(odds[step.action == LAST], rel=1e-5)


class Logits(nn.Module):
    """Two actions, in any state."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.0, float(np.log(3.0))]))

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        return self.theta.expand(rows.shape[0], rows.shape[1], 2)


class Value(nn.Module):
    """V(s) = v · (the state's one number)."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor(0.2))

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        return self.v * rows[:, 0, 0]


@pytest.mark.parametrize(("then", "weight"), [(0.5, 0.5), (0.05, 2.0)])
@pytest.mark.parametrize("is_last", [False, True])
def test_an_update_is_advantage_importance_weight_and_entropy_by_hand(
    then: float, weight: float, is_last: bool
) -> None:
    """(2) with A = r + γ V(s') − V(s) and β H; π now is 0.25 of the action, and its ratio to then is at most 2."""
    policy, value = Logits(), Value()
    optimiser = torch.optim.SGD([*policy.parameters(), *value.parameters()], lr=1.0)
    run = _PaperTraining(policy, value, optimiser, deque())  # type: ignore[arg-type]
    here, there = (
        PaperStep(np.full((1, 1), x, dtype=np.float32), np.ones(2, dtype=np.bool_), 0, then) for x in (1.0, 2.0)
    )
    beta, reward = 0.1, 0.1
    _update(run, [Sample(here, reward, 0.9, None if is_last else there)], beta)
    advantage = reward + (0.0 if is_last else 0.9 * 0.2 * 2.0) - 0.2 * 1.0
    pi = np.array([0.25, 0.75])
    entropy = -(pi * np.log(pi)).sum()
    ascent = weight * advantage * (np.array([1.0, 0.0]) - pi) + beta * -pi * (np.log(pi) + entropy)
    np.testing.assert_allclose(policy.theta.detach().numpy(), np.array([0.0, np.log(3.0)]) + ascent, rtol=1e-4)
    assert value.v.item() == pytest.approx(0.2 + 0.5 * advantage * 1.0, rel=1e-5)
