"""Nothing is reserved beyond what Volcano's plugin capacity lets a queue have: guarantees of others, and parents."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld
from tests.contract.adapters.test_volcano_groups import SCHEDULER, ask, world
from tests.contract.adapters.volcano.test_volcano_writes import put_in_queue, told, turn
from tests.e2e.kubernetes.kubernetes_cluster import pod
from tests.fakes.schedulers.kubernetes_api import VOLCANO_GROUPS

from placewise_kubernetes.faces.volcano import PERMIT, REJECT
from placewise_kubernetes.gang.volcano.queues import QUEUES_PATH
from placewise_kubernetes.kube import names

__all__ = ["world"]
GPU = "nvidia.com/gpu"
# Four nodes of eight.
TOTAL_GPUS = 32


async def put_queues(world: KubernetesWorld, **specs: dict[str, Any]) -> None:
    world.host.kube.served.add(QUEUES_PATH)
    for name, spec in specs.items():
        world.host.kube.put_object(QUEUES_PATH, {"metadata": {"name": name}, "spec": spec})
    world.start_adapter()
    await world.loop.run_pass(full=True)


async def test_what_other_queues_are_guaranteed_is_not_reserved(world: KubernetesWorld) -> None:
    await put_queues(world, default={}, sure={"guarantee": {"resource": {GPU: "16"}}})
    for number, name in enumerate(("first", "second", "third")):
        put_in_queue(world, name, 8, "default" if number != 2 else "sure")
    assert await ask(world, "first") == PERMIT
    assert await ask(world, "second") == PERMIT
    put_in_queue(world, "fourth", 8, "default")
    assert await ask(world, "fourth") == REJECT
    (message,) = await told(world, "fourth")
    assert "queue default may use 16 nvidia.com/gpu" in message
    assert await ask(world, "third") == PERMIT


async def test_queues_share_the_quota_of_the_one_above_them(world: KubernetesWorld) -> None:
    await put_queues(world, root={}, team={"capability": {GPU: "8"}}, a={"parent": "team"}, b={"parent": "team"})
    put_in_queue(world, "first", 8, "a")
    put_in_queue(world, "second", 8, "b")
    assert [await ask(world, name) for name in ("first", "second")] == [PERMIT, REJECT]
    (message,) = await told(world, "second")
    assert "queue team may use 8 nvidia.com/gpu" in message


async def test_a_queue_above_others_has_no_gangs_of_its_own(world: KubernetesWorld) -> None:
    await put_queues(world, team={}, a={"parent": "team"})
    put_in_queue(world, "first", 8, "team")
    assert await ask(world, "first") == REJECT
    assert world.oracle.held == {}
    (message,) = await told(world, "first")
    assert "queue team has queues below it" in message


async def test_what_a_queue_deserves_is_no_limit(world: KubernetesWorld) -> None:
    await put_queues(world, default={"deserved": {GPU: "8"}}, other={"deserved": {GPU: str(TOTAL_GPUS - 8)}})
    for name in ("first", "second"):
        put_in_queue(world, name, 8, "default")
        assert await ask(world, name) == PERMIT


# --- groups with pods -----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_kubernetes.gang.volcano.queues.SUM_AGE_S", -1.0)


def put_pods(world: KubernetesWorld, group: str, queue: str, pods: int = 1, gpus: int = 8, **status: str) -> None:
    """A PodGroup and its pods, as other controllers make them. Volcano asks about none without minResources."""
    spec = {"minMember": pods, "queue": queue}
    if status:
        spec["minResources"] = {GPU: str(pods * gpus)}
    document = {"metadata": {"name": group, "uid": f"{group:8}-uid"}, "spec": spec, "status": status}
    world.host.kube.put_object(VOLCANO_GROUPS, document)
    for number in range(pods):
        notes = {names.VOLCANO_GROUP: group}
        world.host.kube.add_pod(pod(f"{group}-{number}", gpus=gpus, annotations=notes, scheduler=SCHEDULER))


def held(world: KubernetesWorld) -> set[str]:
    """Groups for which something is reserved."""
    return {key.split("/")[1] for key in world.oracle.held}


async def test_pods_that_came_first_are_not_decided_beyond_the_quota(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    for name in ("first", "second"):
        put_pods(world, name, "small")
    await turn(world)
    assert held(world) == {"first"}
    await world.host.native.writer.drain()
    told_of = [event for event in world.host.kube.events if event["involvedObject"]["name"] == "second-0"]
    (event,) = told_of
    assert "queue small may use 8 nvidia.com/gpu" in event["message"]
    for _ in range(3):
        await turn(world)
    await world.host.native.writer.drain()
    assert [event for event in world.host.kube.events if event["involvedObject"]["name"] == "second-0"] == told_of


async def test_of_a_gang_whose_pods_are_still_being_made_all_count(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "16"}})
    put_pods(world, "first", "small", pods=2)
    world.host.kube.remove_pod("/api/v1/namespaces/default/pods/first-1")
    put_pods(world, "second", "small")
    await turn(world)
    assert held(world) == {"first"}


async def test_a_role_whose_pods_come_later_counts_too(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    roles = {"ps": 1, "worker": 4}
    spec = {"minMember": 5, "minTaskMember": roles, "queue": "small"}
    world.host.kube.put_object(VOLCANO_GROUPS, {"metadata": {"name": "first", "uid": "first-uid"}, "spec": spec})
    for role, count in roles.items():
        for number in range(count):
            notes = {names.VOLCANO_GROUP: "first", names.VOLCANO_TASK: role}
            gpus = 8 if role == "worker" else 0
            one = pod(f"first-{role}-{number}", gpus=gpus, annotations=notes, scheduler=SCHEDULER)
            world.host.kube.add_pod(one)
        await turn(world)
    assert held(world) == set()


async def test_pods_are_decided_once_their_queue_has_room(world: KubernetesWorld, fresh_sums: None) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    for name in ("first", "second"):
        put_pods(world, name, "small")
    await turn(world)
    world.host.kube.remove_pod("/api/v1/namespaces/default/pods/first-0")
    world.host.kube.remove_object(VOLCANO_GROUPS, "first")
    await turn(world)
    await turn(world)
    assert held(world) == {"second"}


async def test_what_comes_free_while_the_sums_are_young_is_seen_soon(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    for name in ("first", "second"):
        put_pods(world, name, "small")
    await turn(world)
    world.host.kube.remove_pod("/api/v1/namespaces/default/pods/first-0")
    await turn(world)
    assert held(world) == set()
    while held(world) != {"second"}:
        assert await world.host.native.wait(5.0)  # no other news of the second gang will come
        await turn(world)


async def test_a_group_that_volcano_asks_about_and_one_with_pods_share_the_quota(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    put_in_queue(world, "first", 8)
    assert await ask(world, "first") == PERMIT
    put_pods(world, "second", "small")
    await turn(world)
    assert held(world) == {"first"}
    assert await ask(world, "second") == REJECT


async def test_what_volcano_has_let_in_is_decided_after_a_restart_whatever_the_quota_is_then(
    world: KubernetesWorld,
) -> None:
    await put_queues(world, small={"capability": {GPU: "0"}})
    put_pods(world, "first", "small", phase="Inqueue")
    await turn(world)
    assert held(world) == {"first"}
    world.start_adapter()
    await world.loop.run_pass(full=True)
    assert held(world) == {"first"}


async def test_running_gangs_count_after_a_restart(world: KubernetesWorld) -> None:
    await put_queues(world, small={"capability": {GPU: "8"}})
    put_pods(world, "first", "small")
    await turn(world)
    (node,) = {task.node for held in world.oracle.held.values() for task in held.assignments}
    world.host.kube.bind("/api/v1/namespaces/default/pods/first-0", node, {})
    await turn(world)
    world.start_adapter()
    put_pods(world, "second", "small")
    await world.loop.run_pass(full=True)
    await turn(world)
    assert held(world) == {"first"}


async def test_a_gang_whose_place_was_taken_back_waits_until_its_queue_has_room(
    world: KubernetesWorld, fresh_sums: None
) -> None:
    """It was decided before its queue shrank, and did not start in time."""
    await put_queues(world, small={"capability": {GPU: "8"}})
    put_pods(world, "first", "small")
    await turn(world)
    assert held(world) == {"first"}
    world.host.kube.put_object(QUEUES_PATH, {"metadata": {"name": "small"}, "spec": {"capability": {GPU: "0"}}})
    world.clock.advance(31)
    for _ in range(3):
        await turn(world)
        world.clock.advance(2)
    assert held(world) == set()
    world.host.kube.put_object(QUEUES_PATH, {"metadata": {"name": "small"}, "spec": {"capability": {GPU: "8"}}})
    for _ in range(2):
        await turn(world)
        world.clock.advance(2)
    assert held(world) == {"first"}
