"""The adapters' conformance suite on Volcano: a scheduler in memory that asks as Volcano's sessions do.

A PodGroup comes first. Its pods are made once jobEnqueueable has let it in, and go where prioritize scores highest, all
of them or none. No Volcano runs here: test_volcano_extender.py says which of its releases the payloads are built from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, cast

import pytest
from tests.contract.adapters.test_kubernetes_conformance import (
    CHANGES,
    PODS,
    KubernetesConformance,
    KubernetesScheduler,
    RecordedHost,
    gpus_of,
)
from tests.e2e.kubernetes.kubernetes_cluster import pod
from tests.fakes.schedulers.kubernetes_api import VOLCANO_GROUPS

from placewise_client.adapter.native import End, HostState
from placewise_kubernetes.faces.volcano import REJECT, VolcanoExtender
from placewise_kubernetes.gang.book import UID_LENGTH
from placewise_kubernetes.gang.spec import Source
from placewise_kubernetes.kube import names

GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
SCHEDULER = "volcano"


class SessionHost(RecordedHost):
    """Volcano opens a session every second: it has asked about every group before the adapter looks again."""

    volcano: VolcanoScheduler

    async def observe(self, full: bool) -> HostState:
        await self.volcano.enqueue()
        return await super().observe(full)


class VolcanoScheduler(KubernetesScheduler):
    """`_to_be_made`: the pods of groups that have not been let in."""

    host_type = SessionHost

    def __init__(self) -> None:
        super().__init__(SCHEDULER)
        self.kube.served = {VOLCANO_GROUPS}
        self._to_be_made: dict[str, list[dict[str, Any]]] = {}

    def restart(self) -> None:
        super().restart()
        cast(SessionHost, self.native).volcano = self

    async def submit(self, tasks: int, gpus: int, *, is_managed: bool = True) -> str:
        if not is_managed:
            return await super().submit(tasks, gpus, is_managed=False)
        number = next(self._number)
        name, uid = f"g{number}", f"{number:0{UID_LENGTH}d}-group"
        notes = {names.MAX_PER_NODE: "1"}
        metadata = {"name": name, "namespace": "default", "uid": uid, "annotations": notes}
        self.kube.put_object(VOLCANO_GROUPS, {"metadata": metadata, "spec": least_of(tasks, gpus)})
        notes = {**notes, names.VOLCANO_GROUP: name}
        made = [pod(f"{name}-{i}", gpus=gpus, annotations=notes, scheduler=SCHEDULER) for i in range(tasks)]
        key = f"default/{name}/{uid[:UID_LENGTH]}"
        self._to_be_made[key] = made
        self._paths[key] = [f"{PODS}/{document['metadata']['name']}" for document in made]
        await self.enqueue()
        return key

    async def enqueue(self) -> list[str]:
        """A session's first action. Returns the groups that are let in."""
        extender, let_in = VolcanoExtender(self.native, 0.0), []
        for key in list(self._to_be_made):
            answer = await extender.job_enqueueable({"job": {"Namespace": "default", "Name": key.split("/")[1]}})
            if answer["status"] != REJECT:
                let_in.append(key)
        return let_in

    async def run_scheduler(self) -> None:
        await self.kube.seen()
        for key in await self.enqueue():
            await self._make(key)
        await super().run_scheduler()
        for key in self._paths:
            await self._allocate(key)
        await self.kube.seen()

    async def _make(self, key: str) -> None:
        for document in self._to_be_made.pop(key):
            self.kube.add_pod(document)
        await self.kube.seen()

    async def _allocate(self, key: str) -> None:
        """All pods of the group, or none."""
        extender, free, chosen = VolcanoExtender(self.native, 0.0), self.free(), {}
        for path in self._paths[key]:
            document = self.kube.pods.get(path)
            if document is None or document["spec"].get("nodeName") or document["spec"]["schedulerName"] != SCHEDULER:
                continue
            wanted = gpus_of(document)
            offered = [node for node, gpus in free.items() if gpus >= wanted]
            if not offered:
                return
            task = {"UID": document["metadata"]["uid"], "Job": f"default/{key.split('/')[1]}"}
            answer = await extender.prioritize({"task": task, "nodes": [{"Name": node} for node in offered]})
            chosen[path] = max(offered, key=lambda node: answer["nodeScore"].get(node, 0.0))
            free[chosen[path]] -= wanted
        for path, node in chosen.items():
            self.kube.bind(path, node, {})

    async def end(self, key: str, end: End) -> None:
        if self._to_be_made.pop(key, None) is not None:
            self.kube.remove_object(VOLCANO_GROUPS, key.split("/")[1])
            await self.kube.seen()
        else:
            await super().end(key, end)

    async def shrink(self, key: str, tasks: int) -> None:
        self._to_be_made[key], self._paths[key] = self._to_be_made[key][:tasks], self._paths[key][:tasks]
        group = await self.kube.get(f"{GROUPS}/{key.split('/')[1]}")
        self.kube.put_object(VOLCANO_GROUPS, group | {"spec": least_of(tasks, gpus_of(self._to_be_made[key][0]))})
        await self.kube.seen()

    async def set_reachable(self, is_reachable: bool) -> None:
        await super().set_reachable(is_reachable)
        while is_reachable and not self.native.are_groups_watched(Source.VOLCANO):  # noqa: ASYNC110 as for pods
            await asyncio.sleep(0.01)

    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        """Another plugin of Volcano's lets it in, and another one's score is higher."""
        await self._make(key)
        await super().start_at(key, nodes)

    async def requeue(self, key: str) -> str:
        again = await super().requeue(key)
        await self.native.observe(full=True)  # it reads the PodGroup before the next session
        await self.kube.seen()
        return again

    async def show_unreadable(self) -> None:
        await super().show_unreadable()
        self._paths["default/odd/"] = [f"{PODS}/odd-{index}" for index in range(2)]

    async def forget(self, key: str) -> None:
        if self._to_be_made.pop(key, None) is None:
            await super().forget(key)
            return
        await self.set_reachable(False)
        self.kube.remove_object(VOLCANO_GROUPS, key.split("/")[1])
        await self.set_reachable(True)


def least_of(tasks: int, gpus: int) -> dict[str, Any]:
    """Spec of a PodGroup of so many pods."""
    least = {"cpu": str(tasks), "memory": f"{tasks}Gi", "nvidia.com/gpu": str(tasks * gpus)}
    return {"minMember": tasks, "minResources": least}


ELSEWHERE = "Volcano puts a pod elsewhere if it cannot take the decided node; the start is reported as elsewhere"


class TestVolcano(KubernetesConformance):
    scheduler = SCHEDULER
    not_here: ClassVar = {
        **dict.fromkeys(CHANGES, "the adapter changes nothing here: Volcano binds"),
        "test_a_node_drained_before_the_start_is_left_for_another": ELSEWHERE,
        "test_what_somebody_took_since_the_decision_is_not_used_twice": ELSEWHERE,
        "test_a_place_on_a_node_that_the_host_does_not_have_is_decided_again": ELSEWHERE,
        "test_a_placement_that_is_taken_back_says_why": ELSEWHERE,
    }

    @pytest.fixture
    async def host(self) -> AsyncIterator[VolcanoScheduler]:  # type: ignore[override]
        host = VolcanoScheduler()
        yield host
        host.stop()
        await host.native.writer.drain()
