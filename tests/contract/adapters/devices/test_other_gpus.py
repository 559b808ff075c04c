"""Pods whose claims hold other GPUs than were decided: the service knows them, and no GPU of the gang counts twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from tests.contract.adapters.devices.test_counted_gpus import offered
from tests.contract.adapters.devices.test_kubernetes_devices import Claiming, host_of
from tests.contract.adapters.test_kubernetes_conformance import PODS, KubernetesWorld, small_world
from tests.e2e.kubernetes.devices.kubernetes_devices import allocated, claim, claiming_gang, request

from placewise.v1.cluster_pb2 import Assignment
from placewise_kubernetes.gang.devices.mirrors import CLAIMS_PATH
from placewise_kubernetes.kube import names


@pytest.fixture
async def world() -> AsyncIterator[KubernetesWorld]:
    async with small_world(Claiming("default-scheduler")) as world:
        yield world


def plan_of(world: KubernetesWorld) -> tuple[Assignment, ...]:
    (plan,) = (gang.plan for gang in host_of(world).native.pods.book.gangs.values() if gang.plan is not None)
    return plan.assignments


async def start(world: KubernetesWorld, name: str, node: str, indices: Iterable[int]) -> None:
    """The scheduler gives the pod these GPUs."""
    host = host_of(world)
    document = host.kube.pods[f"{PODS}/{name}"]
    devices: list[dict[str, Any] | str] = [f"gpu-{index}" for index in indices]
    host.kube.put_object(CLAIMS_PATH, allocated(host.claim(document), node, devices, document["metadata"]["uid"]))
    host.kube.bind(f"{PODS}/{name}", node, {})
    host.kube.set_phase(f"{PODS}/{name}", "Running")
    await look(world)


async def look(world: KubernetesWorld) -> None:
    await host_of(world).kube.seen()
    await world.loop.run_pass(full=True)


async def test_a_node_offers_the_gpus_of_a_later_pod_that_were_not_decided(world: KubernetesWorld) -> None:
    host = host_of(world)
    pods = claiming_gang("g", 2, annotations={names.IN_ORDER: "true"})
    await host.make(pods[:1], gpus=2)
    host.kube.put_object(CLAIMS_PATH, claim("g-1", request(2)))
    await look(world)
    first, second = plan_of(world)
    await start(world, "g-0", first.node, (6, 7))
    host.kube.add_pod(pods[1])
    await look(world)
    await start(world, "g-1", second.node, (4, 5))
    await look(world)
    assert all(len(offered(world, node)) == 8 for node in (first.node, second.node))
    (held,) = world.oracle.held.values()
    assert [list(task.gpu_indices) for task in held.assignments] == [[6, 7], [4, 5]]


async def test_a_place_to_come_has_no_gpu_that_another_pod_of_the_gang_holds(world: KubernetesWorld) -> None:
    host = host_of(world)
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j-uid", "controller": True}
    pods = claiming_gang("g", 2)
    for document in pods:
        document["metadata"]["ownerReferences"] = [job]
    key = await host.make(pods, gpus=2)
    await look(world)
    first, second = plan_of(world)
    await start(world, "g-0", first.node, second.gpu_indices)
    await start(world, "g-1", second.node, first.gpu_indices)
    host.kube.remove_pod(f"{PODS}/g-0")
    host.kube.put_object(CLAIMS_PATH, claim("g-0", request(2)))
    await look(world)
    assert first.node == second.node
    (job_id,) = world.oracle.held
    assert job_id.startswith(key.rpartition("/")[0])
    held = [index for task in world.oracle.held[job_id].assignments for index in task.gpu_indices]
    assert sorted(held) == sorted([*first.gpu_indices, *second.gpu_indices])
