"""The Kubernetes adapter at 1,000 and 10,000 nodes with 500 and 5,000 waiting gangs: processor time, calls and bytes.

The adapter's own code runs, in a process of its own, from the bytes that an API server sends over HTTP to the packed
messages for the service. The answers of the API server are made up (kubernetes_recorded.py), and the service lets all
wait. A node has 12 KB and one running pod, a gang has two pods, a pod 8 KB. Each queue has 25 gangs, so that every gang
is asked about at every pass. A cluster in use has some ten more pods on each node, which are not here.

Both ways in which the adapter starts pods itself are measured. `gates` does more: it reads the rules of each pod,
judges each node by each rule at every pass, and reports disks and huge pages, too. The figures of `own` are the
extender's as well: the two differ in who binds a gang that is admitted.

The first look ends when all gangs are asked about and all is reported. It is the least of two, passes and heartbeats
are the least of five, as other processes on the machine only add to them. Telling all users is one reading.
"""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from google.protobuf.message import Message
from tests.fakes.schedulers.kubernetes_recorded import BEATS, COUNTS, GANG_PODS, node_name, recorded_kube

from placewise.v1.cluster_pb2 import (
    Cluster,
    ReportJobEventsRequest,
    ReportJobEventsResponse,
    ReportNodesRequest,
    ReportNodesResponse,
)
from placewise.v1.decision_pb2 import INSUFFICIENT_GPU, Admission, AdmitOrWaitRequest, AdmitOrWaitResponse
from placewise_client import AsyncClient
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.process import settle_garbage_collector
from placewise_kubernetes.config import KubernetesConfig, parse_config
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.client import KubeAccess, KubeClient
from placewise_kubernetes.kube.nodes import NodeReader

pytestmark = [pytest.mark.e2e_heavy, pytest.mark.timeout(900)]
NODES, GANGS = (1_000, 10_000), (500, 5_000)
HEARTBEAT_S = 300.0  # a kubelet writes the status of an unchanged node so often
FIRST_LOOKS, ROUNDS = 2, 5
MOST_GROWTH = 1.3
FIGURES = (
    "first look {first look:.2f} s of processor and up to {memory:.0f} MB of memory, {pages:.0f} pages and "
    "{MB read:.1f} MB from the API server, {first calls:.0f} calls and {first MB sent:.1f} MB to the service; telling "
    "all users why they wait {telling:.2f} s and {requests to tell:.0f} requests; a pass {pass:.3f} s, "
    "{calls of a pass:.0f} calls and {MB sent by a pass:.2f} MB to the service; heartbeats of a minute "
    "{heartbeats:.3f} s and {MB of heartbeats:.1f} MB from the API server"
)
Note = Callable[[str, object], None]


class Waits:
    """A service that lets all wait, and takes every report. It counts calls and the bytes of their messages."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def _take(self, request: Message) -> None:
        self.counts["calls"] += 1
        self.counts["bytes"] += len(request.SerializeToString())

    async def admit_or_wait(self, request: AdmitOrWaitRequest, **_: Any) -> AdmitOrWaitResponse:
        self._take(request)
        self.counts["asked"] += len(request.jobs)
        response = AdmitOrWaitResponse()
        for job in request.jobs:
            admission = response.admissions.add(job_id=job.id, verdict=Admission.WAIT)
            admission.blockers.add(reason=INSUFFICIENT_GPU)
        return response

    async def get_cluster(self, request: Message, **_: Any) -> Cluster:
        self._take(request)
        return Cluster()

    async def report_nodes(self, request: ReportNodesRequest, **_: Any) -> ReportNodesResponse:
        self._take(request)
        return ReportNodesResponse()

    async def report_job_events(self, request: ReportJobEventsRequest, **_: Any) -> ReportJobEventsResponse:
        self._take(request)
        return ReportJobEventsResponse()


class Adapter:
    """One adapter, put together as `app.running` does; its clock moves only here."""

    def __init__(self, config: KubernetesConfig, kube: KubeClient) -> None:
        self.kube, self.service, self.now_s = kube, Waits(), 1_800_000_000.0
        reader = NodeReader(config.rules.gpu_resources, config.tolerated_taints, config.gates.is_enabled)
        self.host = KubernetesHost(kube, config.rules, reader, gates=config.gates)
        client = cast(AsyncClient, self.service)
        self.loop = AdapterLoop(self.host, client, config.settings, clock=lambda: self.now_s, now=lambda: self.now_s)
        self._watching: asyncio.Task[None] | None = None

    async def first_look_s(self) -> float:
        """Processor time until all is listed, asked about and reported."""
        before_s = time.process_time()
        self._watching = asyncio.create_task(self.host.run())
        while not self.host.is_synced():  # noqa: ASYNC110 - the watches tell nobody
            await asyncio.sleep(0.01)
        await self.loop.run_pass(full=True)
        return time.process_time() - before_s

    async def telling_s(self) -> float:
        before_s = time.process_time()
        await self.host.writer.drain()
        return time.process_time() - before_s

    async def beats_s(self, count: int) -> float:
        """Processor time of reading so many nodes that have not changed, as the watch shows them."""
        last = node_name(count - 1)
        before, before_s = self.host.nodes.nodes[last], time.process_time()
        await self.kube.create(BEATS, {"count": count})
        while self.host.nodes.nodes[last] is before:  # noqa: ASYNC110 - no change, so nobody is told
            await asyncio.sleep(0.001)
        return time.process_time() - before_s

    async def pass_s(self) -> float:
        """Processor time of one complete pass."""
        self.now_s += self.loop.settings.resync_s
        before_s = time.process_time()
        await self.loop.run_pass(full=True)
        return time.process_time() - before_s


async def _stop_others() -> None:
    """Ends an adapter's watches and its open writes."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    gc.collect()


async def _measured(way: str, nodes: int, gangs: int, port: int) -> dict[str, float]:
    settings = {"decide_budget_s": 60.0}  # the machine may be busy
    config = parse_config({"cluster": "scale", "gates": {"is_enabled": way == "gates"}, "adapter": settings})
    beating = round(nodes * config.settings.resync_s / HEARTBEAT_S)
    async with KubeClient(KubeAccess(f"http://127.0.0.1:{port}")) as kube:
        firsts_s, peaks_mb = [], []
        for _ in range(FIRST_LOOKS):
            await _stop_others()
            await kube.get(COUNTS)
            before_mb = _memory_mb("VmRSS")
            adapter = Adapter(config, kube)
            firsts_s.append(await adapter.first_look_s())
            peaks_mb.append(_memory_mb("VmHWM") - before_mb)
        listed, first = await kube.get(COUNTS), adapter.service.counts.copy()
        assert len(adapter.loop.book.waiting()) == first["asked"] == gangs
        telling_s = await adapter.telling_s()
        told = await kube.get(COUNTS)
        adapter.service.counts.clear()
        rounds_s = [(await adapter.beats_s(beating), await adapter.pass_s()) for _ in range(ROUNDS)]
        beats, later = await kube.get(COUNTS), adapter.service.counts
        assert later["asked"] == ROUNDS * gangs
        assert beats.keys() == {"events", "event_bytes"}, "a pass asks the API server nothing"
        await _stop_others()
    return {
        "first look": min(firsts_s),
        "memory": peaks_mb[0],  # later ones use again what the first has left
        "pages": listed["lists"],
        "MB read": listed["list_bytes"] / 1e6,
        "first calls": first["calls"],
        "first MB sent": first["bytes"] / 1e6,
        "telling": telling_s,
        "requests to tell": listed.get("writes", 0) + told["writes"],
        "pass": min(pass_s for _, pass_s in rounds_s),
        "calls of a pass": later["calls"] / ROUNDS,
        "MB sent by a pass": later["bytes"] / ROUNDS / 1e6,
        "heartbeats": min(beats_s for beats_s, _ in rounds_s),
        "MB of heartbeats": beats["event_bytes"] / ROUNDS / 1e6,
    }


def _memory_mb(field: str) -> float:
    """Of this process: VmRSS is its memory now, VmHWM the most that it had."""
    words = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(words[field].split()[0]) / 1e3


def measure(way: str, nodes: int, gangs: int, port: int) -> dict[str, float]:
    """Figures of one size. It runs in a process of its own, which is set up as the adapter's."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # what `_stop_others` ends before it begins
    settle_garbage_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measured(way, nodes, gangs, port))


@pytest.mark.parametrize("way", ["gates", "own"])
def test_the_cost_grows_linearly(way: str, record_property: Note) -> None:
    def note(line: str) -> None:
        record_property("scale", line)
        print(f"\n{line}", end="")

    found = {}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for nodes in NODES:
            for gangs in GANGS:
                with recorded_kube(nodes, gangs, is_gated=way == "gates") as port:
                    cell = found[nodes, gangs] = processes.submit(measure, way, nodes, gangs, port).result()
                note(f"{way}, {nodes:,} nodes, {gangs:,} waiting gangs: {FIGURES.format(**cell)}")
                assert cell["requests to tell"] == 2 * GANG_PODS * gangs
    most = {}
    for name in found[NODES[0], GANGS[0]]:
        cost = {size: cell[name] for size, cell in found.items()}
        growths = [cost[NODES[1], gangs] / cost[NODES[0], gangs] / (NODES[1] / NODES[0]) for gangs in GANGS]
        growths += [cost[nodes, GANGS[1]] / cost[nodes, GANGS[0]] / (GANGS[1] / GANGS[0]) for nodes in NODES]
        most[name] = max(growths)
    words = ", ".join(f"{name} {growth:.2f}" for name, growth in most.items())
    note(f"{way}, ten times the nodes or gangs cost at most so many times ten times as much: {words}")
    assert max(most.values()) <= MOST_GROWTH
