"""When a gang is over, and what its pods are then, also for a later run of the adapter."""

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
    of_set,
    ordered,
    owned,
    placed,
    put_stateful_set,
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


async def test_a_gang_whose_pods_run_their_grace_period_is_not_over(world: KubernetesWorld) -> None:
    kube = world.host.kube
    put_stateful_set(world, 2)
    await come(world, of_set(world, 0))
    gang = gang_of(world)
    held = placed(world, gang.key)
    leaving = kube.pods[f"{PODS}/s-0"]
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kube._tell("/api/v1/pods", "MODIFIED", leaving)
    await kube.seen()
    await wait_for_places(world)
    assert world.oracle.ended == set()
    assert placed(world, gang.key) == held
    await leave(world, "s-0")
    await wait_for_places(world)
    assert world.oracle.ended == {gang.key}


async def test_a_pod_that_finishes_wakes_no_gang_that_waits_as_long_as_its_place_is_kept() -> None:
    async with world_of(OWN) as world:
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j-uid", "controller": True}
        notes = {names.GANG: "4"}
        await come(world, *(owned(ordered(world, f"g-{i}", gpus=1, annotations=notes), job) for i in range(4)))
        large = [pod(f"l-{i}", gpus=8, labels={names.JOB: "l"}, annotations=notes, scheduler=OWN) for i in range(4)]
        await come(world, *large)
        asked = len(world.oracle.calls)
        for index in range(3):
            world.host.kube.set_phase(f"{PODS}/g-{index}", "Succeeded")
            await world.host.kube.seen()
            await world.loop.run_pass(full=False)
        assert world.oracle.calls[asked:] == []
        world.host.kube.set_phase(f"{PODS}/g-3", "Succeeded")
        await come(world)
        assert "l-0" in nodes(world)
