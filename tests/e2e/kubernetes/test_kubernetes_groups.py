"""PodGroups and vcjobs on a real apiserver, by minimal definitions of our own. The test plays Volcano: none is run.

The adapter has the rights of the shipped manifests, and no more.
"""

from __future__ import annotations

import asyncio
import time
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port, pod
from tests.e2e.kubernetes.kubernetes_fixtures import plane
from tests.e2e.kubernetes.kubernetes_scenario import PODS, AdapterProcess, finish, remove_pods
from tests.fakes.servers.oracle import OracleServer

from placewise.v1.cluster_pb2 import JobEvent

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(300)]

__all__ = ["plane"]

DEFINITIONS = Path(__file__).with_name("volcano-definitions.yaml")
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
MERGE = "application/merge-patch+json"
PERMIT, ABSTAIN, REJECT = 1, 0, -1
AT_ONCE_S = 10.0  # thirty times less than it took before groups were watched; usually some hundredths


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> ControlPlane:
    """The control plane, once it serves PodGroups and vcjobs."""
    for document in yaml.safe_load_all(DEFINITIONS.read_text()):
        plane.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
    for path in (JOBS, GROUPS):
        limit_s = time.monotonic() + 60
        while time.monotonic() < limit_s:
            with suppress(urllib.error.HTTPError):
                plane.request("GET", path)
                break
            time.sleep(0.1)
    return plane


class Volcano:
    """Makes vcjobs, PodGroups and pods as Volcano does, and asks as it does."""

    def __init__(self, plane: ControlPlane, adapter: AdapterProcess, oracle: OracleServer) -> None:
        self.plane = plane
        self.adapter = adapter
        self.service = oracle
        self.oracle = oracle.oracle
        self.owner: dict[str, Any] = {}

    async def make(self, name: str, *tasks: tuple[str, int, int]) -> str:
        """A vcjob of these (role, pods, GPUs of each), and its PodGroup; the PodGroup's name."""
        # The first object of a new definition may take the API server seconds, and the oracle answers in this loop.
        return await asyncio.to_thread(self._make, name, *tasks)

    def _make(self, name: str, *tasks: tuple[str, int, int]) -> str:
        job = self.plane.request("POST", JOBS, _job(name, *tasks))
        uid = job["metadata"]["uid"]
        self.owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": uid}
        self.owner["controller"] = True
        total = sum(count for _, count, _ in tasks)
        least = {"cpu": str(total), "nvidia.com/gpu": str(sum(count * gpus for _, count, gpus in tasks))}
        group = f"{name}-{uid}"
        body = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": group, "ownerReferences": [self.owner]},
            "spec": {"minMember": total, "minTaskMember": {r: n for r, n, _ in tasks}, "minResources": least},
            "status": {"phase": "Pending"},
        }
        self.plane.request("POST", GROUPS, body)
        return group

    def change(self, name: str, *tasks: tuple[str, int, int]) -> None:
        """Another size of the vcjob."""
        self.plane.request("PATCH", f"{JOBS}/{name}", {"spec": _job(name, *tasks)["spec"]}, MERGE)

    async def ask(self, group: str) -> int:
        body = {"job": {"Namespace": "default", "Name": group}}
        answer = await asyncio.to_thread(self.adapter.post, "/volcano/jobEnqueueable", body)
        return int(answer["status"])

    async def until_answer(self, group: str, wanted: int) -> None:
        """Asks again as each of Volcano's sessions does."""
        limit_s = time.monotonic() + 20
        while (answer := await self.ask(group)) != wanted:
            assert time.monotonic() < limit_s, f"{answer}; {self.plane.log(self.adapter.name)[-3000:]}"
            await asyncio.sleep(0.1)

    async def run_pods(self, group: str, role: str, count: int, gpus: int) -> list[str]:
        """Makes the pods, and binds each where prioritize scores highest."""
        notes = {"scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": role}
        names = [f"{group[:20]}-{role}-{index}" for index in range(count)]
        for name in names:
            document = pod(name, gpus=gpus, annotations=notes, scheduler="volcano")
            document["metadata"]["ownerReferences"] = [self.owner]
            made = self.plane.request("POST", PODS, document)
            nodes = [{"Name": node["metadata"]["name"]} for node in self.plane.request("GET", "/api/v1/nodes")["items"]]
            task = {"UID": made["metadata"]["uid"], "Job": f"default/{group}"}
            answer = {"nodeScore": {}}
            while not answer["nodeScore"]:
                body = {"task": task, "nodes": nodes}
                answer = await asyncio.to_thread(self.adapter.post, "/volcano/prioritize", body)
            (node,) = answer["nodeScore"]
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            target = {"target": {"apiVersion": "v1", "kind": "Node", "name": node}}
            self.plane.request("POST", f"{PODS}/{name}/binding", binding | target)
        return names

    def sizes(self) -> list[tuple[int, float]]:
        """(count, GPUs) of each group of the last question."""
        jobs = [request for name, request in self.oracle.calls if name == "place"][-1].jobs
        return [(group.count, group.demand.gpus) for group in jobs[0].groups]

    def restart_adapter(self) -> None:
        self.adapter.kill()
        self.start_adapter()

    def start_adapter(self) -> None:
        self.adapter.start(self.service.target, listen={"is_volcano_served": True})


def _job(name: str, *tasks: tuple[str, int, int]) -> dict[str, Any]:
    templates = [
        {"name": role, "replicas": count, "template": {"spec": pod(role, gpus=gpus, scheduler="volcano")["spec"]}}
        for role, count, gpus in tasks
    ]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"minAvailable": sum(count for _, count, _ in tasks), "tasks": templates},
    }


@pytest.fixture
async def volcano(served: ControlPlane) -> AsyncIterator[Volcano]:
    oracle = await OracleServer().start()
    running = Volcano(served, AdapterProcess(served, free_port()), oracle)
    running.start_adapter()
    await running.adapter.ready()
    yield running
    running.adapter.stop()
    await oracle.stop()
    remove_pods(served)
    for path in (JOBS, GROUPS):
        served.request("DELETE", path)


async def until(is_true: Callable[[], bool], limit_s: float = AT_ONCE_S) -> float:
    """Waits for it; how long that took."""
    started_s = time.monotonic()
    async with asyncio.timeout(limit_s):
        while not is_true():  # noqa: ASYNC110 nothing tells the service who waits
            await asyncio.sleep(0.01)
    return time.monotonic() - started_s


@pytest.mark.parametrize("what", ["vcjob", "group"])
async def test_what_is_deleted_before_it_has_pods_frees_the_cluster_at_once(volcano: Volcano, what: str) -> None:
    group = await volcano.make("first", ("worker", 30, 8))
    await volcano.until_answer(group, PERMIT)
    assert len(volcano.oracle.held) == 1
    volcano.plane.request("DELETE", f"{JOBS}/first" if what == "vcjob" else f"{GROUPS}/{group}")
    took_s = await until(lambda: volcano.oracle.held == {})
    print(f"\na {what} deleted before its pods was free after {took_s * 1e3:.0f} ms")
    assert await volcano.ask(group) == (REJECT if what == "vcjob" else ABSTAIN)
    await volcano.until_answer(await volcano.make("second", ("worker", 30, 8)), PERMIT)
    assert [key.split("/")[1].split("-")[0] for key in volcano.oracle.held] == ["second"]


async def test_roles_are_those_of_the_vcjob_and_another_size_is_decided_as_it_is_then(volcano: Volcano) -> None:
    volcano.oracle.waits.add("*")
    group = await volcano.make("tight", ("launcher", 1, 1), ("worker", 3, 8))
    await volcano.until_answer(group, REJECT)
    await until(lambda: any(name == "admit_or_wait" for name, _ in volcano.oracle.calls))
    volcano.change("tight", ("launcher", 1, 0), ("worker", 2, 8))
    volcano.oracle.waits.clear()
    await volcano.until_answer(group, PERMIT)
    assert volcano.sizes() == [(1, 0), (2, 8)]


async def test_a_gang_has_one_name_through_restarts_and_is_told_once(volcano: Volcano) -> None:
    group = await volcano.make("lasting", ("worker", 2, 4))
    await volcano.until_answer(group, PERMIT)
    (key,) = volcano.oracle.held
    assert key.endswith(f"/{volcano.owner['uid'][:8]}")
    status = {"status": {"phase": "Inqueue"}}
    volcano.plane.request("PATCH", f"{GROUPS}/{group}", status, MERGE)
    volcano.restart_adapter()  # let in, and no pods yet
    await volcano.adapter.ready()
    names = await volcano.run_pods(group, "worker", 2, 4)
    await until(lambda: _told(volcano) == [(key, JobEvent.STARTED)])
    volcano.restart_adapter()  # it runs
    await volcano.adapter.ready()
    finish(volcano.plane, names)
    await until(lambda: _told(volcano) == [(key, JobEvent.STARTED), (key, JobEvent.FINISHED)])
    volcano.plane.request("DELETE", f"{GROUPS}/{group}")  # as Volcano does when it has completed
    volcano.restart_adapter()
    await volcano.adapter.ready()
    await until(lambda: volcano.adapter.metric("placewise_adapter_passes_total") >= 2)
    assert _told(volcano) == [(key, JobEvent.STARTED), (key, JobEvent.FINISHED)]
    assert len(volcano.oracle.decided[key]) == 1


async def test_a_group_that_only_a_caller_knows_becomes_no_gang(volcano: Volcano) -> None:
    assert await volcano.ask("ghost") == ABSTAIN
    assert volcano.adapter.metric('placewise_kubernetes_refused_total{reason="unknown_group"}') == 1
    assert volcano.oracle.held == {}


def _told(volcano: Volcano) -> list[tuple[str, int]]:
    return [(event.job_id, event.kind) for event in volcano.oracle.events]
