"""vcjobs whose nodes are lost, drained and cordoned, and which are deleted and shrunk at three moments of their start:
Volcano's own controllers make and make again the pods, none is lost, and nothing stays reserved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, NODES, Note, until
from tests.e2e.kubernetes.faults.test_kubernetes_fault_nodes import FAULTS as NODE_FAULTS
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.kubernetes.kubernetes_scenario import GPUS_PER_NODE
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import VolcanoCluster
from tests.e2e.volcano.volcano_fault_world import at_work, nodes_again
from tests.e2e.volcano.volcano_fixtures import volcano
from tests.e2e.volcano.volcano_vcjob_world import VcjobWorld

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(400)]

__all__ = ["cluster", "nodes_again", "placewise", "volcano"]
SIZE, LEFT = 4, 2
"""Pods of a gang that can start, and of one that has shrunk."""
Hit = Callable[[], None]


@pytest.fixture
async def world(volcano: VolcanoCluster, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[VcjobWorld]:
    async with at_work(VcjobWorld, volcano, placewise, cluster) as made:
        yield made


async def _while_it_waits(world: VcjobWorld, name: str, hit: Hit) -> None:
    """For the whole cluster."""
    await world.make(name, world.gang(name, NODES, GPUS_PER_NODE))
    await world.until_waiting(name)
    await asyncio.to_thread(hit)


async def _before_its_decision_is_here(world: VcjobWorld, name: str, hit: Hit) -> None:
    await world.on_decision(name, SIZE, SIZE, hit)


async def _before_it_is_bound(world: VcjobWorld, name: str, hit: Hit) -> None:
    await world.on_hold(name, SIZE, SIZE, hit)


MOMENTS: tuple[Callable[[VcjobWorld, str, Hit], Awaitable[None]], ...] = (
    _while_it_waits,
    _before_its_decision_is_here,
    _before_it_is_bound,
)


async def job_deleted(world: VcjobWorld, hit: int) -> list[str]:
    name = f"d{hit}"
    await MOMENTS[hit](world, name, partial(world.give_up, name))
    await until(lambda: not world.reserved(), limit_s=15, what="the place to be free")
    assert not world.on_nodes(name)
    return await world.submit(2)


async def job_shrunk(world: VcjobWorld, hit: int) -> list[str]:
    name = f"s{hit}"
    await MOMENTS[hit](world, name, partial(world.shrink, name, LEFT))
    await world.bound([name])
    assert world.ran[name].total() == LEFT
    return [name, *await world.submit(2)]


FAULTS = {**NODE_FAULTS, "vcjob deleted while held": job_deleted, "vcjob shrunk while held": job_shrunk}


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_vcjob_is_lost_or_leaves_a_place_held(fault: str, world: VcjobWorld, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        await world.after_hit(hit, names)
    await world.close(f"vcjobs: {fault}", record_property)
