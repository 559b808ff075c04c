"""Pods that outlive their gang are a gang of another name, also for a later run of the adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.contract.adapters.kubernetes.in_order import (
    ASKS,
    GATES,
    OWN,
    come,
    gang_of,
    leave,
    nodes,
    ordered,
    placed,
    wait_for_places,
    world_of,
)
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld
from tests.e2e.kubernetes.kubernetes_cluster import pod

from placewise_kubernetes.kube import names

IN_ORDER = {names.GANG: "2", names.IN_ORDER: "true"}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(params=[ASKS, OWN, GATES])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesWorld]:
    async with world_of(request.param) as world:
        yield world


async def take(world: KubernetesWorld, name: str, node: str) -> None:
    made = world.host.kube.add_pod(pod(name, gpus=8))
    world.host.kube.bind(f"{PODS}/{name}", node, made["metadata"])


async def outlive(world: KubernetesWorld) -> str:
    """The pod p-0 has named a gang that is over, and whose places are lost. Returns the gang's key."""
    kube = world.host.kube
    for name in ("p-0", "p-1"):
        kube.add_pod(ordered(world, name, annotations=IN_ORDER))
    await kube.seen()
    is_asked = world.host._scheduler == ASKS and not isinstance(world.host, GatedScheduler)
    kube.refusals = 0 if is_asked else 1  # p-0 is not bound, or does not lose its gate
    await world.loop.run_pass(full=True)
    gang = gang_of(world)
    first, second = (gang.task_of(pod) for pod in gang.pods.values())
    assert first is not None
    assert second is not None
    await take(world, "taken-0", first.node)
    if "p-1" not in nodes(world):
        kube.bind(f"{PODS}/p-1", second.node, {})
    await kube.seen()
    await world.loop.run_pass(full=True)
    kube.set_phase(f"{PODS}/p-1", "Succeeded")
    await kube.seen()
    await world.loop.run_pass(full=True)
    await take(world, "taken-1", second.node)
    await wait_for_places(world)
    await come(world)
    return gang.key


async def test_a_pod_that_named_a_gang_that_is_over_is_of_another_gang(world: KubernetesWorld) -> None:
    key = await outlive(world)
    await leave(world, "p-1")
    again = gang_of(world)
    assert again.key != key
    assert world.oracle.ended == {key}
    assert placed(world, again.key) == [nodes(world)["p-0"]]


async def test_a_later_run_knows_the_gang_of_a_pod_that_has_outlived_another(world: KubernetesWorld) -> None:
    key = await outlive(world)
    await leave(world, "p-1")
    again = gang_of(world).key
    world.start_adapter()
    await come(world)
    assert gang_of(world).key == again
    assert placed(world, again) == [nodes(world)["p-0"]]
    assert world.oracle.ended == {key}
