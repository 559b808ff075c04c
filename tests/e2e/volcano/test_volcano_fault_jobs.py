"""Jobs are deleted and shrunk three times each while Volcano and the service hold them: nothing stays reserved, and a
job that has shrunk runs as decided by its new size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, NODES, Note, until
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.kubernetes.kubernetes_scenario import GPUS_PER_NODE, names_of
from tests.e2e.volcano.volcano_cluster import GROUPS
from tests.e2e.volcano.volcano_fault_world import MERGE, VolcanoWorld, group_spec, world
from tests.e2e.volcano.volcano_fixtures import volcano

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["cluster", "placewise", "volcano", "world"]
LEFT = 2
"""Pods of a gang that has shrunk."""
Hit = Callable[[VolcanoWorld, str], Awaitable[list[str]]]
"""The gangs that are to be bound after it."""


# --- deleted ----------------------------------------------------------------------------------------------------------


async def _delete_waiting(world: VolcanoWorld, name: str) -> list[str]:
    """It waits for the whole cluster."""
    gang = await world.make_vcjob(name, {"worker": (NODES, GPUS_PER_NODE)})
    await world.until_waiting(gang)
    await world.delete(gang)
    return []


async def _delete_as_it_is_placed(world: VolcanoWorld, name: str) -> list[str]:
    """Its decision is on the way to the adapter."""
    done: list[str] = []

    def hit_it() -> None:
        world.way.placed = None
        (gang,) = (gang for gang, (job, _) in world.vcjobs.items() if job == name)
        world.give_up(gang)
        done.append(gang)

    world.way.placed = hit_it
    await world.make_vcjob(name, {"worker": (1, GPUS_PER_NODE)})
    await until(lambda: bool(done), what="a decision and the deletion")
    return []


async def _delete_reserved(world: VolcanoWorld, name: str) -> list[str]:
    """It has its place, and waits for its pods."""
    least = {"nvidia.com/gpu": "16", "cpu": "4", "memory": "4Gi"}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": 4, "queue": "default", "minResources": least},
    }
    await asyncio.to_thread(world.plane.request, "POST", GROUPS, group)
    await until(lambda: any(name in key for key in world.reserved()), what="a place")
    await asyncio.to_thread(world.plane.request, "DELETE", f"{GROUPS}/{name}")
    return []


# --- shrunk -----------------------------------------------------------------------------------------------------------


async def _shrink_vcjob(world: VolcanoWorld, name: str) -> list[str]:
    gang = await world.make_vcjob(name, {"worker": (NODES, GPUS_PER_NODE)})
    await world.until_waiting(gang)
    await world.scale(gang, {"worker": (LEFT, GPUS_PER_NODE)})
    return [gang]


async def _shrink_roles(world: VolcanoWorld, name: str) -> list[str]:
    """Both of its roles."""
    gang = await world.make_vcjob(name, {"head": (2, 4), "worker": (NODES - 1, GPUS_PER_NODE)})
    await world.until_waiting(gang)
    await world.scale(gang, {"head": (1, 4), "worker": (LEFT, GPUS_PER_NODE)})
    return [gang]


async def _shrink_group(world: VolcanoWorld, name: str) -> list[str]:
    """The controller of another operator deletes pods, and its PodGroup needs no more than are left."""
    await world.make(name, world.gang(name, NODES, GPUS_PER_NODE))
    await world.until_waiting(name)
    await world.delete(name, names_of(world.gangs[name][LEFT:]))
    world.gangs[name] = world.gangs[name][:LEFT]
    change = {"spec": group_spec(world.gangs[name])}
    await asyncio.to_thread(world.plane.request, "PATCH", f"{GROUPS}/{name}", change, MERGE)
    return [name]


FAULTS: dict[str, tuple[Hit, ...]] = {
    "job deleted while held": (_delete_waiting, _delete_as_it_is_placed, _delete_reserved),
    "job shrunk while held (vcjob, its roles, PodGroup)": (_shrink_vcjob, _shrink_roles, _shrink_group),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_held_for_what_a_vcjob_gave_up(fault: str, world: VolcanoWorld, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault][hit](world, f"{'ds'['shrunk' in fault]}{hit}")
        if not names:
            await until(lambda: not world.reserved(), limit_s=15, what="the place to be free")
        await world.after_hit(hit, [*names, *await world.submit(2)])
    await world.close(fault, record_property)
