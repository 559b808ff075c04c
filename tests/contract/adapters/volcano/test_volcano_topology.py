"""Hard topology: HyperNodes are the racks of the nodes, and a gang stays within one up to the tier it may cross."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld
from tests.contract.adapters.test_volcano_groups import GROUP, GROUP_UID, ask, make_pods, world
from tests.contract.adapters.volcano.test_volcano_writes import told, turn
from tests.fakes.schedulers.kubernetes_api import VOLCANO_GROUPS, VOLCANO_JOBS
from tests.unit.kubernetes.kube.test_topology import exact, hyper_node

from placewise.v1.job_pb2 import Job
from placewise_kubernetes.faces.volcano import PERMIT, REJECT
from placewise_kubernetes.gang.volcano.limits import HYPER_NODES_PATH
from placewise_kubernetes.kube.topology import label_of

__all__ = ["world"]
PAIRS = {"s1": ("n1", "n2"), "s2": ("n3", "n4")}
HALL = hyper_node("hall", 2, exact("s1"), exact("s2"), kind="HyperNode")


async def show(world: KubernetesWorld, *documents: dict[str, Any]) -> None:
    """HyperNodes, before the adapter starts."""
    world.host.kube.served.add(HYPER_NODES_PATH)
    for document in documents or [hyper_node(name, 1, *map(exact, nodes)) for name, nodes in PAIRS.items()]:
        world.host.kube.put_object(HYPER_NODES_PATH, document)
    world.start_adapter()
    await world.loop.run_pass(full=True)


def put(world: KubernetesWorld, members: int = 2, gpus: int = 8, **topology: Any) -> None:
    """A PodGroup of nobody's, of so many pods."""
    least = {"minMember": members, "minResources": {"nvidia.com/gpu": str(members * gpus)}}
    spec = least | {"networkTopology": {"mode": "hard", **topology}}
    world.host.kube.served.discard(VOLCANO_JOBS)
    metadata = {"name": GROUP, "uid": GROUP_UID}
    world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": metadata, "spec": spec})


def last_job(world: KubernetesWorld) -> Job:
    job: Job = world.asked("place")[-1].jobs[0]
    return job


def racks(world: KubernetesWorld) -> dict[str, str]:
    """By the last report of each node."""
    return {node.id: node.rack for report in world.asked("report_nodes") for node in report.nodes}


async def test_hyper_nodes_are_told_as_racks(world: KubernetesWorld) -> None:
    await show(world)
    assert racks(world) == {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}
    world.host.kube.put_object(HYPER_NODES_PATH, hyper_node("s2", 1, exact("n4")))
    await turn(world)
    assert racks(world) == {"n1": "s1", "n2": "s1", "n3": "", "n4": "s2"}
    world.host.kube.remove_object(HYPER_NODES_PATH, "s1")
    await turn(world)
    assert racks(world) == {"n1": "", "n2": "", "n3": "", "n4": "s2"}


async def test_a_hard_topology_keeps_the_gang_within_one_rack(world: KubernetesWorld) -> None:
    await show(world)
    put(world, highestTierAllowed=1)
    assert await ask(world) == PERMIT
    assert last_job(world).keep_together == Job.RACK


async def test_it_does_so_for_pods_that_came_first(world: KubernetesWorld) -> None:
    await show(world)
    put(world, highestTierAllowed=1)
    make_pods(world, "worker", 2, 8, owner=None)
    await turn(world)
    assert last_job(world).keep_together == Job.RACK


async def test_a_gang_that_may_cross_a_tier_stays_within_one_of_the_next(world: KubernetesWorld) -> None:
    await show(world, *(hyper_node(name, 1, *map(exact, nodes)) for name, nodes in PAIRS.items()), HALL)
    put(world, members=4, highestTierAllowed=2)
    assert await ask(world) == PERMIT
    assert last_job(world).keep_together == Job.KEEP_TOGETHER_UNSPECIFIED
    assert dict(last_job(world).groups[0].node_selector) == {label_of(2): "hall"}


async def test_of_higher_hyper_nodes_the_one_with_room_is_named(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try is on the one that is tighter by its GPUs; if the gang waits, the other follows."""
    monkeypatch.setattr("placewise_kubernetes.gang.volcano.limits._TRY_S", 0.0)
    one = [hyper_node(name, 1, exact(name.replace("t", "n"))) for name in ("t1", "t2", "t3", "t4")]
    left = hyper_node("left", 2, exact("t1"), exact("t2"), kind="HyperNode")
    right = hyper_node("right", 2, exact("t3"), exact("t4"), kind="HyperNode")
    await show(world, *one, left, right)
    await world.host.occupy("n4", 4)
    world.oracle.waits.add("*")
    put(world, members=1, highestTierAllowed=2)
    named = []
    for _ in range(4):
        await ask(world)
        named.append(world.asked("admit_or_wait")[-1].jobs[0].groups[0].node_selector[label_of(2)])
        world.clock.advance(3)
    assert named[0] == "right"
    assert set(named) == {"left", "right"}


async def test_without_a_hyper_node_that_it_may_use_a_gang_waits_and_says_why(world: KubernetesWorld) -> None:
    await show(world, hyper_node("hall", 2, exact("n1"), exact("n2")))
    put(world, highestTierAllowed=1)
    assert await ask(world) == REJECT
    assert world.asked("admit_or_wait") == world.asked("place") == []
    (message,) = await told(world)
    assert "above tier 1" in message
    world.host.kube.put_object(HYPER_NODES_PATH, hyper_node("s1", 1, exact("n1"), exact("n2")))
    await turn(world)
    assert await ask(world) == PERMIT


async def test_where_no_hyper_nodes_are_shown_a_gang_is_decided_as_any_other(world: KubernetesWorld) -> None:
    put(world, highestTierAllowed=1)
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert await ask(world) == PERMIT
    assert last_job(world).keep_together == Job.KEEP_TOGETHER_UNSPECIFIED
