"""Gangs that Volcano starts while nodes and jobs fail: vcjobs, and PodGroups with pods as other operators make them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from tests.e2e.hosts.faulty_way import FaultyWay
from tests.e2e.kubernetes.faults.kubernetes_api_way import ApiWay
from tests.e2e.kubernetes.faults.kubernetes_fault_world import NODES, World, fill
from tests.e2e.kubernetes.faults.kubernetes_node_faults import bring_back, cordon
from tests.e2e.kubernetes.kubernetes_cluster import free_port
from tests.e2e.kubernetes.kubernetes_scenario import names_of, watching
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import (
    GROUPS,
    JOBS,
    VOLCANO,
    Tasks,
    VolcanoAdapter,
    VolcanoCluster,
    pods_of,
    vcjob,
)

from placewise_kubernetes.kube import names

MERGE = "application/merge-patch+json"


@dataclass
class VolcanoWorld(World):
    """`vcjobs`: names and uids by the names of their gangs, which are those of their PodGroups."""

    volcano: VolcanoCluster = field(kw_only=True)
    vcjobs: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def scheduler(self) -> str:
        return VOLCANO

    @property
    def scheduler_process(self) -> str:
        return VOLCANO

    def written_at(self, hit: int) -> str:
        """A pod's node, decision and devices are one write."""
        return "/status"

    async def start_adapter(self) -> None:
        self.adapter.start(
            f"http://127.0.0.1:{self.way.port}",
            cluster=self.cluster,
            lease="",
            adapter={"decide_budget_s": 1.0, "start_timeout_s": 10.0, "reserve_ttl_s": 30.0},
        )
        await self.adapter.ready()

    def start_scheduler(self) -> None:
        self.volcano.start_scheduler()

    def prepared(self, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """As Volcano names groups and roles; the PodGroup says the sizes."""
        for document in super().prepared(pods):
            notes = document["metadata"]["annotations"]
            document["metadata"]["labels"].pop(names.JOB, None)
            notes.pop(names.GANG, None)
            notes[names.VOLCANO_GROUP] = document["metadata"]["name"].rsplit("-", 1)[0]
            notes[names.VOLCANO_TASK] = notes.pop(names.ROLE, names.DEFAULT_ROLE)
        return pods

    async def make(self, name: str, pods: list[dict[str, Any]]) -> None:
        await super().make(name, pods)
        group = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": group_spec(pods),
        }
        await asyncio.to_thread(self.plane.request, "POST", GROUPS, group)

    async def make_vcjob(self, name: str, tasks: Tasks) -> str:
        """The gang's name."""
        job = vcjob(name, tasks)
        uid = await asyncio.to_thread(self.volcano.submit, job)
        gang = f"{name}-{uid}"
        self.vcjobs[gang], self.gangs[gang] = (name, uid), [{"metadata": {"name": made}} for made in pods_of(job)]
        return gang

    async def scale(self, gang: str, tasks: Tasks) -> None:
        """Changes the replicas of a vcjob's tasks, all of which it needs."""
        job = vcjob(self.vcjobs[gang][0], tasks)
        change = {"spec": {name: job["spec"][name] for name in ("minAvailable", "tasks")}}
        await asyncio.to_thread(self.plane.request, "PATCH", f"{JOBS}/{self.vcjobs[gang][0]}", change, MERGE)
        self.gangs[gang] = [{"metadata": {"name": made}} for made in pods_of(job)]

    def on_nodes(self, name: str) -> Counter[str]:
        nodes = self.watched.node
        return Counter(nodes[made] for made in names_of(self.gangs[name]) if made in nodes)

    def told(self, name: str) -> list[str]:
        ours = self.volcano.events_of("PodGroup", name)
        return ours if name in self.vcjobs else [*super().told(name), *ours]  # it has no pods before it is let in

    async def delete(self, name: str, pods: list[str] | None = None) -> None:
        if name in self.vcjobs:
            self.give_up(name)
            return
        await super().delete(name, pods)
        if pods is None:
            await asyncio.to_thread(self.plane.request, "DELETE", f"{GROUPS}/{name}")

    def give_up(self, gang: str) -> None:
        """Deletes a vcjob. For threads, too."""
        self.given_up.add(gang)
        self.volcano.delete(*self.vcjobs[gang])


def group_spec(pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a PodGroup that starts all of these pods together."""
    requests = [document["spec"]["containers"][0]["resources"]["requests"] for document in pods]
    least = {name: sum(int(amounts[name]) for amounts in requests) for name in ("nvidia.com/gpu", "cpu")}
    memory_gib = sum(int(amounts["memory"].removesuffix("Gi")) for amounts in requests)
    return {
        "minMember": len(pods),
        "minTaskMember": dict(Counter(document["metadata"]["annotations"][names.VOLCANO_TASK] for document in pods)),
        "queue": "default",
        "minResources": {name: str(amount) for name, amount in least.items()} | {"memory": f"{memory_gib}Gi"},
    }


W = TypeVar("W", bound=VolcanoWorld)


@asynccontextmanager
async def at_work(kind: type[W], volcano: VolcanoCluster, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[W]:
    """Volcano and its adapter at work, on nodes that are partly full."""
    plane, port = volcano.plane, int(placewise.http_target.rsplit(":", 1)[1])
    with closing(FaultyWay(free_port())) as way:
        way.lead_to(port)
        async with ApiWay(plane) as api, watching(plane) as watched:
            volcano.adapter = VolcanoAdapter(plane, free_port(), api_url=api.url)
            made = kind("volcano", plane, placewise, way, api, watched, volcano.adapter, cluster, volcano=volcano)
            await asyncio.to_thread(fill, plane)
            try:
                await made.start_adapter()
                made.start_scheduler()
                yield made
            finally:
                for name in (volcano.adapter.name, VOLCANO):
                    with suppress(KeyError):  # it was killed
                        await asyncio.to_thread(plane.kill_process, name)
                await asyncio.to_thread(volcano.clear)


@pytest.fixture
async def world(volcano: VolcanoCluster, placewise: PlacewiseServer, cluster: str) -> AsyncIterator[VolcanoWorld]:
    async with at_work(VolcanoWorld, volcano, placewise, cluster) as made:
        yield made


@pytest.fixture(autouse=True)
def nodes_again(volcano: VolcanoCluster) -> Iterator[None]:
    """A hit that fails leaves no node away for the next test."""
    yield
    for number in range(NODES):
        bring_back(volcano.plane, f"n{number:02d}")
        cordon(volcano.plane, f"n{number:02d}", is_cordoned=False)
