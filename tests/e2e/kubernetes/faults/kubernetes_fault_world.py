"""One cluster of eight nodes whose parts fail: submitted gangs, their resources, and the account at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tests.e2e.hosts.faulty_way import FaultyWay
from tests.e2e.kubernetes.faults.kubernetes_api_way import ApiWay
from tests.e2e.kubernetes.gates.kubernetes_gates import GATE
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, gang, pod
from tests.e2e.kubernetes.kubernetes_scenario import (
    GPUS_PER_NODE,
    PODS,
    AdapterProcess,
    Watched,
    events_of,
    finish,
    names_of,
)
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.kubernetes.test_kubernetes_decided import logged, mixed
from tests.e2e.volcano.volcano_gangs import repeated

from placewise.v1.cluster_pb2 import Cluster, GetClusterRequest, RunningJob
from placewise_client import AsyncClient, Client, PlacewiseError

NODES, HITS, FILLERS = 8, 3, 4
WAYS = {"extender": "default-scheduler", "own": "placewise", "gates": "gated"}
SCHEDULERS = {"extender": "kube-scheduler", "gates": "gated-scheduler"}
GANGS = 60
ENDED = ("Succeeded", "Failed")
Note = Callable[[str, object], None]
Holdings = dict[str, tuple[float, float, float]]
"""GPUs, cores and GiB of memory by node."""


@dataclass
class World:
    """`gangs`: pods of every gang that was submitted. `ran`: pods by node, of each that was bound as a whole.

    `given_up`: deleted by the test. `excused`: came while a part was away, and may run otherwise than decided.
    """

    mode: str
    plane: ControlPlane
    placewise: PlacewiseServer
    way: FaultyWay
    api: ApiWay
    watched: Watched
    adapter: AdapterProcess
    cluster: str
    gangs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ran: dict[str, Counter[str]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    _next: Iterator[tuple[str, list[dict[str, Any]]]] = field(init=False)

    def __post_init__(self) -> None:
        made = mixed(self.scheduler, random.Random(20), GANGS, (1, 2))
        self._next = iter(made.items())

    @property
    def scheduler(self) -> str:
        """Name that the pods give."""
        return WAYS[self.mode]

    @property
    def scheduler_process(self) -> str:
        """Our own scheduler is the adapter."""
        return SCHEDULERS.get(self.mode, self.adapter.name)

    def written_at(self, hit: int) -> str:
        """How the paths end of one kind of writes to pods, by the hit."""
        if self.mode == "own":
            return "/binding"
        return "/status" if hit == 1 else ""

    @property
    def is_open(self) -> bool:
        """Whether gangs start without the service."""
        return self.mode != "gates"

    async def start_adapter(self) -> None:
        self.adapter.start(
            f"http://127.0.0.1:{self.way.port}",
            cluster=self.cluster,
            lease="",  # else the next adapter waits eight seconds for that of one that was killed
            fail_open_s=1.5,
            adapter={"decide_budget_s": 1.0, "start_timeout_s": 3.0, "reserve_ttl_s": 10.0},
            gates={"is_enabled": self.mode == "gates"},
        )
        await self.adapter.ready()

    async def kill_adapter(self) -> None:
        await asyncio.to_thread(self.adapter.kill)

    def start_scheduler(self) -> None:
        """The kube-scheduler of this way; our own scheduler name has none."""
        if self.mode == "extender":
            extender = self.adapter.extender() | {"httpTimeout": "2s"}
            self.plane.start_scheduler(SCHEDULERS[self.mode], {"extenders": [extender]})
        elif self.mode == "gates":
            self.plane.start_scheduler(SCHEDULERS[self.mode], {"profiles": [{"schedulerName": WAYS[self.mode]}]})

    # --- gangs --------------------------------------------------------------------------------------------------------

    async def submit(self, count: int) -> list[str]:
        """Makes the next mixed gangs; their names."""
        made = dict(islice(self._next, count))
        assert len(made) == count, "more gangs are needed"
        for name, pods in made.items():
            await self.make(name, pods)
        return list(made)

    async def make(self, name: str, pods: list[dict[str, Any]]) -> None:
        """Makes one gang. Cores and memory go with the GPUs, so that the account tells gangs apart."""
        self.gangs[name] = self.prepared(pods)
        await self.watched.create(pods)

    def prepared(self, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for document in pods:
            resources = document["spec"]["containers"][0]["resources"]
            gpus = int(resources["requests"]["nvidia.com/gpu"])
            amounts = {"nvidia.com/gpu": str(gpus), "cpu": str(gpus + 1), "memory": f"{2 * gpus + 1}Gi"}
            document["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": dict(amounts)}
            if self.mode == "gates":
                document["spec"]["schedulingGates"] = [{"name": GATE}]
        return pods

    def gang(self, name: str, size: int, gpus: int) -> list[dict[str, Any]]:
        return gang(name, size, gpus=gpus, scheduler=self.scheduler)

    async def bound(self, names: Iterable[str], limit_s: float = 45.0) -> None:
        """Waits until these gangs are bound whole. One that is not within the limit is lost."""
        deadline_s = time.monotonic() + limit_s
        for name in names:
            try:
                await self.watched.until_bound(names_of(self.gangs[name]), max(0.05, deadline_s - time.monotonic()))
            except TimeoutError:
                told = await asyncio.to_thread(self.told, name)
                self.lost.append(f"{name} on {dict(self.on_nodes(name))}: {told}")
            self.ran[name] = self.on_nodes(name)

    def on_nodes(self, name: str) -> Counter[str]:
        """Its pods by node."""
        return self.watched.on_nodes(name)

    def told(self, name: str) -> list[str]:
        """What Kubernetes shows of a gang's pods: their events and our condition."""
        texts = [text for made in names_of(self.gangs[name]) for text in events_of(self.plane, made)]
        for made in names_of(self.gangs[name]):
            found = self.plane.request("GET", f"{PODS}/{made}")["status"].get("conditions", ())
            texts += [item.get("message", "") for item in found if item["type"].startswith("placewise.dev/")]
        return sorted(set(texts))

    async def fail(self, name: str, node: str) -> None:
        """The pods that a gang still has fail, too, as one of its nodes is gone."""
        items = (await asyncio.to_thread(self.plane.request, "GET", PODS))["items"]
        left = {item["metadata"]["name"] for item in items}
        pods = [made for made in names_of(self.gangs[name]) if made in left]
        await asyncio.to_thread(finish, self.plane, pods, "Failed")

    async def finish(self, names: Iterable[str]) -> None:
        pods = [made for name in names for made in names_of(self.gangs[name])]
        await asyncio.to_thread(finish, self.plane, pods)

    async def delete(self, name: str, pods: list[str] | None = None) -> None:
        """Deletes pods of a gang, or all of it, which is given up then."""
        if pods is None:
            self.given_up.add(name)
        for made in names_of(self.gangs[name]) if pods is None else pods:
            await asyncio.to_thread(self.plane.request, "DELETE", f"{PODS}/{made}", {"gracePeriodSeconds": 0})

    async def says_why(self, hit: int) -> None:
        """A gang that waits for the whole cluster says so, and leaves nothing behind when it is deleted."""
        name = f"w{hit}"
        await self.make(name, self.gang(name, NODES, GPUS_PER_NODE))
        await self.until_waiting(name)
        await self.delete(name)

    async def until_waiting(self, name: str) -> None:
        """Until a gang of which nothing is bound says why it waits."""
        try:
            await until(lambda: any("Placewise: waiting" in text for text in self.told(name)), limit_s=15)
        except TimeoutError:
            print(f"\n{self.mode}: {name} on {dict(self.on_nodes(name))} says {self.told(name)}")
            raise
        assert not self.on_nodes(name)

    # --- books --------------------------------------------------------------------------------------------------------

    async def agree(self, limit_s: float = 15.0) -> None:
        """Waits until the service holds for gangs, node by node, what Kubernetes' pods hold, and nothing beside."""
        deadline_s = time.monotonic() + limit_s
        while True:
            ours, hosts = await self.held(), await asyncio.to_thread(holdings_of_host, self.plane)
            if ours == hosts or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(0.1)
        nodes = ours.keys() | hosts.keys()
        apart = {node: (ours.get(node), hosts.get(node)) for node in nodes if ours.get(node) != hosts.get(node)}
        if apart:
            jobs = await asyncio.to_thread(self.jobs)
            print(f"\n{self.mode}: by node (service, host): {apart}; the service has {jobs}, ran {self.ran}")
        assert not apart
        assert all(gpus <= GPUS_PER_NODE for gpus, _, _ in hosts.values()), hosts

    def jobs(self) -> list[str]:
        """Every job that the service counts, in words."""
        with Client(self.placewise.target) as client:
            found = client.get_cluster(GetClusterRequest(cluster=self.cluster, full=True))
        return [
            f"{job.job_id} {RunningJob.State.Name(job.state)} {[(task.task, task.node) for task in job.assignments]}"
            for job in found.jobs
        ]

    async def held(self) -> Holdings:
        """By the service, for jobs that run and for those that have not started."""
        with suppress(PlacewiseError):  # it may just be starting
            async with AsyncClient(self.placewise.target) as client:
                return holdings_of_service(await client.get_cluster(GetClusterRequest(cluster=self.cluster, full=True)))
        return {}

    def reserved(self) -> dict[str, list[str]]:
        """By job, the nodes that are held for gangs that have not started. For threads."""
        with Client(self.placewise.target) as client:
            found = client.get_cluster(GetClusterRequest(cluster=self.cluster, full=True))
        return {
            job.job_id: [task.node for task in job.assignments]
            for job in found.jobs
            if job.state == RunningJob.RESERVED
        }

    async def after_hit(self, hit: int, names: list[str]) -> None:
        """All gangs of this hit are bound, the books agree, and who waits says why. Then the gangs end."""
        await self.bound(names)
        await self.agree()
        await self.says_why(hit)
        await self.finish(names)

    async def close(self, title: str, note: Note) -> None:
        """The account of all gangs that were not deleted. A killed service loses decisions that are not written out.

        An adapter that hung takes the answers that it missed for an outage of the service.
        """
        has_outage, is_killed = "service" in title or "hung" in title, "service killed" in title
        await self.agree()
        kept = {name: places for name, places in self.ran.items() if name not in self.given_up}
        assert self.gangs.keys() == kept.keys() | self.given_up
        log = await logged(self.placewise, self.cluster, sum(name.startswith("g") for name in kept))
        ids = {self.name_of(job): job for job in log.starts}
        ran = {ids.get(name, name): places for name, places in kept.items()}
        found, doubled = log.account(ran), log.doubled()
        twice = self.twice(has_outage=has_outage)
        words = f"{title}, {HITS} times each: {len(self.lost)} lost, {len(doubled)} doubled; {found}"
        note("fault", f"{self.mode}: {words}")
        otherwise = [*found.elsewhere, *found.released, *found.never_decided]
        print(f"\n{self.mode}: {words}", *otherwise, *self.lost, *doubled, *twice, sep="\n  ")
        assert (self.lost, doubled, twice) == ([], [], [])
        assert {self.name_of(job) for job in otherwise} <= self.excused
        assert not found.unwritten or is_killed
        assert found.total == len(kept)

    def twice(self, *, has_outage: bool) -> list[str]:
        """Starts and ends that the log has more than once."""
        return repeated(self.placewise, self.cluster, has_outage=has_outage)

    def name_of(self, job: str) -> str:
        """Of a gang, by its id at the service or its name."""
        return job.split("/")[1] if "/" in job else job


def holdings_of_service(cluster: Cluster) -> Holdings:
    return _summed(
        (task.node, (task.demand.gpus or len(task.gpu_indices), task.demand.cpu_cores, task.demand.memory_gib))
        for job in cluster.jobs
        for task in job.assignments
    )


def holdings_of_host(plane: ControlPlane) -> Holdings:
    """Of pods that are bound and have not ended."""
    return _summed(
        (item["spec"]["nodeName"], _amounts(container["resources"]["requests"]))
        for item in plane.request("GET", PODS)["items"]
        if item["spec"].get("nodeName") and item["status"].get("phase") not in ENDED
        for container in item["spec"]["containers"]
    )


def _amounts(requests: Mapping[str, str]) -> tuple[float, float, float]:
    return (
        float(requests["nvidia.com/gpu"]),
        float(requests["cpu"]),
        float(requests["memory"].removesuffix("Gi")),
    )


def _summed(amounts: Iterable[tuple[str, tuple[float, float, float]]]) -> Holdings:
    sums: Holdings = {}
    for node, (gpus, cores, memory_gib) in amounts:
        before = sums.get(node, (0.0, 0.0, 0.0))
        sums[node] = (before[0] + gpus, before[1] + cores, round(before[2] + memory_gib, 3))
    return sums


def fill(plane: ControlPlane) -> None:
    """Pods of nobody's, so that half of the nodes are partly full."""
    for number in range(FILLERS):
        document = pod(f"filler-{number}", gpus=3)
        document["spec"]["nodeName"] = f"n{number:02d}"
        plane.request("POST", PODS, document)


async def until(holds: Callable[[], bool], limit_s: float = 30.0, what: str = "it") -> None:
    """Polls: the events happen in other processes, by their clocks."""
    deadline_s = time.monotonic() + limit_s
    while not await asyncio.to_thread(holds):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited for {what}")
        await asyncio.sleep(0.05)


Fault = Callable[[World, int], Awaitable[list[str]]]
"""One hit; the names of the gangs that are to be bound after it."""
