"""The extender's HTTP face: what kube-scheduler sends, and what it must get back."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient
from tests.e2e.kubernetes_cluster import fake_node, gang, pod
from tests.fakes.http_server import ReadyServer
from tests.fakes.kubernetes_api import FakeKube

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Resources, TaskGroup
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import NativeJob, Placement, Stage
from placewise_kubernetes import names
from placewise_kubernetes.extender import Extender
from placewise_kubernetes.gang import GangRules
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube import KubeClient
from placewise_kubernetes.nodes import NodeReader
from placewise_kubernetes.server import build_server
from placewise_kubernetes.volcano import VolcanoExtender

RULES = GangRules()
NODES = ["n1", "n2", "n3", "n4"]


class Bench:
    """The adapter's HTTP server on a cluster in memory; the test decides in the service's place."""

    def __init__(self, http: TestClient[Any, Any], host: KubernetesHost, kube: FakeKube) -> None:
        self.http = http
        self.host = host
        self.kube = kube
        self._versions = itertools.count(1)

    async def filter(self, document: dict[str, Any], offered: list[str] = NODES) -> dict[str, Any]:
        answer: dict[str, Any] = await self.post("/filter", {"Pod": document, "Nodes": None, "NodeNames": offered})
        return answer

    async def post(self, path: str, body: Any) -> Any:
        response = await self.http.post(path, json=body)
        assert response.status == 200, await response.text()
        return await response.json()

    async def decide(self, *nodes: str) -> None:
        """Every waiting gang is placed like this."""
        for job in await self.waiting():
            tasks = [
                Assignment(task=f"worker-{n}", role=TaskGroup.WORKER, node=node, demand=Resources(gpus=8))
                for n, node in enumerate(nodes)
            ]
            await self.host.apply(job, Placement(tuple(tasks), decision_id="d-1"))

    async def waiting(self) -> list[NativeJob]:
        await self.kube.seen()
        return [job for job in self.host.pods.news(full=True) if job.stage is Stage.WAITING]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    kube = FakeKube()
    for name in NODES:
        kube.add_node(fake_node(name, 8))
    host = KubernetesHost(cast(KubeClient, kube), RULES, NodeReader(RULES.gpu_resources))
    watching = asyncio.ensure_future(host.run())
    extender = Extender(host, fail_open_s=0.0, is_open_failing=False)
    server = build_server(extender, VolcanoExtender(host, 0.0), AdapterMetrics(), host.is_synced)
    async with TestClient(ReadyServer(server)) as http:
        await kube.seen()
        yield Bench(http, host, kube)
        await host.writer.drain()
    watching.cancel()


async def test_a_waiting_pod_gets_no_node_and_the_reason_for_each(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    answer = await bench.filter(document)
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == dict.fromkeys(NODES, "Placewise: a decision is under way")
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    (job,) = await bench.waiting()
    await bench.host.explain(job, "waiting: insufficient gpu on 4 nodes")
    assert set((await bench.filter(document))["FailedNodes"].values()) == {
        "Placewise: waiting: insufficient gpu on 4 nodes"
    }


async def test_a_refused_pod_is_woken_when_its_gang_is_placed(bench: Bench) -> None:
    documents = [bench.kube.add_pod(item) for item in gang("g", 2)]
    await bench.filter(documents[0])
    await bench.decide("n2", "n3")
    await bench.host.writer.drain()
    patched = [(path.rsplit("/", 1)[1], body["metadata"]["annotations"]) for path, body in bench.kube.patches]
    woken = [name for name, notes in patched if names.WAKE in notes]
    assert woken == ["g-0"]  # the other one has not been refused: it is yet to come


async def test_every_pod_of_a_gang_gets_its_own_task_and_keeps_it(bench: Bench) -> None:
    documents = [bench.kube.add_pod(item) for item in gang("g", 3)]
    await bench.decide("n4", "n4", "n2")
    answers = [(await bench.filter(document))["NodeNames"] for document in documents]
    assert sorted(map(tuple, answers)) == [("n2",), ("n4",), ("n4",)]
    assert [(await bench.filter(document))["NodeNames"] for document in documents] == answers


async def test_a_decided_node_that_is_not_offered_is_never_named(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n4")
    answer = await bench.filter(document, ["n1", "n2"])
    assert answer["NodeNames"] == []
    assert set(answer["FailedNodes"]) == {"n1", "n2"}
    assert "n4 is not one the scheduler offers" in answer["FailedNodes"]["n1"]


async def test_prioritize_puts_the_decided_node_on_top(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n3")
    scores = await bench.post("/prioritize", {"Pod": document, "NodeNames": NODES})
    assert scores == [{"Host": name, "Score": 10 if name == "n3" else 0} for name in NODES]


async def test_bind_creates_the_binding_with_the_decision(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n3")
    await bench.filter(document)
    uid = document["metadata"]["uid"]
    body = {"PodName": "g-0", "PodNamespace": "default", "PodUID": uid, "Node": "n3"}
    assert await bench.post("/bind", body) == {"Error": ""}
    assert await bench.post("/bind", body) == {"Error": ""}  # a repeat is no error
    assert "gone" in (await bench.post("/bind", body | {"Node": "n1"}))["Error"]
    bound = bench.kube.pods["/api/v1/namespaces/default/pods/g-0"]
    assert bound["spec"]["nodeName"] == "n3"
    assert bound["metadata"]["annotations"][names.DECISION] == "d-1"


async def test_pods_of_others_pass_but_do_not_take_what_a_gang_was_promised(bench: Bench) -> None:
    for item in gang("g", 2, gpus=8):
        bench.kube.add_pod(item)
    foreign = bench.kube.add_pod(pod("foreign", gpus=4))
    assert (await bench.filter(foreign))["NodeNames"] == NODES
    await bench.decide("n1", "n2")
    answer = await bench.filter(foreign)
    assert answer["NodeNames"] == ["n3", "n4"]
    assert set(answer["FailedNodes"]) == {"n1", "n2"}
    assert (await bench.filter(bench.kube.add_pod(pod("cpu", gpus=0))))["NodeNames"] == NODES


async def test_an_incomplete_gang_says_what_it_lacks(bench: Bench) -> None:
    (item,) = gang("g", 1, labels={names.ROLE: "worker"}, annotations={names.GANG: "worker=1,ps=1"})
    answer = await bench.filter(bench.kube.add_pod(item))
    assert set(answer["FailedNodes"].values()) == {"Placewise: no ps pod of the gang exists yet"}


async def test_a_gang_without_a_decision_in_time_is_let_go_for_good(bench: Bench) -> None:
    documents = [bench.kube.add_pod(item) for item in gang("g", 2)]
    await bench.kube.seen()
    opening = Extender(bench.host, fail_open_s=0.0)
    arguments = {"Pod": documents[0], "NodeNames": NODES}
    assert (await opening.filter(arguments))["NodeNames"] == NODES
    await bench.decide("n1", "n2")
    assert (await opening.filter({"Pod": documents[1], "NodeNames": NODES}))["NodeNames"] == NODES
    await bench.host.writer.drain()
    notes = bench.kube.pods["/api/v1/namespaces/default/pods/g-1"]["metadata"]["annotations"]
    assert notes[names.RELEASED] == "true"  # so that a restarted adapter knows


async def test_a_gang_of_hundreds_of_nodes_does_not_get_hundreds_of_reasons(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    answer = await bench.filter(document, [f"x{n}" for n in range(5000)])
    assert answer["NodeNames"] == []
    assert len(answer["FailedNodes"]) == 200


@pytest.mark.parametrize(
    "body",
    [[], {}, {"Pod": {}}, {"Pod": {"metadata": {}}, "NodeNames": []}, {"Pod": None, "NodeNames": []}, "x"],
)
async def test_bad_calls_are_refused_and_change_nothing(bench: Bench, body: Any) -> None:
    response = await bench.http.post("/filter", json=body)
    assert response.status == 400
    assert bench.host.pods.book.gangs == {}


async def test_without_names_the_configuration_is_named(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    response = await bench.http.post("/filter", json={"Pod": document, "Nodes": {"items": []}})
    assert "nodeCacheCapable" in await response.text()


async def test_health_and_metrics(bench: Bench) -> None:
    assert (await bench.http.get("/healthz")).status == 200
    assert (await bench.http.get("/readyz")).status == 200
    head = await bench.http.head("/readyz")
    assert (head.status, await head.read()) == (200, b"")
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.filter(document)
    text = await (await bench.http.get("/metrics")).text()
    assert "placewise_kubernetes_filter_seconds_count 1" in text
    assert "placewise_adapter_overrides_total" in text


async def test_a_call_may_be_large_and_a_page_unknown(bench: Bench) -> None:
    document = pod("plain", gpus=0, annotations={"note": "x" * 2**21})  # aiohttp by itself reads a mebibyte and no more
    document["metadata"]["uid"] = "plain"
    body = io.BytesIO(json.dumps({"Pod": document, "Nodes": None, "NodeNames": NODES}).encode())
    answer = await bench.http.post("/filter", data=body)
    assert answer.status == 200
    assert (await answer.json())["NodeNames"] == NODES
    assert (await bench.http.get("/filter")).status == 404
    assert (await bench.http.get("/readyz")).status == 200
