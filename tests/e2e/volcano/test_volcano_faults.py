"""Each part is killed, or hangs, three times while gangs run: none is lost, no GPU is given twice, no event comes
twice, and the service counts the GPUs that Volcano's pods hold.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise
from tests.e2e.kubernetes.kubernetes_scenario import watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import VOLCANO, VolcanoCluster, key_of, pods_of
from tests.e2e.volcano.volcano_fixtures import volcano
from tests.e2e.volcano.volcano_gangs import Burst, gpus_by_host, gpus_by_service, mixed, read_starts, repeated

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["cluster", "placewise", "volcano"]
Note = Callable[[str, object], None]
GANGS, STAYING, HITS = 24, 3, 3
AWAY_S = 2.0
HANG_S = 5.0
# The liveness probe of the chart ends a hung adapter within 10 s.
PROBE_S = 9.0


@dataclass
class Faults:
    """What may happen to the parts of one cluster."""

    volcano: VolcanoCluster
    placewise: PlacewiseServer
    cluster: str

    def start_adapter(self) -> None:
        self.volcano.adapter.start(self.placewise.http_target, cluster=self.cluster)

    async def service_killed(self) -> None:
        self.placewise.kill()
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(self.placewise.launch)

    async def service_hung(self) -> None:
        self.placewise.send(signal.SIGSTOP)
        await asyncio.sleep(HANG_S)
        self.placewise.send(signal.SIGCONT)

    async def adapter_killed(self) -> None:
        self.volcano.adapter.kill()
        await asyncio.sleep(AWAY_S)
        self.start_adapter()

    async def adapter_hung(self) -> None:
        """As the kubelet does it."""
        self.volcano.plane.signal_process(self.volcano.adapter.name, signal.SIGSTOP)
        await asyncio.sleep(PROBE_S)
        self.volcano.adapter.kill()
        self.start_adapter()

    async def scheduler_killed(self) -> None:
        self.volcano.plane.kill_process(VOLCANO)
        await asyncio.sleep(AWAY_S)
        self.volcano.start_scheduler()


FAULTS: dict[str, Callable[[Faults], Awaitable[None]]] = {
    "service killed": Faults.service_killed,
    "service hung": Faults.service_hung,
    "adapter killed": Faults.adapter_killed,
    "adapter hung": Faults.adapter_hung,
    "scheduler killed": Faults.scheduler_killed,
}


@pytest.fixture
async def faults(volcano: VolcanoCluster, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[Faults]:
    faults = Faults(volcano, placewise, cluster)
    faults.start_adapter()
    await volcano.adapter.ready()
    volcano.start_scheduler()
    yield faults
    volcano.adapter.stop()
    volcano.plane.stop_process(VOLCANO)
    await asyncio.to_thread(volcano.clear)


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_lost_or_doubled(fault: str, faults: Faults, record_property: Note) -> None:
    jobs = mixed(GANGS)
    staying = list(jobs)[-STAYING:]
    async with watching(faults.volcano.plane) as watched:
        burst = Burst(faults.volcano, watched, jobs, pause_s=1.5, staying=staying)
        running = asyncio.create_task(burst.run())
        for hit in range(HITS):
            while len(burst.uids) < 3 + hit * GANGS // HITS:  # noqa: ASYNC110 nobody tells
                await asyncio.sleep(0.1)
            await FAULTS[fault](faults)
        await running
        ran = await burst.ran()
        difference = await _difference(faults)
        log = await read_starts(faults.placewise, faults.cluster, set(ran))
        twice = repeated(faults.placewise, faults.cluster, has_outage=fault.startswith("service"))
        lost = [name for name in jobs if any(pod not in watched.node for pod in pods_of(jobs[name]))]
    found = log.account(ran)
    words = f"{fault}, {HITS} times each: {len(lost)} lost, {len(log.doubled())} doubled; {found}"
    record_property("fault", words)
    print(f"\n{words}", *found.elsewhere, sep="\n")
    assert (difference, lost, log.doubled(), twice) == ({}, [], [], [])
    assert {key_of(name, burst.uids[name]) for name in jobs} <= log.starts.keys() | set(found.never_decided)


async def _difference(faults: Faults, limit_s: float = 30.0) -> dict[str, tuple[int, int]]:
    """(By the service, by the host) of the nodes whose GPUs they count differently, once they agree or time is up."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while True:
        by_service = await gpus_by_service(faults.placewise, faults.cluster)
        by_host = await asyncio.to_thread(gpus_by_host, faults.volcano)
        if by_service == by_host or asyncio.get_running_loop().time() > deadline_s:
            nodes = by_service.keys() | by_host.keys()
            pairs = {node: (by_service[node], by_host[node]) for node in nodes}
            return {node: pair for node, pair in pairs.items() if pair[0] != pair[1]}
        await asyncio.sleep(0.5)
