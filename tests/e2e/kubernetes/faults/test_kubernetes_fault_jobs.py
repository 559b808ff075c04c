"""Jobs are deleted and shrunk three times each while they are held: nothing stays reserved, and the smaller
job runs as decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, NODES, WAYS, Fault, Note, World, until
from tests.e2e.kubernetes.kubernetes_scenario import GPUS_PER_NODE, JOBS, PODS, make_pod_group, names_of

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(180)]

GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
GANG = "placewise.dev/gang"
MERGE = "application/merge-patch+json"
LEFT = 2
"""Pods of a gang that has shrunk."""


# --- deleted ----------------------------------------------------------------------------------------------------------


async def _delete_waiting(world: World, name: str) -> None:
    """It waits for the whole cluster."""
    await world.make(name, world.gang(name, NODES, GPUS_PER_NODE))
    await world.until_waiting(name)
    await world.delete(name)


async def _delete_decided(world: World, name: str) -> None:
    """Its decision is on the way to the adapter."""
    done: list[str] = []

    def hit_it() -> None:
        world.way.placed = None
        for pod in names_of(world.gangs[name]):
            world.plane.request("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})
        done.append(name)

    pods = world.gang(name, 1, GPUS_PER_NODE)
    world.way.placed = hit_it
    world.given_up.add(name)
    await world.make(name, pods)
    await until(lambda: bool(done), what="a decision and the deletion")


async def _delete_reserved(world: World, name: str) -> None:
    """It has its place, and waits for the rest of its pods; kube-scheduler would bind the first ones, so that by the
    extender there is only the Job as yet."""
    pods, job = world.gang(name, 4, 4), f"{world.cluster[-30:]}-{name}"
    if world.mode == "extender":
        world.gangs[name] = world.prepared(pods)
        await world.watched.make_job(job, pods)
    else:
        world.gangs[name] = world.prepared(pods)
        await world.watched.create(pods[:2])
    await until(lambda: any(name in key for key in world.reserved()), what="a place")
    if world.mode == "extender":
        world.given_up.add(name)
        await asyncio.to_thread(world.plane.request, "DELETE", f"{JOBS}/{job}", {"propagationPolicy": "Background"})
    else:
        await world.delete(name, names_of(pods[:2]))
        world.given_up.add(name)


async def job_deleted(world: World, hit: int) -> list[str]:
    """While it waits, while its decision is on the way, and while it has a place and is not bound."""
    name = f"d{hit}"
    await (_delete_waiting, _delete_decided, _delete_reserved)[hit](world, name)
    await until(lambda: not world.reserved(), limit_s=15, what="the place to be free")
    assert not world.watched.on_nodes(name)
    return await world.submit(2)


# --- shrunk -----------------------------------------------------------------------------------------------------------


async def _patch(world: World, path: str, body: dict[str, Any]) -> None:
    await asyncio.to_thread(world.plane.request, "PATCH", path, body, MERGE)


def _without_size(pods: list[dict[str, Any]], **more: dict[str, str]) -> list[dict[str, Any]]:
    """Their group or Job says it."""
    for document in pods:
        del document["metadata"]["annotations"][GANG]
        for key, values in more.items():
            document["metadata"][key].update(values)
    return pods


async def _shrink_group(world: World, name: str) -> None:
    """Its PodGroup's minMember falls, and its controller deletes the pods beyond it."""
    await asyncio.to_thread(make_pod_group, world.plane, name, NODES)
    pods = world.gang(name, NODES, GPUS_PER_NODE)
    for document in pods:  # the group's name is the gang's
        del document["metadata"]["labels"]["placewise.dev/job"]
    await world.make(name, _without_size(pods, labels={"scheduling.x-k8s.io/pod-group": name}))
    await world.until_waiting(name)
    await _patch(world, f"{GROUPS}/{name}", {"spec": {"minMember": LEFT}})
    await world.delete(name, names_of(pods[LEFT:]))


async def _shrink_note(world: World, name: str) -> None:
    """The pods beyond the new size are deleted first; then the annotation of the others names it."""
    pods = world.gang(name, NODES, GPUS_PER_NODE)
    await world.make(name, pods)
    await world.until_waiting(name)
    await world.delete(name, names_of(pods[LEFT:]))
    for pod in names_of(pods[:LEFT]):
        await _patch(world, f"{PODS}/{pod}", {"metadata": {"annotations": {GANG: str(LEFT)}}})


async def _shrink_job(world: World, name: str) -> None:
    """Its Job's parallelism falls, and the Job's controller deletes the pods beyond it."""
    pods, job = _without_size(world.gang(name, NODES, GPUS_PER_NODE)), f"{world.cluster[-30:]}-{name}"
    await world.watched.make_job(job, world.prepared(pods))
    await world.make(name, pods)
    await world.until_waiting(name)
    await _patch(world, f"{JOBS}/{job}", {"spec": {"parallelism": LEFT}})
    await world.delete(name, names_of(pods[LEFT:]))


SHRINKS: tuple[Callable[[World, str], Awaitable[None]], ...] = (_shrink_group, _shrink_note, _shrink_job)


async def job_shrunk(world: World, hit: int) -> list[str]:
    """It waits for the whole cluster, and two of its pods are left."""
    name = f"s{hit}-{world.mode}"  # PodGroups outlive their test
    await SHRINKS[hit](world, name)
    world.gangs[name] = world.gangs[name][:LEFT]
    await world.bound([name])
    return [name, *await world.submit(2)]


FAULTS: dict[str, Fault] = {
    "job deleted while held": job_deleted,
    "job shrunk while held (PodGroup, annotation, Job)": job_shrunk,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", WAYS)
async def test_nothing_is_held_for_what_a_job_gave_up(
    fault: str, mode: str, world: World, record_property: Note
) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        await world.after_hit(hit, names)
    await world.close(fault, record_property)
