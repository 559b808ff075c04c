"""No GPU is given twice: the service hears of a start once, and a claim may show other GPUs later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.devices.test_kubernetes_devices import Claiming, host_of
from tests.contract.adapters.test_kubernetes_conformance import PODS, KubernetesWorld, small_world
from tests.e2e.kubernetes.devices.kubernetes_devices import allocated, claim, claiming, claiming_gang, request
from tests.e2e.kubernetes.kubernetes_cluster import pod

from placewise.v1.cluster_pb2 import JobEvent
from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.gang.devices.mirrors import CLAIMS_PATH, CLASSES_PATH, SLICES_PATH
from placewise_kubernetes.kube import names, watch
from placewise_kubernetes.kube.client import KubeError

ALL = [f"gpu-{number}" for number in range(8)]


@pytest.fixture
async def world() -> AsyncIterator[KubernetesWorld]:
    async with small_world(Claiming("default-scheduler")) as world:
        yield world


def offered(world: KubernetesWorld, node: str = "n1") -> list[int]:
    return [found.index for found in world.oracle.nodes[node].gpus]


async def start_alone(world: KubernetesWorld, gpus: int = 8) -> str:
    """A pod that nobody decides for, on n1."""
    host = host_of(world)
    key = await host.make([claiming(pod("alone", gpus=0), "alone")], gpus=gpus)
    host.allocate(host.kube.pods[f"{PODS}/alone"], "n1")
    host.kube.bind(f"{PODS}/alone", "n1", {})
    host.kube.set_phase(f"{PODS}/alone", "Running")
    await host.kube.seen()
    return key


async def start_sharing(world: KubernetesWorld) -> list[str]:
    """Two pods that use all GPUs of n1 by one claim. Returns their uids."""
    kube = host_of(world).kube
    uids = [kube.add_pod(claiming(pod(name, gpus=0), "c"))["metadata"]["uid"] for name in "pq"]
    kube.put_object(CLAIMS_PATH, allocated(claim("c", request(8)), "n1", list(ALL), *uids))
    for name in "pq":
        kube.bind(f"{PODS}/{name}", "n1", {})
        kube.set_phase(f"{PODS}/{name}", "Running")
    await kube.seen()
    await world.loop.run_pass(full=True)
    return uids


async def decide(world: KubernetesWorld, count: int) -> list[str]:
    """The nodes of so many gangs of eight GPUs each."""
    nodes = []
    for number in range(count):
        key = await host_of(world).make(claiming_gang(f"g{number}", 1), gpus=8)
        await world.loop.run_pass(full=True)
        nodes += world.decided_nodes(key) if key in world.oracle.decided else []
    return sorted(nodes)


async def test_a_claim_that_becomes_one_pods_own_gives_its_gpus_to_nobody(world: KubernetesWorld) -> None:
    uids = await start_sharing(world)
    kube = host_of(world).kube
    assert offered(world) == []
    kube.set_phase(f"{PODS}/p", "Succeeded")
    kube.put_object(CLAIMS_PATH, allocated(claim("c", request(8)), "n1", list(ALL), uids[1]))
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert offered(world) == []
    assert await decide(world, 4) == ["n2", "n3", "n4"]
    kube.set_phase(f"{PODS}/q", "Succeeded")
    kube.remove_object(CLAIMS_PATH, "c")
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert len(offered(world)) == 8


async def test_claims_that_can_be_read_only_later_give_their_gpus_to_nobody(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ABSENT_S", 0.02)
    kube = host_of(world).kube
    paths = {SLICES_PATH, CLAIMS_PATH, CLASSES_PATH}
    kube.served -= paths
    world.start_adapter()
    await start_alone(world)
    await world.loop.run_pass(full=True)
    kube.served |= paths
    await asyncio.sleep(0.2)
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert offered(world) == []
    assert await decide(world, 4) == ["n2", "n3", "n4"]
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert offered(world) == []


async def test_the_first_look_waits_for_claims_that_can_be_read(world: KubernetesWorld) -> None:
    host = host_of(world)
    key = await start_alone(world)
    list_all, failures = host.kube.list_all, [KubeError(503, "Unavailable", "etcd is slow")]

    async def list_later(path: str, *arguments: Any, **options: Any) -> Any:
        if path == CLAIMS_PATH and failures:
            raise failures.pop()
        return await list_all(path, *arguments, **options)

    host.kube.list_all = list_later  # type: ignore[method-assign]
    world.start_adapter()
    await world.loop.run_pass(full=True)
    (started,) = [event for event in world.events(key) if event.placement]
    assert list(started.placement[0].gpu_indices) == list(range(8))


async def test_a_new_life_offers_what_an_earlier_one_has_reported(world: KubernetesWorld) -> None:
    await start_alone(world, gpus=3)
    await world.loop.run_pass(full=True)
    assert len(offered(world)) == 8
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert len(offered(world)) == 8


async def test_a_new_life_offers_no_held_gpu_before_the_service_has_answered(world: KubernetesWorld) -> None:
    await start_alone(world, gpus=3)
    await world.loop.run_pass(full=True)
    world.oracle.fail_always = StateUnavailableError("away")
    world.start_adapter()
    await world.loop.run_pass(full=True)
    native = host_of(world).native
    assert [found.index for found in native.nodes.nodes["n1"].gpus] == [0, 1, 2, 3, 4]
    world.oracle.fail_always = None
    world.clock.advance(60)
    await world.loop.run_pass(full=True)
    assert len(native.nodes.nodes["n1"].gpus) == 8


async def test_gpus_that_are_left_out_are_not_taken_from_the_node_a_second_time(world: KubernetesWorld) -> None:
    uids = await start_sharing(world)
    kube, pods = host_of(world).kube, host_of(world).native.pods
    kube.set_phase(f"{PODS}/p", "Succeeded")
    kube.put_object(CLAIMS_PATH, allocated(claim("c", request(8)), "n1", list(ALL), uids[1]))
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert (offered(world), pods.gpus_in_use({"n1"})["n1"]) == ([], 0.0)


async def test_a_claim_whose_pod_is_gone_holds_its_gpus_until_it_is_deallocated(world: KubernetesWorld) -> None:
    kube = host_of(world).kube
    await start_alone(world, gpus=3)
    await world.loop.run_pass(full=True)
    kube.remove_pod(f"{PODS}/alone")
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert offered(world) == [0, 1, 2, 3, 4]
    kube.put_object(CLAIMS_PATH, claim("alone", request(3)))
    await kube.seen()
    await world.loop.run_pass(full=True)
    assert len(offered(world)) == 8


async def test_a_running_gang_whose_next_pod_waits_for_the_sight_of_its_claim_stays_a_running_one(
    world: KubernetesWorld,
) -> None:
    """Else the loop would report the end of its first run, after which the service hears of no other."""
    host = host_of(world)
    pods = claiming_gang("g", 2, annotations={names.IN_ORDER: "true"})
    key = await host.make(pods[:1], gpus=2)
    host.kube.put_object(CLAIMS_PATH, claim("g-1", request(2)))
    await world.step()
    assert world.kinds(key)[-1] == "STARTED"
    host.kube.add_pod(pods[1])
    await host.kube.seen()
    await world.loop.run_pass(full=False)
    host.kube.bind(f"{PODS}/g-1", "n1", {})
    await host.kube.seen()
    await world.loop.run_pass(full=True)
    host.allocate(host.kube.pods[f"{PODS}/g-1"], "n1")
    await host.kube.seen()
    await world.loop.run_pass(full=True)
    assert world.kinds(key)[-1] == "STARTED"


async def test_a_start_that_was_reported_without_claims_is_not_taken_back_when_they_can_be_read(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ABSENT_S", 0.02)
    kube = host_of(world).kube
    paths = {SLICES_PATH, CLAIMS_PATH, CLASSES_PATH}
    kube.served -= paths
    world.start_adapter()
    made = kube.add_pod(claiming(pod("alone", gpus=0), "alone"))
    kube.bind(f"{PODS}/alone", "n1", {})
    await kube.seen()
    await world.loop.run_pass(full=True)
    kube.served |= paths
    await asyncio.sleep(0.2)
    await kube.seen()
    await world.loop.run_pass(full=True)
    uid = made["metadata"]["uid"]
    assert host_of(world).native.pods.others[uid].is_unclaimed
    assert [event.kind for event in world.oracle.events if "/alone/" in event.job_id] == [JobEvent.STARTED]


async def test_a_pod_whose_devices_cannot_be_read_holds_up_no_other(
    world: KubernetesWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await start_alone(world, gpus=3)
    await world.loop.run_pass(full=True)
    native = host_of(world).native

    def fail(_: object) -> None:
        raise ValueError("odd")

    native.devices.complete = fail  # type: ignore[method-assign,assignment]
    native.pods.update_devices(list(native.pods.others))
    assert "its devices cannot be read" in caplog.text
