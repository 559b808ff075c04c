"""The node that a pod of Volcano's names: by the last decision, through restarts, and no longer than the decision."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.contract.adapters.test_kubernetes_conformance import KubernetesWorld
from tests.contract.adapters.test_volcano_groups import KEY, ask, make_pods, put_group, put_job, task, world
from tests.contract.adapters.volcano.test_volcano_writes import turn

from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeUnreachableError

__all__ = ["world"]
START_TIMEOUT_S = 30.0


def named(world: KubernetesWorld) -> list[str]:
    """The nodes that the statuses of the gang's pods name, in the order of the pods' names."""
    pods = world.host.kube.pods
    of_gang = [path for path in sorted(pods) if "/train-" in path]
    return [pods[path].get("status", {}).get("nominatedNodeName", "") for path in of_gang]


def notes(world: KubernetesWorld) -> list[dict[str, str]]:
    """Those annotations of the pods that come with a node's name."""
    kept = (names.DECISION, names.GPU_INDICES)
    found = [document["metadata"].get("annotations", {}) for document in world.host.kube.pods.values()]
    return [{key: value for key, value in all_notes.items() if key in kept} for all_notes in found]


async def settled(world: KubernetesWorld) -> None:
    await world.host.native.writer.drain()
    await world.host.kube.seen()


async def decided(world: KubernetesWorld, pods: int = 2) -> None:
    """A gang that is decided, with its pods."""
    put_job(world, task("worker", pods, 8))
    await ask(world)
    make_pods(world, "worker", pods, 8)
    await turn(world)
    await settled(world)
    assert sorted(named(world)) == world.decided_nodes(KEY)


async def restart(world: KubernetesWorld) -> None:
    world.start_adapter()
    await world.loop.run_pass(full=True)
    await settled(world)


# --- order ----------------------------------------------------------------------------------------------------------


async def test_a_name_that_is_taken_back_while_it_is_written_is_gone_in_the_end(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write is slow: sent side by side, it would come last."""
    patch, may_go = world.host.kube.patch, asyncio.Event()

    async def slow_first(path: str, body: dict[str, Any], *rest: Any) -> Any:
        if body["status"]["nominatedNodeName"]:
            await may_go.wait()
        return await patch(path, body, *rest)

    put_job(world, task("worker", 1, 8))
    await ask(world)
    monkeypatch.setattr(world.host.kube, "patch", slow_first)
    make_pods(world, "worker", 1, 8)
    await world.host.kube.seen()
    world.oracle.waits.add("*")
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    await asyncio.sleep(0)
    may_go.set()
    await settled(world)
    assert named(world) == [""]


async def test_of_names_that_wait_for_an_earlier_one_the_last_is_written(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await decided(world, 1)
    native, writes = world.host.native, list[str]()
    patch = world.host.kube.patch

    async def noted(path: str, body: dict[str, Any], *rest: Any) -> Any:
        writes.append(body["status"]["nominatedNodeName"])
        await asyncio.sleep(0.01)
        return await patch(path, body, *rest)

    monkeypatch.setattr(world.host.kube, "patch", noted)
    (pod,) = native.pods.book.gangs[KEY].pods.values()
    for node in ("n1", "n2", "n3", "n4"):
        native.writer.nominate(pod, node, lambda: None)
        await asyncio.sleep(0)
    await settled(world)
    assert writes == ["n1", "n4"]
    assert named(world) == ["n4"]


async def test_a_write_that_fails_while_the_next_waits_is_not_repeated(
    world: KubernetesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await decided(world, 1)
    failed, patch = list[str](), world.host.kube.patch

    async def first_fails(path: str, body: dict[str, Any], *rest: Any) -> Any:
        await asyncio.sleep(0)
        if body["status"]["nominatedNodeName"] == "n1":
            raise KubeUnreachableError("the API is away")
        return await patch(path, body, *rest)

    monkeypatch.setattr(world.host.kube, "patch", first_fails)
    (pod,) = world.host.native.pods.book.gangs[KEY].pods.values()
    for node in ("n1", "n2"):
        world.host.native.writer.nominate(pod, node, partial(failed.append, node))
        await asyncio.sleep(0)
    await settled(world)
    assert (failed, named(world)) == ([], ["n2"])


# --- restart --------------------------------------------------------------------------------------------------------


async def test_a_name_of_an_earlier_run_is_taken_away_if_the_gang_waits_now(world: KubernetesWorld) -> None:
    await decided(world)
    world.oracle.held.clear()
    world.oracle.waits.add("*")
    await restart(world)
    assert named(world) == ["", ""]
    assert notes(world) == [{}, {}]


async def test_a_name_of_an_earlier_run_gives_way_to_the_next_decision(world: KubernetesWorld) -> None:
    await decided(world)
    before = named(world)
    world.oracle.held.clear()
    for node in before:
        await world.host.occupy(node, 8)
    await restart(world)
    assert sorted(named(world)) == world.decided_nodes(KEY)
    assert not set(named(world)) & set(before)


async def test_pods_that_are_volcanos_to_place_name_no_node_after_a_restart(world: KubernetesWorld) -> None:
    """The adapter was killed between the two writes: the pods are released, and still name their nodes."""
    await decided(world)
    for document in world.host.kube.pods.values():
        document["metadata"]["annotations"][names.RELEASED] = "true"
    await restart(world)
    assert named(world) == ["", ""]


async def test_the_same_decision_is_not_written_again_after_a_restart(world: KubernetesWorld) -> None:
    await decided(world)
    written = len(world.host.kube.patches)
    before = named(world)
    await restart(world)
    assert (named(world), len(world.host.kube.patches)) == (before, written)


async def test_a_node_that_volcano_named_itself_is_left(world: KubernetesWorld) -> None:
    world.oracle.waits.add("*")
    put_group(world, {"minMember": 1})
    make_pods(world, "worker", 1, 8, owner=None)
    (document,) = world.host.kube.pods.values()
    document["status"]["nominatedNodeName"] = "n1"
    await restart(world)
    assert named(world) == ["n1"]


# --- changes of the group alone -------------------------------------------------------------------------------------


async def test_a_decision_that_a_change_of_the_group_drops_names_no_node_any_more(world: KubernetesWorld) -> None:
    await decided(world)
    world.oracle.waits.add("*")
    put_job(world, task("worker", 3, 8))
    await world.host.kube.seen()
    await settled(world)
    assert named(world) == ["", ""]


async def test_a_pod_that_is_no_longer_of_the_gang_names_its_node_no_more(world: KubernetesWorld) -> None:
    await decided(world)
    world.oracle.waits.add("*")
    put_job(world, task("worker", 1, 8))
    await turn(world)
    await turn(world)
    await settled(world)
    assert named(world) == ["", ""]


# --- annotations beside a name ---------------------------------------------------------------------------------------


async def test_the_decision_comes_with_the_name_and_goes_with_it(world: KubernetesWorld) -> None:
    await decided(world)
    held = world.oracle.held[KEY]
    indices = {task.node: ",".join(map(str, task.gpu_indices)) for task in held.assignments}
    wanted = [{names.DECISION: held.decision_id} | _indices(indices[node]) for node in named(world)]
    assert notes(world) == wanted
    world.oracle.waits.add("*")
    world.clock.advance(START_TIMEOUT_S + 1)
    await turn(world)
    await settled(world)
    assert notes(world) == [{}, {}]


def _indices(text: str) -> dict[str, str]:
    return {names.GPU_INDICES: text} if text else {}
