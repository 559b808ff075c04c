"""Shares of a divisible task reach its pods with the patch that starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS
from tests.contract.adapters.test_gates_conformance import GatedScheduler
from tests.contract.adapters.test_kubernetes_conformance import PODS, KubernetesScheduler, KubernetesWorld, small_world
from tests.e2e.kubernetes.kubernetes_cluster import gang

from placewise_client.errors import StateUnavailableError
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.kube import names
from placewise_kubernetes.shares import ShareAsker

OWN = GangRules().own_scheduler
WAYS: dict[str, Callable[[], KubernetesScheduler]] = {"own": lambda: KubernetesScheduler(OWN), "gates": GatedScheduler}
NOTES = {names.DIVISIBLE: "60", names.KIND: "render"}


async def make(world: KubernetesWorld, size: int, notes: dict[str, str]) -> None:
    world.host.native.ask_shares = ShareAsker(world.loop.client, SETTINGS)
    for document in gang("g", size, gpus=8, annotations=notes, scheduler=world.host._scheduler):
        world.host.kube.add_pod(document)
    await world.host.kube.seen()


def notes_of(world: KubernetesWorld, size: int) -> list[dict[str, str]]:
    return [world.host.kube.pods[f"{PODS}/g-{index}"]["metadata"]["annotations"] for index in range(size)]


@pytest.mark.parametrize("way", WAYS)
async def test_each_pod_has_its_share(way: str) -> None:
    async with small_world(WAYS[way]()) as world:
        await make(world, 2, NOTES)
        await world.step()
        (asked,) = world.asked("partition")
        assert (asked.task.parallel_scale, asked.task.kind, len(asked.units)) == (60.0, "render", 16)
        found = notes_of(world, 2)
        assert sum(float(notes[names.SHARE_SCALE]) for notes in found) == pytest.approx(60.0)
        assert sum(float(notes[names.SHARE_FRACTION]) for notes in found) == pytest.approx(1.0)
        assert found[0][names.SHARE_SCALE] != found[1][names.SHARE_SCALE]
        assert all(len(notes[names.SHARE_UNIT].split(",")) == 8 for notes in found)
        if way == "gates":
            opened: list[Any] = [body for _, body in world.host.kube.patches if "spec" in body]
            assert all(names.SHARE_SCALE in body["metadata"]["annotations"] for body in opened)


@pytest.mark.parametrize("way", WAYS)
async def test_without_an_answer_pods_start_without_shares(way: str) -> None:
    async with small_world(WAYS[way]()) as world:

        def partition(_: object) -> None:
            raise StateUnavailableError("away")

        world.oracle.partition = partition  # type: ignore[assignment,method-assign]
        await make(world, 2, NOTES)
        await world.step()
        assert all(world.host.kube.pods[f"{PODS}/g-{index}"]["spec"]["nodeName"] for index in range(2))
        assert all(names.SHARE_SCALE not in notes for notes in notes_of(world, 2))


async def test_other_gangs_are_not_split() -> None:
    async with small_world(WAYS["own"]()) as world:
        await make(world, 2, {})
        await world.step()
        assert world.asked("partition") == []


@pytest.mark.parametrize("way", WAYS)
async def test_a_kind_that_no_message_can_hold_ends_no_look(way: str) -> None:
    async with small_world(WAYS[way]()) as world:
        await make(world, 1, NOTES | {names.KIND: "\ud800"})
        await world.step()
        assert world.host.kube.pods[f"{PODS}/g-0"]["spec"]["nodeName"]
        assert names.SHARE_SCALE not in notes_of(world, 1)[0]
