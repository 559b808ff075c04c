"""Gangs of our own scheduler name whose pods come one by one: when each is bound, and what becomes of a rest."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_kubernetes_conformance import KubernetesScheduler, KubernetesWorld, small_world
from tests.e2e.kubernetes.kubernetes_cluster import gang

from placewise.v1.cluster_pb2 import JobEvent
from placewise_client.adapter.native import Stage
from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import GangRules

OWN = GangRules().own_scheduler
CONTROLLER = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "job-uid", "controller": True}


@pytest.fixture
async def world() -> AsyncIterator[KubernetesWorld]:
    async with small_world(KubernetesScheduler(OWN)) as world:
        yield world


def made_by_controller(size: int, *, scheduler: str = OWN, **options: Any) -> list[dict[str, Any]]:
    documents = gang("g", size, scheduler=scheduler, **options)
    for document in documents:
        document["metadata"]["ownerReferences"] = [CONTROLLER]
    return documents


async def come(world: KubernetesWorld, *documents: dict[str, Any]) -> None:
    for document in documents:
        world.host.kube.add_pod(document)
    await world.host.kube.seen()


def nodes_of(world: KubernetesWorld) -> dict[str, str]:
    """Node by pod, of the pods of the gang that are bound."""
    return {
        document["metadata"]["name"]: document["spec"]["nodeName"]
        for document in world.host.kube.pods.values()
        if document["spec"].get("nodeName") and document["metadata"]["name"].startswith("g-")
    }


def the_gang(world: KubernetesWorld) -> Gang:
    (gang,) = (gang for gang in world.host.native.pods.book.gangs.values() if gang.ref.name == "g")
    return gang


async def test_pods_of_a_controller_are_bound_as_they_come_where_the_one_decision_says(world: KubernetesWorld) -> None:
    documents = made_by_controller(3, gpus=4)
    await come(world, documents[0])
    await world.loop.run_pass(full=False)
    await world.host.kube.seen()
    assert len(nodes_of(world)) == 1
    await come(world, *documents[1:])  # without another pass: the decision is there
    await world.host.kube.seen()
    assert sorted(nodes_of(world).values()) == world.decided_nodes(the_gang(world).key)
    assert len(world.asked("place")) == 1
    await world.step()
    assert world.kinds(the_gang(world).key) == ["STARTED"]
    assert list(world.events(the_gang(world).key)[0].placement) == []  # as decided


async def test_of_pods_that_nobody_replaces_none_is_bound_before_all_are_there(world: KubernetesWorld) -> None:
    documents = gang("g", 3, gpus=4, scheduler=OWN)
    await come(world, *documents[:2])
    await world.step()
    assert len(world.asked("place")) == 1  # decided all the same
    assert nodes_of(world) == {}
    await come(world, documents[2])
    await world.host.kube.seen()
    assert sorted(nodes_of(world).values()) == world.decided_nodes(the_gang(world).key)


async def test_early_binding_can_be_switched_off(world: KubernetesWorld) -> None:
    world.host.rules = dataclasses.replace(GangRules(), is_bound_early=False)
    world.start_adapter()
    first, second = made_by_controller(2)
    await come(world, first)
    await world.step()
    assert nodes_of(world) == {}
    await come(world, second)
    await world.host.kube.seen()
    assert sorted(nodes_of(world).values()) == world.decided_nodes(the_gang(world).key)


async def test_nothing_is_bound_early_where_the_rest_would_find_no_room(world: KubernetesWorld) -> None:
    """The service cannot know yet that somebody has just taken the place of a pod that is still to come."""
    first, second = made_by_controller(2, gpus=8)
    await come(world, first)
    world.oracle.blocked = asyncio.Event()
    passing = asyncio.ensure_future(world.loop.run_pass(full=False))
    while not world.asked("admit_or_wait"):  # noqa: ASYNC110 nothing tells the server who waits for it
        await asyncio.sleep(0.001)
    await world.host.occupy("n3", 4)
    world.oracle.blocked.set()
    await passing
    await world.host.kube.seen()
    assert [task.node for task in world.oracle.decided[the_gang(world).key][-1]] == ["n4", "n3"]
    assert nodes_of(world) == {}
    await come(world, second)
    for _ in range(3):
        world.clock.advance(SETTINGS.retry_s)
        await world.step()
    assert len(set(nodes_of(world).values()) - {"n3"}) == 2
    assert world.oracle.double_placements == []


async def test_without_a_decision_nothing_is_bound_early(world: KubernetesWorld) -> None:
    """Nothing is held for the rest, so the first would run alone."""
    world.oracle.fail_always = StateUnavailableError("away")
    first, second = made_by_controller(2)
    await come(world, first)
    for _ in range(3):
        world.clock.advance(SETTINGS.release_after_s)
        await world.step()
    assert await world.host.stage(the_gang(world).key) is Stage.RELEASED
    assert nodes_of(world) == {}
    await come(world, second)
    await world.step()
    assert len(nodes_of(world)) == 2


async def test_the_rest_that_never_comes_is_given_up_and_what_runs_is_told(world: KubernetesWorld) -> None:
    documents = made_by_controller(3, gpus=8)
    await come(world, *documents[:2])
    await world.step()
    key = the_gang(world).key
    assert len(nodes_of(world)) == 2
    assert len(world.oracle.held[key].assignments) == 3
    world.clock.advance(SETTINGS.start_timeout_s + 1)
    await world.step()
    await world.step()
    assert await world.host.stage(key) is Stage.RUNNING
    assert sorted(a.node for a in world.oracle.held[key].assignments) == sorted(nodes_of(world).values())
    await come(world, documents[2])  # late: decided by itself
    await world.step()
    await world.host.kube.seen()
    assert len(set(nodes_of(world).values())) == 3
    assert world.oracle.double_placements == []


@pytest.mark.parametrize("scheduler", [OWN, "default-scheduler"])
async def test_a_pod_that_asks_for_more_than_was_decided_has_the_gang_decided_anew(
    world: KubernetesWorld, scheduler: str
) -> None:
    first, *_ = gang("g", 2, gpus=1, scheduler=scheduler)
    _, larger = gang("g", 2, gpus=8, scheduler=scheduler)
    await come(world, first)
    await world.loop.run_pass(full=True)
    assert [a.demand.gpus for a in world.oracle.decided[the_gang(world).key][-1]] == [1, 1]
    await come(world, larger)
    for _ in range(3):
        await world.step()
    assert [a.demand.gpus for a in world.oracle.decided[the_gang(world).key][-1]] == [8, 8]
    assert sorted(nodes_of(world).values()) == world.decided_nodes(the_gang(world).key)
    assert len(set(nodes_of(world).values())) == 2
    assert world.oracle.double_placements == []


async def test_a_larger_pod_of_a_gang_that_is_bound_in_part_takes_nobodys_room(world: KubernetesWorld) -> None:
    first, *_ = made_by_controller(2, gpus=4)
    _, larger = made_by_controller(2, gpus=8)
    await come(world, first)
    await world.step()
    await world.host.kube.seen()
    before = nodes_of(world)
    assert len(before) == 1
    await come(world, larger)
    await world.step()
    assert nodes_of(world) == before  # its task is for four GPUs, beside the first
    world.clock.advance(SETTINGS.start_timeout_s + 1)
    for _ in range(3):
        await world.step()
    assert len(set(nodes_of(world).values())) == 2
    assert world.oracle.double_placements == []


async def test_a_new_life_binds_the_rest_as_the_one_before_had_decided(world: KubernetesWorld) -> None:
    documents = made_by_controller(3, gpus=4)
    await come(world, documents[0])
    await world.step()
    await world.host.kube.seen()
    world.start_adapter()
    await world.step()
    await come(world, *documents[1:])
    await world.step()
    await world.host.kube.seen()
    assert sorted(nodes_of(world).values()) == world.decided_nodes(the_gang(world).key)
    await world.step()
    assert [event.kind for event in world.events(the_gang(world).key)] == [JobEvent.STARTED]
    assert len(world.asked("place")) == 1


async def test_nothing_is_taken_back_while_it_is_being_bound(world: KubernetesWorld) -> None:
    documents = made_by_controller(2, gpus=4)
    await come(world, documents[0])
    await world.loop.run_pass(full=False)
    found = the_gang(world)
    found.being_bound.add("under-way")
    entry = world.loop.book.records[found.key]
    world.clock.advance(SETTINGS.start_timeout_s + 1)
    await world.loop.run_pass(full=False)
    assert entry.job.stage is Stage.APPLIED
    assert found.plan is not None
