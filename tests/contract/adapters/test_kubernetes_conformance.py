"""The adapters' conformance suite on Kubernetes: as the scheduler's extender, and as a scheduler of our own name."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import pytest
from tests.contract.adapters.adapter_conformance import AdapterConformance
from tests.contract.adapters.suite.adapter_world import SETTINGS, Clock, Server, World
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang, pod
from tests.fakes.schedulers.kubernetes_api import FakeKube
from tests.fakes.servers.oracle import OracleServer, SmallService

from placewise.v1.cluster_pb2 import Assignment, Node
from placewise.v1.job_pb2 import Resources, TaskGroup
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.native import AdapterSettings, Applied, End, NativeJob, Placement, Stage
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.gang.book import UID_LENGTH
from placewise_kubernetes.gang.gates.opening import GateRules
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeClient
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.running import RunningAsker

RULES = GangRules()
PODS = "/api/v1/namespaces/default/pods"
PHASES = {End.FINISHED: "Succeeded", End.FAILED: "Failed"}
# Cases about changes that an adapter makes to the host.
CHANGES = (
    "test_a_change_that_the_host_refuses_is_decided_again",
    "test_a_change_whose_answer_is_lost_is_made_once",
)
BINDS = "to apply is to bind: after that nothing can start the gang elsewhere, or be taken back"


class RecordedHost(KubernetesHost):
    """Notes its changes."""

    changes: list[tuple[str, str]]

    async def apply(self, job: NativeJob, placement: Placement) -> Applied:
        return self._noted("apply", job, await super().apply(job, placement))

    async def release(self, job: NativeJob) -> Applied:
        return self._noted("release", job, await super().release(job))

    async def withdraw(self, job: NativeJob) -> Applied:
        return self._noted("withdraw", job, await super().withdraw(job))

    def _noted(self, verb: str, job: NativeJob, result: Applied) -> Applied:
        if result is Applied.DONE:
            self.changes.append((verb, job.key))
        return result


class KubernetesScheduler:
    """A cluster whose scheduler takes the first node that fits, after asking the extender as kube-scheduler does."""

    host_type: ClassVar[type[RecordedHost]] = RecordedHost
    gates: ClassVar = GateRules()

    def __init__(self, scheduler: str) -> None:
        self.changes: list[tuple[str, str]] = []
        self.user = "default"  # the namespace
        self.kube = FakeKube()
        self.rules = RULES
        self.native: RecordedHost
        self._scheduler = scheduler
        self._paths: dict[str, list[str]] = {}
        self._number = itertools.count(1)
        self._watching: asyncio.Task[None] | None = None

    def restart(self) -> None:
        """A new life of the native layer."""
        self.stop()
        reader = NodeReader(self.rules.gpu_resources, is_whole=self.rules.is_whole)
        self.native = self.host_type(cast(KubeClient, self.kube), self.rules, reader, gates=self.gates)
        self.native.changes = self.changes
        self._watching = asyncio.ensure_future(self.native.run())

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def add_nodes(self, count: int, gpus: int) -> None:
        for index in range(1, count + 1):
            self.kube.add_node(fake_node(f"n{index}", gpus))
        await self.kube.seen()

    async def submit(self, tasks: int, gpus: int, *, is_managed: bool = True) -> str:
        name = f"g{next(self._number)}"
        notes = {names.GANG: str(tasks), names.MAX_PER_NODE: "1"} if is_managed else {}
        labels = {names.JOB: name} if is_managed else {}
        scheduler = self._scheduler if is_managed else "default-scheduler"
        made = [
            self.kube.add_pod(pod(f"{name}-{index}", gpus=gpus, labels=labels, annotations=notes, scheduler=scheduler))
            for index in range(tasks)
        ]
        return await self._made(name if is_managed else f"{name}-0", made)

    async def _made(self, name: str, pods: list[dict[str, Any]]) -> str:
        await self.kube.seen()
        key = f"default/{name}/{pods[0]['metadata']['uid'][:UID_LENGTH]}"
        self._paths[key] = [f"{PODS}/{document['metadata']['name']}" for document in pods]
        return key

    async def occupy(self, node: str, gpus: int) -> None:
        name = f"taken{next(self._number)}"
        made = self.kube.add_pod(pod(name, gpus=gpus))
        self.kube.bind(f"{PODS}/{name}", node, made["metadata"])
        await self.kube.seen()

    async def run_scheduler(self) -> None:
        await self.kube.seen()
        for path, document in list(self.kube.pods.items()):
            spec = document["spec"]
            is_pending = document["status"]["phase"] == "Pending" and not spec.get("nodeName")
            if is_pending and spec["schedulerName"] == "default-scheduler" and not spec.get("schedulingGates"):
                nodes = await self._offered(document)
                if nodes:
                    self.kube.bind(path, nodes[0], {})
        await self.kube.seen()

    async def _offered(self, document: dict[str, Any]) -> list[str]:
        """Nodes for a pod, the best one first."""
        extender = Extender(self.native, fail_open_s=0.0, is_open_failing=False)
        answer = await extender.filter({"Pod": document, "NodeNames": self._feasible(document)})
        return cast(list[str], answer["NodeNames"])

    async def end(self, key: str, end: End) -> None:
        for path in self._paths[key]:
            if end is End.CANCELLED:
                self.kube.remove_pod(path)
            else:
                self.kube.set_phase(path, PHASES[end])
        await self.kube.seen()

    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        for path, node in zip(self._paths[key], nodes, strict=True):
            self.kube.bind(path, node, {})
        await self.kube.seen()

    async def shrink(self, key: str, tasks: int) -> None:
        for path in self._paths[key][tasks:]:
            self.kube.remove_pod(path)
        self._paths[key] = self._paths[key][:tasks]
        for path in self._paths[key]:
            await self.kube.patch(path, {"metadata": {"annotations": {names.GANG: str(tasks)}}})
        await self.kube.seen()

    async def requeue(self, key: str) -> str:
        """The gang is evicted, and its controller makes its pods again."""
        documents = [copy.deepcopy(self.kube.pods[path]) for path in self._paths[key]]
        await self.end(key, End.CANCELLED)
        for document in documents:
            del document["metadata"]["uid"], document["spec"]["nodeName"], document["status"]
            document["spec"].pop("affinity", None)
            for note in (names.NODE, names.DECISION, names.GPU_INDICES):
                document["metadata"]["annotations"].pop(note, None)
        return await self._made(key.split("/")[1], [self.kube.add_pod(document) for document in documents])

    async def forget(self, key: str) -> None:
        await self.set_reachable(False)
        for path in self._paths[key]:
            self.kube.remove_pod(path)
        await self.set_reachable(True)

    async def show_unreadable(self) -> None:
        """A pod that runs, and a gang that waits."""
        notes = {names.MODEL: "\ud800"}  # half a character, which no message can hold
        alone = self.kube.add_pod(pod("alone", annotations=notes))
        self.kube.bind(f"{PODS}/alone", "n1", alone["metadata"])
        for document in gang("odd", 2, gpus=1, annotations=notes, scheduler=self._scheduler):
            self.kube.add_pod(document)
        await self.kube.seen()

    def refuse_change(self) -> None:
        self.kube.refusals += 1

    def lose_answer(self) -> None:
        self.kube.answers_to_lose += 1

    async def set_node_state(self, node: str, state: Node.State) -> None:
        self.kube.change_node(node, unschedulable=state == Node.State.DRAINING)
        await self.kube.seen()

    async def lose_node(self, node: str) -> None:
        self.kube.remove_node(node)
        await self.kube.seen()

    async def set_reachable(self, is_reachable: bool) -> None:
        if not is_reachable:
            self.kube.lose_connections()
            while self.native.is_current():  # noqa: ASYNC110 - the watches notice it in their own time
                await asyncio.sleep(0)
            return
        self.kube.is_reachable = True
        while not self.native.is_current():  # noqa: ASYNC110 the watch connects again after a pause of its own
            await asyncio.sleep(0.01)

    async def where(self, key: str) -> list[str]:
        documents = [self.kube.pods[path] for path in self._paths[key] if path in self.kube.pods]
        running = [document for document in documents if document["status"]["phase"] == "Pending"]
        return sorted(document["spec"]["nodeName"] for document in running if document["spec"].get("nodeName"))

    async def stage(self, key: str) -> Stage:
        await self.kube.seen()
        stage = self.native.pods.book.gangs[key].reported_stage()
        assert stage is not None
        return stage

    def _feasible(self, document: dict[str, Any]) -> list[str]:
        """What kube-scheduler's own filters leave over: nodes that take pods and have the GPUs."""
        return [name for name, gpus in self.free().items() if gpus >= gpus_of(document)]

    def free(self) -> dict[str, int]:
        """GPUs by node that takes pods."""
        free = {name: 8 for name, node in self.kube.nodes.items() if not node.get("spec", {}).get("unschedulable")}
        for other in self.kube.pods.values():
            node = other["spec"].get("nodeName")
            if node in free and other["status"]["phase"] in ("Pending", "Running"):
                free[node] -= gpus_of(other)
        return free


def gpus_of(document: dict[str, Any]) -> int:
    return int(document["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))


class KubernetesWorld(World):
    """A new life of the adapter is a new process: its native layer forgets, too."""

    host: KubernetesScheduler

    def start_adapter(self, settings: AdapterSettings = SETTINGS) -> AdapterLoop:
        self.host.restart()
        loop = super().start_adapter(settings)
        self.host.native.pods.reported.ask = RunningAsker(loop.client, settings)
        return loop


@asynccontextmanager
async def small_world(host: KubernetesScheduler) -> AsyncIterator[KubernetesWorld]:
    """Four nodes of 8 GPUs that the adapter has looked at, and a small service."""
    clock = Clock()
    server = await OracleServer(SmallService(now=clock)).start()
    world = KubernetesWorld(host, server, clock)
    await host.add_nodes(4, 8)
    await world.loop.run_pass(full=True)
    yield world
    for client in world.clients:
        await client.close()
    await server.stop()
    host.stop()
    await host.native.writer.drain()


class KubernetesConformance(AdapterConformance):
    scheduler: str

    @pytest.fixture
    async def host(self) -> AsyncIterator[KubernetesScheduler]:
        host = KubernetesScheduler(self.scheduler)
        yield host
        host.stop()
        await host.native.writer.drain()

    @pytest.fixture
    async def world(self, host: KubernetesScheduler, server: Server, clock: Clock) -> AsyncIterator[KubernetesWorld]:
        world = KubernetesWorld(host, server, clock)
        await host.add_nodes(4, 8)
        yield world
        for client in world.clients:
            await client.close()

    async def test_what_cannot_be_read_holds_up_nothing_else(  # type: ignore[override]
        self, world: KubernetesWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        await super().test_what_cannot_be_read_holds_up_nothing_else(world)
        await world.step()
        kube = world.host.kube
        odd = [kube.pods[f"{PODS}/odd-{index}"] for index in range(2)]
        assert all(document["spec"].get("nodeName") for document in odd)  # left to its scheduler, which has placed it
        printed = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
        assert len(printed) == len(set(printed)) == 2


class TestExtender(KubernetesConformance):
    scheduler = "default-scheduler"
    not_here: ClassVar = dict.fromkeys(CHANGES, "the adapter changes nothing here: kube-scheduler binds")


class TestOwnScheduler(KubernetesConformance):
    """Here to apply is to bind: there is no time between the two."""

    scheduler = RULES.own_scheduler
    not_here: ClassVar = {
        "test_a_gang_that_the_host_starts_elsewhere_is_reported_where_it_runs": BINDS,
        "test_a_start_elsewhere_says_so": BINDS,
        "test_a_placement_that_is_taken_back_says_why": BINDS,
    }

    async def test_applying_twice_is_applying_once(self, world: KubernetesWorld) -> None:  # type: ignore[override]
        key = await world.host.submit(2, 1)
        await world.loop.run_pass(full=True)
        entry = world.loop.book.records[key]
        assert entry.decided is not None
        assert await world.host.native.apply(entry.job, entry.decided) is Applied.GONE
        assert len(world.host.kube.bound) == 2
        assert await world.host.stage(key) is Stage.RUNNING

    async def test_a_node_drained_before_the_start_is_left_for_another(self, world: KubernetesWorld) -> None:  # type: ignore[override]
        """A bound pod is never touched; the next gang goes elsewhere."""
        key = await world.host.submit(1, 4)
        await world.loop.run_pass(full=True)
        node = world.decided_nodes(key)[0]
        await world.host.set_node_state(node, Node.DRAINING)
        await world.step()
        later = await world.host.submit(1, 4)
        await world.step()
        assert await world.host.where(key) == [node]
        assert await world.host.where(later) == world.decided_nodes(later) != [node]

    async def test_what_somebody_else_has_taken_meanwhile_is_not_bound(self, world: KubernetesWorld) -> None:
        """The service may have reserved nodes on which a gang was bound without it: look before binding."""
        world.oracle.waits.add("*")
        key = await world.host.submit(1, 8)
        await world.loop.run_pass(full=True)
        foreign = world.host.kube.add_pod(pod("foreign", gpus=4))
        world.host.kube.bind(f"{PODS}/foreign", "n1", foreign["metadata"])
        await world.host.kube.seen()
        job = world.loop.book.records[key].job
        assert await world.host.native.apply(job, placed_on("n1")) is Applied.REFUSED
        assert await world.host.where(key) == []
        assert await world.host.native.apply(job, placed_on("n2")) is Applied.DONE
        assert await world.host.where(key) == ["n2"]


def placed_on(node: str) -> Placement:
    demand = Resources(cpu_cores=1, gpus=8, memory_gib=1)
    return Placement(
        (Assignment(task="worker-0", role=TaskGroup.WORKER, node=node, gpu_indices=range(8), demand=demand),)
    )
