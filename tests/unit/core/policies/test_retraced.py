"""Probabilities of the steps of gangs on shared GPUs, as the log has them."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.net_policies import Spreads

from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import GpuSharing, Job, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import Proposal
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.explorers.harmony_draw import Retraced, retraced
from placewise_core.policies.harmony import Harmony
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.view import ClusterView

NODES = ("n0", "n1", "n2", "n3")
SHARING = GpuSharing(allowed=True, max_slowdown=1.2)


class NotBesideSlow(GpuInterference):
    """Nobody is fast beside the model `slow`, everybody beside others."""

    def __init__(self) -> None:
        pass

    def relative_speed(self, model: str, others: Sequence[str], gpu_model: str) -> float:
        return 0.1 if "slow" in others else 0.9 if others else 1.0


def tenant(model: str, node: str) -> RunningJob:
    demand = Resources(cpu_cores=1, gpus=1)
    job = Job(make_job(model).id, model=model, groups=(TaskGroup(Role.WORKER, 1, demand),), gpu_sharing=SHARING)
    return RunningJob(job, (Assignment("worker-0", Role.WORKER, NodeId(node), (0,), demand),))


def view_of() -> ClusterView:
    """A slow tenant on n0, a fast one on n1; nobody on n2, nor on the two GPUs of n3."""
    nodes = [make_node(name, gpus=2 if name == "n3" else 1, max_jobs_per_gpu=4) for name in NODES]
    running = (tenant("slow", "n0"), tenant("fast", "n1"))
    return ClusterView(ClusterRecords("c", 0, "e", tuple(nodes), running))


def retraced_on(nodes: Sequence[str], net: Spreads) -> Retraced | None:
    """The gang, a task on each of these nodes."""
    job = make_job("a", workers=len(nodes), gpu_sharing=SHARING)
    demand = job.groups[0].demand
    tasks = [Assignment(f"worker-{i}", Role.WORKER, NodeId(node), (), demand) for i, node in enumerate(nodes)]
    context = PlaceContext(0.0, 0, interference=NotBesideSlow())
    return retraced(Harmony(net, Consolidate()), Proposal(tuple(tasks)), job, view_of(), context)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_steps_on_shared_gpus_have_probabilities_that_sum_to_one(workers: int) -> None:
    total = 0.0
    for nodes in itertools.product(NODES, repeat=workers):
        found = retraced_on(nodes, Spreads(sharpness=0.7))
        is_possible = "n0" not in nodes and all(nodes.count(name) <= 1 + (name == "n3") for name in nodes)
        assert (found is not None) == is_possible, nodes
        if found is not None:
            assert found.tasks == tuple(f"worker-{i}" for i in range(workers))
            total += float(np.prod(found.odds))
    assert total == pytest.approx(1.0, abs=1e-9)


def test_a_node_too_slow_to_share_has_no_part_in_a_steps_probability() -> None:
    net = Spreads(sharpness=0.7)
    found = retraced_on(("n1", "n3"), net)
    assert found is not None
    for step, (open_to, chosen) in enumerate([((1, 2, 3), 1), ((2, 3), 3)]):  # n1's only GPU has the first task then
        likes = np.exp(net.decode(None, 0, found.tokens[step])[: len(NODES)])  # type: ignore[arg-type]
        assert found.odds[step] == pytest.approx(likes[chosen] / likes[list(open_to)].sum(), rel=1e-6)
