"""Service, adapter and scheduler are hit three times each while gangs start: none is lost, none starts twice, and the
service holds what Kubernetes' pods hold."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.e2e.hosts.faulty_way import SPOILS
from tests.e2e.kubernetes.faults.kubernetes_fault_world import HITS, WAYS, Fault, Note, World, until

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(180)]

WRONG = [spoil for spoil in SPOILS if spoil != "slow"]


async def _meets_outage(world: World) -> list[str]:
    """Gangs that come while the service does not answer: they are started without it, or held by their gates."""
    before = await asyncio.to_thread(world.adapter.metric, "placewise_adapter_undecided_total")
    names = await world.submit(2)
    if world.is_open:
        world.excused.update(names)
        await world.bound(names)
    await until(
        lambda: world.adapter.metric("placewise_adapter_undecided_total") > before,
        what="the adapter to meet the outage",
    )
    if not world.is_open:
        assert not any(world.watched.on_nodes(name) for name in names)
    return names


async def service_killed(world: World, hit: int) -> list[str]:
    names = await world.submit(2)
    if hit:
        await world.bound(names)
    elif world.is_open:
        world.excused.update(names)
    await asyncio.to_thread(world.placewise.kill)
    names += await _meets_outage(world)
    await asyncio.to_thread(world.placewise.launch)
    return names


async def service_hung(world: World, hit: int) -> list[str]:
    names = await world.submit(2)
    if hit:
        await world.bound(names)
    elif world.is_open:
        world.excused.update(names)
    world.placewise.send(signal.SIGSTOP)
    try:
        names += await _meets_outage(world)
    finally:
        world.placewise.send(signal.SIGCONT)
    return names


async def _spoil(world: World, spoil: str) -> list[str]:
    """After a failure the adapter does not ask for up to a second: gangs come until an answer is spoilt."""
    before = world.way.hits[spoil]
    world.way.fault = spoil
    names: list[str] = []
    while world.way.hits[spoil] == before:
        assert len(names) < 5, f"{spoil} is not hit"
        names += await world.submit(1)
        with suppress(TimeoutError):
            await until(lambda: world.way.hits[spoil] > before, limit_s=1.0)
    if world.is_open:
        world.excused.update(names)
    world.way.fault = ""
    return names


async def service_slow(world: World, hit: int) -> list[str]:
    return await _spoil(world, "slow")


async def service_wrong(world: World, hit: int) -> list[str]:
    names = []
    for spoil in WRONG:
        found = await _spoil(world, spoil)
        await world.bound(found)
        await world.agree()
        names += found
    return names


async def adapter_killed(world: World, hit: int) -> list[str]:
    """Between the first and the last write of a gang: of two bindings, nominations or gates one is done."""
    name = f"k{hit}"
    pods = world.gang(name, 4, 1)
    if world.mode == "extender":  # whose pods kube-scheduler binds: the adapter dies between two of them
        await world.watched.make_job(f"{world.cluster[-30:]}-{name}", world.prepared(pods))
        world.gangs[name] = pods
        await world.watched.create(pods[:2])
        await world.watched.until_bound([pod["metadata"]["name"] for pod in pods[:2]])
        await world.kill_adapter()
        world.excused.add(name)
    else:
        world.api.cut(_second_write(name, world.written_at(hit)), world.kill_adapter)
        await world.make(name, pods)
        await asyncio.wait_for(world.api.cuts.wait(), 20)
        world.api.open()
    names = await world.submit(2)
    if world.mode == "extender":
        world.excused.update(names)
        await world.bound(names)  # kube-scheduler goes on alone
    await world.start_adapter()
    if world.mode == "extender":
        await world.watched.create(pods[2:])
    return [name, *names]


def _second_write(name: str, ending: str) -> Callable[[str, str], bool]:
    """Whether a call is such a write of another pod of the gang than the first one."""
    seen: set[str] = set()

    def is_it(_: str, path: str) -> bool:
        pod, _, rest = path.partition("/pods/")[2].partition("/")
        if pod.startswith(f"{name}-") and rest == ending.strip("/"):
            seen.add(pod)
        return len(seen) > 1

    return is_it


async def adapter_hung(world: World, hit: int) -> list[str]:
    """It goes on by itself at one hit; at the others its kubelet ends it. kube-scheduler waits for it at every call."""
    names, late = await world.submit(2), f"h{hit}"
    if hit or world.mode == "extender":
        await world.bound(names)
    world.plane.signal_process(world.adapter.name, signal.SIGSTOP)
    await world.make(late, world.gang(late, 1, 1))
    if world.mode == "extender":
        world.excused.add(late)
        await world.bound([late])
    else:
        await asyncio.sleep(1.5)
        assert not world.watched.on_nodes(late)
    if hit == 1:
        world.plane.signal_process(world.adapter.name, signal.SIGCONT)
    else:
        await world.kill_adapter()
        await world.start_adapter()
    return [*names, late]


async def scheduler_killed(world: World, hit: int) -> list[str]:
    """Between decision and binding: it dies while the decision is on its way to the adapter."""
    name = world.scheduler_process
    killed: list[str] = []

    def kill() -> None:
        world.way.placed = None
        world.plane.kill_process(name)
        killed.append(name)

    world.way.placed = kill
    names = await world.submit(2)
    await until(lambda: bool(killed), what="a decision and the kill")
    assert not world.watched.on_nodes(names[0])
    if world.mode == "own":
        await world.start_adapter()
    else:
        world.start_scheduler()
    return names + await world.submit(1)


FAULTS: dict[str, Fault] = {
    "service killed": service_killed,
    "service hung": service_hung,
    "service slow": service_slow,
    f"service wrong ({', '.join(WRONG)})": service_wrong,
    "adapter killed between two writes": adapter_killed,
    "adapter hung": adapter_hung,
    "scheduler killed between decision and binding": scheduler_killed,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", WAYS)
async def test_nothing_is_lost_or_doubled(fault: str, mode: str, world: World, record_property: Note) -> None:
    for hit in range(HITS):
        names = await FAULTS[fault](world, hit)
        await world.after_hit(hit, names)
    await world.close(fault, record_property)
