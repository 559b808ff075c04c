"""Gangs that are held while their nodes and their size change."""

from __future__ import annotations

from dataclasses import replace
from sys import float_info
from typing import ClassVar

import pytest
from tests.contract.adapters.kubernetes.in_order import ASKS, GATES, OWN, come, gang_of, key_of, world_of
from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld, small_world
from tests.contract.adapters.test_kubernetes_jobs import job_of, make_job
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.gang.gates.opening import GateRules
from placewise_kubernetes.kube import names

PODS = "/api/v1/namespaces/default/pods"
LONG_S, UNDECIDED_S = 61.0, 6.0


class Patient(GatedScheduler):
    """Gangs that no node can take keep their gates for a while."""

    gates: ClassVar = GateRules(is_enabled=True)


def messages(world: KubernetesWorld) -> list[str]:
    return [event["message"] for event in world.host.kube.events]


async def look(world: KubernetesWorld, *, later_s: float = 1.0) -> None:
    """The adapter looks once more, so much later."""
    world.clock.advance(later_s)
    await world.host.kube.seen()
    await world.loop.run_pass(full=True)
    await world.host.native.writer.drain()


async def lose(world: KubernetesWorld, node: str) -> None:
    world.host.kube.remove_node(node)
    await look(world)


async def bring_back(world: KubernetesWorld, node: str) -> None:
    world.host.kube.add_node(fake_node(node, 8))
    await look(world)


async def test_a_gang_says_that_it_waits_again_when_a_node_comes_back() -> None:
    async with small_world(Patient()) as world:
        await world.host.occupy("n1", 3)
        await come(world, *gang("g", 4, gpus=8))
        await look(world)
        waiting = gang_of(world).text
        assert waiting.startswith("waiting")
        await lose(world, "n4")
        assert gang_of(world).text.startswith("no node can take it")
        await bring_back(world, "n4")
        assert gang_of(world).text == waiting
        assert [text.split()[1] for text in messages(world)[::4]] == ["waiting:", "no", "waiting:"]


async def test_a_gang_keeps_its_gates_if_no_node_can_take_it_for_two_short_whiles() -> None:
    async with small_world(Patient()) as world:
        native = world.host.native
        native._clock = world.clock
        await world.host.occupy("n1", 3)
        await come(world, *gang("g", 4, gpus=8))
        for _ in range(2):
            await lose(world, "n4")
            await bring_back(world, "n4")
            await look(world, later_s=LONG_S)
        await lose(world, "n4")
        assert all(pod.is_held for pod in gang_of(world).live())
        await look(world, later_s=LONG_S)
        await world.step()
        assert not any(pod.is_held for pod in gang_of(world).live())


@pytest.mark.parametrize("loss", ["gone", "cordoned"])
@pytest.mark.parametrize("way", [ASKS, OWN, GATES])
async def test_a_node_that_is_lost_while_the_decision_for_it_comes_takes_no_pod(way: str, loss: str) -> None:
    async with world_of(way) as world:
        kube, struck = world.host.kube, []

        def strike(answer: PlaceResponse) -> None:
            world.oracle.spoil = None
            struck.append(answer.decisions[0].assignments[0].node)
            kube.remove_node(struck[0]) if loss == "gone" else kube.change_node(struck[0], unschedulable=True)

        world.oracle.spoil = strike
        await come(world, *gang("g", 2, gpus=8, scheduler="default-scheduler" if way == GATES else way))
        await look(world)
        await world.host.run_scheduler()
        assert struck
        assert len(kube.bound) == 2
        assert struck[0] not in [node for _, node in kube.bound]


@pytest.mark.parametrize("way", [ASKS, OWN, GATES])
async def test_a_gang_that_waits_is_decided_by_the_size_that_its_job_has_then(way: str) -> None:
    async with world_of(way) as world:
        await world.host.occupy("n1", 3)
        pods = gang("g", 4, gpus=8, scheduler="default-scheduler" if way == GATES else way)
        for document in pods:
            del document["metadata"]["annotations"][names.GANG]
        job = job_of(pods)
        await make_job(world, job, pods)
        await come(world, *pods)
        await look(world)
        assert world.oracle.held.keys() == {key for key in world.oracle.held if "/taken" in key}
        job["spec"]["parallelism"] = 2
        world.host.kube.put_job(job)
        for document in pods[2:]:
            world.host.kube.remove_pod(f"{PODS}/{document['metadata']['name']}")
        await world.host.kube.seen()
        for _ in range(3):
            await look(world)
            await world.host.run_scheduler()
        assert len(world.decided_nodes(key_of(world))) == 2
        assert len(world.host.kube.bound) == 3


@pytest.mark.parametrize("way", [OWN, GATES])
async def test_a_gang_that_lacks_pods_says_so_once_it_holds_no_place(way: str) -> None:
    """Its place was held until its pods should have come."""
    async with world_of(way) as world:
        world.host.native._clock = world.clock
        await come(world, *gang("g", 4, gpus=8, scheduler="default-scheduler" if way == GATES else way)[:3])
        for _ in range(3):
            await look(world, later_s=LONG_S)
        lacking = "Placewise: waiting: 3 of 4 worker pods of the gang exist"
        assert lacking in messages(world)
        assert len(messages(world)) == len(set(messages(world))) * 3
        assert world.host.kube.bound == []


async def test_a_gang_that_its_gates_hold_without_a_decision_says_so() -> None:
    async with small_world(Patient()) as world:
        world.start_adapter(replace(SETTINGS, release_after_s=float_info.max))
        world.oracle.fail_always = StateUnavailableError("the state is away", reason="STATE_UNAVAILABLE")
        await come(world, *gang("g", 2, gpus=8))
        await look(world)
        assert messages(world) == []  # it may be over at once
        await look(world, later_s=UNDECIDED_S)
        assert set(messages(world)) == {"Placewise: undecided: STATE_UNAVAILABLE"}
        world.oracle.fail_always = None
        await look(world)
        await world.step()
        assert len(world.host.kube.bound) == 2


async def test_a_gang_that_is_released_soon_is_not_written_to_before() -> None:
    async with small_world(Patient()) as world:
        world.start_adapter(replace(SETTINGS, release_after_s=2 * UNDECIDED_S))
        world.oracle.fail_always = StateUnavailableError("the state is away", reason="STATE_UNAVAILABLE")
        await come(world, *gang("g", 2, gpus=8))
        await look(world, later_s=UNDECIDED_S)
        assert messages(world) == []
