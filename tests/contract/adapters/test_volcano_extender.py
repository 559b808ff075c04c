"""Volcano's calls, on payloads built field by field from its documented Go structures of three releases.

They have not been seen on a wire: no Volcano runs here. The tests show that each release's shape is accepted, that
groups and pods are taken from the API server and not from a payload, and that answers come from memory.
"""

from __future__ import annotations

import asyncio
import copy
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, pod
from tests.fakes.schedulers.kubernetes_api import FakeKube
from tests.fakes.servers.http_server import ReadyServer
from tests.fakes.servers.oracle import OracleServer

from placewise.v1.cluster_pb2 import Node
from placewise.v1.job_pb2 import Job
from placewise_client import AsyncClient
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.adapter.native import AdapterSettings
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.faces.server import Face
from placewise_kubernetes.faces.volcano import DECIDED_SCORE, VolcanoExtender
from placewise_kubernetes.gang.spec import GangRef, GangRules, GroupFacts, Manage, Source
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.client import KubeClient, KubeUnreachableError
from placewise_kubernetes.kube.nodes import NodeReader

RELEASES = ("1.13", "1.15", "1.16")
GPU = "nvidia.com/gpu"
Spelled = Callable[[dict[str, Any]], dict[str, Any]]


def resource(cpu: float, gpus: float) -> dict[str, Any]:
    """Resource: CPU and every scalar in thousandths, memory in bytes."""
    return {"MilliCPU": cpu * 1000, "Memory": 4 * 2.0**30, "ScalarResources": {GPU: gpus * 1000}, "MaxTaskNum": 0}


def task_info(release: str, name: str, role: str = "worker", job: str = "default/train") -> dict[str, Any]:
    """TaskInfo; the transaction context is embedded, so that its fields stand beside the task's own."""
    info = {
        "UID": f"uid-{name}",
        "Job": job,
        "Name": name,
        "Namespace": "default",
        "TaskRole": role,
        "Resreq": resource(4, 2),
        "InitResreq": resource(4, 2),
        "NodeName": "",
        "Status": 1,
        "LastTransaction": None,
        "Priority": 1,
        "VolumeReady": False,
        "Preemptable": False,
        "BestEffort": False,
        "RevocableZone": "",
        "NumaInfo": None,
        "Pod": None,
    }
    if release == "1.13":
        return info
    info |= {"HasRestartableInitContainer": False, "SchGated": False, "EvictionOccurred": False}
    info |= {"JobAllocatedHyperNode": "", "CustomBindErrHandlerSucceeded": False}
    return info | ({"ResourceClaims": [], "SubJob": "default/train"} if release == "1.16" else {})


def job_info(release: str, name: str = "train", members: int = 2, **spec: Any) -> dict[str, Any]:
    """JobInfo of a PodGroup that has no pods yet."""
    group_spec = {
        "minMember": members,
        "queue": "research",
        "minResources": {"cpu": str(4 * members), "memory": f"{4 * members}Gi", GPU: str(2 * members)},
    } | spec
    group = {
        "metadata": {"name": name, "namespace": "default", "uid": "9f1c2d3e-0000", "creationTimestamp": None},
        "spec": group_spec,
        "status": {"phase": "Pending"},
        "Version": "v1beta1",
    }
    info = {
        "UID": f"default/{name}",
        "PgUID": "9f1c2d3e-0000",
        "Name": name,
        "Namespace": "default",
        "Queue": "research",
        "Priority": 0,
        "MinAvailable": members,
        "WaitingTime": None,
        "JobFitErrors": "",
        "NodesFitErrors": {},
        "TaskStatusIndex": {},
        "Tasks": {},
        "TaskMinAvailable": {},
        "TaskMinAvailableTotal": 0,
        "Allocated": resource(0, 0),
        "TotalRequest": resource(0, 0),
        "CreationTimestamp": "2026-11-21T02:00:00Z",
        "PodGroup": group,
        "ScheduleStartTimestamp": None,
        "Preemptable": False,
        "RevocableZone": "",
        "Budget": {"MinAvailable": "", "MaxUnavailable": ""},
    }
    if release in ("1.15", "1.16"):
        group_spec["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
        info |= {"SubJobs": {}, "TaskToSubJob": {}}
    if release == "1.16":
        group_spec["subGroupPolicy"] = [{"name": "workers", "subGroupSize": members}]
        info |= {"MinSubJobs": {}, "AllocatedHyperNode": "", "Unknown": {"Deep": [1, {"er": None}]}}
    return info


def in_go(info: dict[str, Any]) -> dict[str, Any]:
    """The same JobInfo from a Volcano whose internal PodGroup has no names for JSON.

    Its fields are called as in Go, and those of the embedded metadata, which has names, stand beside them.
    """
    group = info["PodGroup"]
    spec, status = ({k[:1].upper() + k[1:]: v for k, v in group[part].items()} for part in ("spec", "status"))
    return info | {"PodGroup": group["metadata"] | {"Spec": spec, "Status": status, "Version": group["Version"]}}


def node_info(name: str) -> dict[str, Any]:
    amounts = resource(64, 8)
    return {
        "Name": name,
        "Node": None,
        "State": {"Phase": 1, "Reason": ""},
        "Releasing": resource(0, 0),
        "Pipelined": resource(0, 0),
        "Idle": amounts,
        "Used": resource(0, 0),
        "Allocatable": amounts,
        "Capacity": amounts,
        "Tasks": {},
        "Others": {"GpuShare": None},
    }


class Bench:
    """The adapter between a Volcano that calls it and a decision service in memory."""

    def __init__(
        self,
        http: TestClient[Any, Any],
        loop: AdapterLoop,
        host: KubernetesHost,
        server: OracleServer,
        kube: FakeKube,
    ) -> None:
        self.http = http
        self.loop = loop
        self.host = host
        self.oracle = server.oracle
        self.server = server
        self.kube = kube

    def make_group(self, info: dict[str, Any]) -> None:
        """The PodGroup as Volcano finds it in the API."""
        group = info["PodGroup"]
        path = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups/{group['metadata']['name']}"
        self.kube.groups[path] = copy.deepcopy({key: group[key] for key in ("metadata", "spec", "status")})

    def make_pod(self, name: str, gpus: int = 2) -> dict[str, Any]:
        """A pod of the group `train`."""
        notes = {"scheduling.k8s.io/group-name": "train", "volcano.sh/task-spec": "worker"}
        made = pod(name, gpus=gpus, annotations=notes, scheduler="volcano")
        made["metadata"]["uid"] = f"uid-{name}"
        return self.kube.add_pod(made)

    async def enqueueable(self, info: dict[str, Any], spelled: Spelled = dict) -> int:
        """The answer to Volcano about a known group."""
        self.make_group(info)
        return await self.ask(spelled(info))

    async def ask(self, info: dict[str, Any]) -> int:
        response = await self.http.post("/volcano/jobEnqueueable", json={"job": info})
        assert response.status == 200, await response.text()
        return int((await response.json())["status"])

    async def prioritize(self, task: dict[str, Any], nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> dict[str, float]:
        body = {"task": task, "nodes": [node_info(name) for name in nodes]}
        response = await self.http.post("/volcano/prioritize", json=body)
        answer = await response.json()
        assert answer["errorMessage"] == ""
        assert answer["nodeScore"] is not None
        return dict(answer["nodeScore"])

    async def turn(self) -> None:
        """The adapter passes once."""
        await self.kube.seen()
        await self.loop.run_pass(full=False)

    def asked(self) -> Job:
        """The job of the last Place."""
        job: Job = [request for name, request in self.oracle.calls if name == "place"][-1].jobs[0]
        return job


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    kube = FakeKube()
    for name in ("n1", "n2", "n3"):
        kube.add_node(fake_node(name, 8))
    rules = GangRules(manage=getattr(request, "param", Manage.GROUPS))
    host = KubernetesHost(cast(KubeClient, kube), rules, NodeReader(rules.gpu_resources))
    watching = asyncio.ensure_future(host.run())
    server = await OracleServer().start()
    settings = AdapterSettings("test", release_after_s=0.0, retry_s=0.0, decide_budget_s=5.0)
    async with AsyncClient(server.target) as client:
        loop = AdapterLoop(host, client, settings)
        await loop.run_pass(full=True)
        face = Face(Extender(host, 0.0), VolcanoExtender(host, 0.0), loop.metrics, host.is_synced)
        async with TestClient(ReadyServer(face.server(ListenConfig(is_volcano_served=True)))) as http:
            yield Bench(http, loop, host, server, kube)
        await host.writer.drain()
    await server.stop()
    watching.cancel()


@pytest.mark.parametrize("spelled", [dict, in_go])
@pytest.mark.parametrize("release", RELEASES)
async def test_a_group_is_admitted_before_it_has_pods_and_its_pods_are_sent_where_decided(
    bench: Bench, release: str, spelled: Spelled
) -> None:
    assert await bench.enqueueable(job_info(release), spelled) == -1  # asked for the first time: not known yet
    await bench.turn()
    assert [await bench.enqueueable(job_info(release), spelled) for _ in range(3)] == [1, 1, 1]
    job = bench.asked()
    assert job.id == "default/train/9f1c2d3e"
    assert job.queue == "research"
    assert [(group.count, group.demand.gpus, group.demand.cpu_cores) for group in job.groups] == [(2, 2, 4)]
    decided = sorted(task.node for task in bench.oracle.decided[job.id][-1])
    for index in range(2):
        bench.make_pod(f"train-{index}")
    scores = [await bench.prioritize(task_info(release, f"train-{index}")) for index in range(2)]
    assert sorted(name for score in scores for name in score) == decided
    assert {value for score in scores for value in score.values()} == {DECIDED_SCORE}
    assert [await bench.prioritize(task_info(release, f"train-{index}")) for index in range(2)] == scores
    assert len(bench.oracle.decided) == 1


@pytest.mark.parametrize("release", RELEASES)
async def test_a_waiting_group_waits_and_is_admitted_when_it_turns(bench: Bench, release: str) -> None:
    bench.oracle.waits.add("*")
    await bench.enqueueable(job_info(release))
    await bench.turn()
    assert await bench.enqueueable(job_info(release)) == -1
    bench.oracle.waits.clear()
    await bench.turn()
    assert await bench.enqueueable(job_info(release)) == 1


async def test_answers_come_from_memory_while_the_service_hangs(bench: Bench) -> None:
    """Volcano asks about one group after the other: each answer is due within 50 ms, even if the service hangs."""
    await bench.enqueueable(job_info("1.16"))
    await bench.turn()
    bench.oracle.blocked = asyncio.Event()
    assert await bench.enqueueable(job_info("1.16", "other")) == -1
    turning = asyncio.ensure_future(bench.turn())
    took_s = []
    for _ in range(31):
        started_s = time.perf_counter()
        assert await bench.enqueueable(job_info("1.16")) == 1
        assert await bench.enqueueable(job_info("1.16", "other")) == -1
        took_s.append((time.perf_counter() - started_s) / 2)
    assert not turning.done()
    assert statistics.median(took_s) < 0.05
    bench.oracle.blocked.set()
    await turning
    assert await bench.enqueueable(job_info("1.16", "other")) == 1


async def test_without_the_service_volcano_decides_alone(bench: Bench) -> None:
    await bench.server.stop()
    await bench.enqueueable(job_info("1.13"))
    await bench.turn()
    assert await bench.enqueueable(job_info("1.13")) == 0
    assert await bench.prioritize(task_info("1.13", "train-0")) == {}


@pytest.mark.parametrize("spelled", [dict, in_go])
async def test_roles_share_the_sum_and_parameter_servers_get_no_gpu(bench: Bench, spelled: Spelled) -> None:
    info = job_info(
        "1.15",
        members=3,
        minTaskMember={"ps": 1, "worker": 2},
        minResources={"requests.cpu": "12", GPU: "8", "limits.cpu": "24", "count/pods": "3"},
    )
    await bench.enqueueable(info, spelled)
    await bench.turn()
    groups = {group.role: (group.count, group.demand.gpus, group.demand.cpu_cores) for group in bench.asked().groups}
    assert sorted(groups.values()) == [(1, 0, 4), (2, 4, 4)]


async def test_pods_that_are_there_say_what_they_need(bench: Bench) -> None:
    info = job_info("1.16")
    info["Tasks"] = {"uid-train-0": task_info("1.16", "train-0") | {"Resreq": resource(1, 5)}}
    bench.make_group(info)
    bench.make_pod("train-0", gpus=5)
    await bench.turn()  # its size is read
    await bench.enqueueable(info)
    await bench.turn()
    assert [group.demand.gpus for group in bench.asked().groups] == [5]


async def test_the_pods_volcano_binds_are_followed_to_their_end(bench: Bench) -> None:
    await bench.enqueueable(job_info("1.13"))
    await bench.turn()
    for index in range(2):
        document = bench.make_pod(f"train-{index}")
        task = task_info("1.13", f"train-{index}") | {"UID": document["metadata"]["uid"], "Pod": document}
        (node,) = await bench.prioritize(task)
        bench.kube.bind(f"/api/v1/namespaces/default/pods/train-{index}", node, {})
    await bench.turn()
    for index in range(2):
        bench.kube.set_phase(f"/api/v1/namespaces/default/pods/train-{index}", "Succeeded")
    await bench.turn()
    events = [(event.kind, list(event.placement)) for event in bench.oracle.events]
    assert events == [(2, []), (4, [])]  # started as decided, finished
    assert bench.oracle.held == {}


@pytest.mark.parametrize("spelled", [dict, in_go])
async def test_groups_that_opted_out_are_abstained_from(bench: Bench, spelled: Spelled) -> None:
    info = job_info("1.15")
    info["PodGroup"]["metadata"]["annotations"] = {"placewise.dev/ignore": "true"}
    assert await bench.enqueueable(info, spelled) == 0
    bench.make_pod("train-0")
    await bench.turn()
    await bench.turn()
    assert await bench.enqueueable(info, spelled) == 0  # also once it has pods
    assert await bench.prioritize(task_info("1.15", "x", job="default/unknown")) == {}


@pytest.mark.parametrize("body", [{}, {"job": None}, {"job": {"PodGroup": {}}}, {"job": {"Name": "x"}}])
async def test_what_cannot_be_read_is_no_success(bench: Bench, body: dict[str, Any]) -> None:
    response = await bench.http.post("/volcano/jobEnqueueable", json=body)
    assert response.status == 400


async def test_a_body_that_is_nested_too_deep_is_no_error_of_ours(bench: Bench) -> None:
    response = await bench.http.post("/volcano/jobEnqueueable", data=b"[" * 100_000)
    assert response.status == 400


async def test_a_group_that_only_a_caller_knows_becomes_no_gang(bench: Bench) -> None:
    for number in range(5):
        assert await bench.ask(job_info("1.16", f"ghost-{number}")) == 0
    assert await bench.ask(job_info("1.16", "../../../../../api/v1/secrets")) == 0
    await bench.turn()
    assert bench.host.pods.book.gangs == {}
    assert [name for name, _ in bench.oracle.calls if name == "place"] == []
    text = await (await bench.http.get("/metrics")).text()
    assert 'placewise_kubernetes_refused_total{reason="unknown_group"} 6' in text


async def test_a_payload_says_nothing_of_a_group_but_its_name(bench: Bench) -> None:
    bench.make_group(job_info("1.16"))
    forged = job_info("1.16", members=3, minResources={GPU: "24"})
    forged["Tasks"] = {"uid-train-0": task_info("1.16", "train-0") | {"Resreq": resource(1, 8)}}
    await bench.ask(forged)
    await bench.turn()
    assert [(group.count, group.demand.gpus) for group in bench.asked().groups] == [(2, 2)]


async def test_a_pod_that_only_a_caller_knows_takes_no_task(bench: Bench) -> None:
    await bench.enqueueable(job_info("1.16"))
    await bench.turn()
    for number in range(3):
        assert await bench.prioritize(task_info("1.16", f"ghost-{number}")) == {}
    bench.make_pod("train-0")
    assert len(await bench.prioritize(task_info("1.16", "train-0"))) == 1
    assert sum(len(gang.pods) for gang in bench.host.pods.book.gangs.values()) == 1


async def test_without_the_api_server_a_group_is_not_admitted_yet(bench: Bench) -> None:
    bench.make_group(job_info("1.16"))
    bench.kube.is_reachable = False
    assert await bench.ask(job_info("1.16")) == -1
    bench.kube.is_reachable = True
    await bench.ask(job_info("1.16"))
    await bench.turn()
    assert await bench.ask(job_info("1.16")) == 1


async def test_more_groups_at_once_than_volcano_asks_about_are_not_looked_up(bench: Bench) -> None:
    is_answered = asyncio.Event()
    asked: list[str] = []

    async def hang(path: str, **_: str) -> dict[str, Any]:
        asked.append(path)
        await is_answered.wait()
        return {"metadata": {"uid": "u"}}

    bench.kube.get = hang  # type: ignore[method-assign]
    references = [GangRef(Source.VOLCANO, "default", f"g{number}") for number in range(40)]
    looking = [asyncio.ensure_future(bench.host.groups.find(reference)) for reference in references]
    await asyncio.sleep(0)
    is_answered.set()
    found = await asyncio.gather(*looking, return_exceptions=True)
    assert len(asked) == 32
    assert [type(answer) for answer in found] == [GroupFacts] * 32 + [KubeUnreachableError] * 8


@pytest.mark.parametrize("bench", [Manage.LABELLED], indirect=True)
async def test_where_only_labelled_groups_are_decided_their_pods_need_no_label(bench: Bench) -> None:
    assert await bench.enqueueable(job_info("1.16", "unlabelled")) == 0
    info = job_info("1.16")
    info["PodGroup"]["metadata"]["labels"] = {"placewise.dev/job": "train"}
    await bench.enqueueable(info)
    await bench.turn()
    bench.make_pod("train-0")
    assert len(await bench.prioritize(task_info("1.16", "train-0"))) == 1


async def test_nodes_reach_the_service_before_anything_is_asked(bench: Bench) -> None:
    assert {name: node.state for name, node in bench.oracle.nodes.items()} == dict.fromkeys(
        ("n1", "n2", "n3"), Node.READY
    )
