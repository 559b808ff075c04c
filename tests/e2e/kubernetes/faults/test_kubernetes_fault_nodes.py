"""Nodes are lost, drained and cordoned three times each while gangs start, run and wait: none is lost, none starts
twice, and gangs with a place on such a node get another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, NODES, WAYS, Fault, Note, World, until
from tests.e2e.kubernetes.faults.kubernetes_node_faults import bring_back, clear, cordon, delete, lose
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane
from tests.e2e.kubernetes.kubernetes_scenario import GPUS_PER_NODE

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(180)]

SEEN_S = 0.3
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(autouse=True)
def nodes_again(small_plane: ControlPlane) -> Iterator[None]:
    """A hit that fails leaves no node away for the next test."""
    yield
    for number in range(NODES):
        bring_back(small_plane, f"n{number:02d}")
        cordon(small_plane, f"n{number:02d}", is_cordoned=False)


async def _run_everywhere(world: World, hit: int) -> list[str]:
    """A gang with a pod on every node, and two others beside it."""
    spread = f"r{hit}"
    pods = world.gang(spread, NODES, 1)
    for document in pods:
        document["metadata"]["annotations"]["placewise.dev/max-per-node"] = "1"
    await world.make(spread, pods)
    await world.bound([spread])
    assert len(world.ran[spread]) == NODES
    names = await world.submit(2)
    await world.bound(names)
    return [spread, *names]


async def _decided_for(world: World, name: str, strike: Callable[[str], None]) -> str:
    """Strikes a node that was decided for this gang, which comes now, before the adapter has the decision."""
    struck: list[str] = []

    def hit_it() -> None:
        world.way.placed = None
        node = next(nodes[0] for job, nodes in world.reserved().items() if world.name_of(job) == name)
        strike(node)
        time.sleep(SEEN_S)  # the adapter's watch shows it first
        struck.append(node)

    world.way.placed = hit_it
    await world.make(name, world.gang(name, 2, 2))
    await until(lambda: bool(struck), what="a decision and the strike")
    return struck[0]


async def _end_struck(world: World, names: Sequence[str], node: str) -> list[str]:
    """Ends the gangs that ran on the node. The gangs that run on."""
    struck = [name for name in names if node in world.ran[name]]
    for name in struck:
        await world.fail(name, node)
    return [name for name in names if name not in struck]


async def _runs_elsewhere(world: World, name: str, node: str) -> None:
    await world.bound([name])
    assert node not in world.ran[name]
    await world.agree()


async def _waits(world: World, name: str, nodes: int) -> None:
    """A gang of so many whole nodes says why it waits."""
    await world.make(name, world.gang(name, nodes, GPUS_PER_NODE))
    await world.until_waiting(name)


async def _runs_on(world: World, name: str, node: str, gpus: int) -> None:
    """The node is used again."""
    pods = world.gang(name, 2, gpus)
    for document in pods:
        document["spec"]["nodeSelector"] = {HOSTNAME: node}
    await world.make(name, pods)
    await world.bound([name])
    assert set(world.ran[name]) == {node}


async def node_lost(world: World, hit: int) -> list[str]:
    """Its pods fail at the first hit, and are deleted at the others; at the second, the node is deleted, too."""
    running, late = await _run_everywhere(world, hit), f"l{hit}"
    node = await _decided_for(world, late, partial(lose if hit != 1 else delete, world.plane))
    await asyncio.to_thread(clear, world.plane, node, has_failed=hit == 0)
    running = await _end_struck(world, running, node)
    await _runs_elsewhere(world, late, node)
    await _waits(world, f"v{hit}", NODES - 1)
    await world.delete(f"v{hit}")
    if not world.is_open:
        await _holds_through(world, f"x{hit}", node)
    else:
        await asyncio.to_thread(bring_back, world.plane, node)
    await _runs_on(world, f"b{hit}", node, 4)
    return [*running, late, f"b{hit}"]


async def _holds_through(world: World, name: str, node: str) -> None:
    """A gang of the whole cluster, which no seven nodes can take, waits for its turn when the node comes back."""
    await world.make(name, world.gang(name, NODES, GPUS_PER_NODE))
    await until(lambda: any("no node can take it" in text for text in world.told(name)), limit_s=15)
    await asyncio.to_thread(bring_back, world.plane, node)
    await world.until_waiting(name)
    await world.delete(name)


async def node_drained(world: World, hit: int) -> list[str]:
    """It is cordoned and its pods are deleted while gangs run and wait; gangs that come then go elsewhere."""
    running = await _run_everywhere(world, hit)
    await _waits(world, f"v{hit}", NODES - 1)
    node = next(iter(world.ran[running[1]]))
    await asyncio.to_thread(cordon, world.plane, node)
    await asyncio.to_thread(clear, world.plane, node)
    running = await _end_struck(world, running, node)
    await world.agree()
    await world.delete(f"v{hit}")
    names = await world.submit(2)
    for name in names:
        await _runs_elsewhere(world, name, node)
    await asyncio.to_thread(cordon, world.plane, node, is_cordoned=False)
    await _runs_on(world, f"b{hit}", node, 4)
    return [*running, *names, f"b{hit}"]


async def node_cordoned(world: World, hit: int) -> list[str]:
    """Between decision and binding; the pods that run there run on."""
    running, late = await _run_everywhere(world, hit), f"l{hit}"
    node = await _decided_for(world, late, partial(cordon, world.plane))
    await _runs_elsewhere(world, late, node)
    await _waits(world, f"v{hit}", NODES - 1)
    await world.delete(f"v{hit}")
    await world.bound(running)
    await world.finish(running)
    await asyncio.to_thread(cordon, world.plane, node, is_cordoned=False)
    await _runs_on(world, f"b{hit}", node, 1)
    return [late, f"b{hit}"]


FAULTS: dict[str, Fault] = {
    "node lost": node_lost,
    "node drained": node_drained,
    "node cordoned between decision and binding": node_cordoned,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", WAYS)
async def test_no_gang_is_lost_with_a_node(fault: str, mode: str, world: World, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        await world.after_hit(hit, names)
    await world.close(fault, record_property)


@pytest.mark.parametrize("mode", ["gates"])
async def test_a_gang_that_gets_no_answer_in_time_when_a_node_is_back_says_so(mode: str, world: World) -> None:
    """Without gates it would be let go; nobody else says why a gated one waits."""
    await asyncio.to_thread(delete, world.plane, "n05")
    await asyncio.to_thread(bring_back, world.plane, "n05")
    world.way.fault = "slow"
    await world.make("late", world.gang("late", NODES, GPUS_PER_NODE))
    await until(lambda: any("undecided: DEADLINE_EXCEEDED" in text for text in world.told("late")), limit_s=20)
    world.way.fault = ""
    await world.until_waiting("late")
