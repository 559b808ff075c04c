"""The extender's HTTP face: kube-scheduler's requests and the answers they need."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang, pod
from tests.fakes.schedulers.kubernetes_api import FakeKube
from tests.fakes.servers.http_server import ReadyServer

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Resources, TaskGroup
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import NativeJob, Placement, Stage
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.faces.server import BODY_LIMIT_BYTES, Face
from placewise_kubernetes.faces.volcano import VolcanoExtender
from placewise_kubernetes.gang.mirror import MOST_AWAITED
from placewise_kubernetes.gang.passed import PassedPods
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeClient
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.kube.objects import Pod, parse_pod

RULES = GangRules()
NODES = ["n1", "n2", "n3", "n4"]


class Bench:
    """The adapter's HTTP server on a cluster in memory; the test decides in the service's place."""

    def __init__(self, http: TestClient[Any, Any], host: KubernetesHost, kube: FakeKube) -> None:
        self.http = http
        self.port = http.port
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

    async def bind(self, document: dict[str, Any], node: str, **other: Any) -> str:
        """The error that kube-scheduler gets for its bindVerb; empty: the pod is bound."""
        metadata = document["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        error: str = (await self.post("/bind", body | {"Node": node} | other))["Error"]
        return error

    async def released(self) -> None:
        """Every waiting gang is left to its scheduler, as when the service is away."""
        for job in await self.waiting():
            await self.host.release(job)
        await self.host.writer.drain()
        await self.kube.seen()

    def node_of(self, name: str) -> str:
        return str(self.kube.pods[f"/api/v1/namespaces/default/pods/{name}"]["spec"].get("nodeName", ""))

    async def refused(self, reason: str) -> int:
        """What /metrics says was refused for this reason."""
        text = await (await self.http.get("/metrics")).text()
        found = [line for line in text.splitlines() if f'refused_total{{reason="{reason}"}}' in line]
        return int(float(found[0].rsplit(" ", 1)[1])) if found else 0

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


@asynccontextmanager
async def running_bench(listen: ListenConfig, *, is_caller_known: bool = False) -> AsyncIterator[Bench]:
    kube = FakeKube()
    for name in NODES:
        kube.add_node(fake_node(name, 8))
    host = KubernetesHost(cast(KubeClient, kube), RULES, NodeReader(RULES.gpu_resources))
    watching = asyncio.ensure_future(host.run())
    extender = Extender(host, fail_open_s=0.0, is_open_failing=False, is_caller_known=is_caller_known)
    face = Face(extender, VolcanoExtender(host, 0.0), AdapterMetrics(), host.is_synced)
    async with TestClient(ReadyServer(face.server(listen))) as http:
        await kube.seen()
        yield Bench(http, host, kube)
        await host.writer.drain()
    watching.cancel()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Serves /bind, for callers that show no certificate."""
    async with running_bench(ListenConfig(is_bind_served=True)) as bench:
        yield bench


@pytest.fixture
async def guarded() -> AsyncIterator[Bench]:
    """Serves /bind, for callers that have shown a certificate."""
    async with running_bench(ListenConfig(is_bind_served=True), is_caller_known=True) as bench:
        yield bench


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
    patches = [(path.removesuffix("/status"), body) for path, body in bench.kube.patches]
    patched = [(path.rsplit("/", 1)[1], body["metadata"]["annotations"]) for path, body in patches]
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
    assert "the scheduler does not offer the decided node n4" in answer["FailedNodes"]["n1"]


async def test_prioritize_puts_the_decided_node_on_top(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n3")
    scores = await bench.post("/prioritize", {"Pod": document, "NodeNames": NODES})
    assert scores == [{"Host": name, "Score": 10 if name == "n3" else 0} for name in NODES]


async def test_bind_creates_the_binding_with_the_decision(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n3")
    await bench.filter(document)
    assert await bench.bind(document, "n3") == ""
    assert await bench.bind(document, "n3") == ""  # a repeat is no error
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


async def test_a_gang_without_a_decision_in_time_is_released_for_good(bench: Bench) -> None:
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


async def test_a_call_may_be_as_large_as_the_limit_and_a_page_unknown(bench: Bench) -> None:
    document = pod("plain", gpus=0)
    document["metadata"]["uid"] = "plain"
    body = json.dumps({"Pod": document, "Nodes": None, "NodeNames": NODES}).encode()
    answer = await bench.http.post("/filter", data=body.ljust(BODY_LIMIT_BYTES))
    assert answer.status == 200
    assert (await answer.json())["NodeNames"] == NODES
    assert (await bench.http.get("/filter")).status == 404
    assert (await bench.http.get("/readyz")).status == 200


@pytest.mark.parametrize(
    ("path", "length", "limit", "status", "reason"),
    [
        ("/filter", f"Content-Length: {2**20 + 1}", 2**20, "413", "body_too_large"),
        ("/prioritize", f"Content-Length: {2**40}", 2**20, "413", "body_too_large"),
        ("/bind", f"Content-Length: {2**20 + 1}", 2**20, "413", "body_too_large"),
        ("/volcano/prioritize", f"Content-Length: {16 * 2**20 + 1}", 16 * 2**20, "413", "body_too_large"),
        ("/volcano/jobEnqueueable", f"Content-Length: {16 * 2**20 + 1}", 16 * 2**20, "413", "body_too_large"),
        ("/filter", "Transfer-Encoding: chunked", 2**20, "411", "no_length"),
    ],
)
async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(
    path: str, length: str, limit: int, status: str, reason: str
) -> None:
    async with running_bench(ListenConfig(is_bind_served=True, is_volcano_served=True)) as bench:
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
        answer = (await asyncio.wait_for(reader.read(), 5)).decode()  # it ends: the connection is closed
        assert answer.split(" ", 2)[1] == status
        assert str(limit) in answer
        writer.close()
        assert await bench.refused(reason) == 1


@pytest.mark.parametrize(
    ("allowed", "length", "status"),
    [({}, 2**21, 200), ({"volcano_body_bytes": 2**25}, 2**24 + 1, 200), ({"volcano_body_bytes": 99}, 100, 413)],
)
async def test_volcano_may_be_allowed_more_or_less(allowed: dict[str, Any], length: int, status: int) -> None:
    body = b'{"task": {"UID": "any", "Job": "default/any"}}'.ljust(length)
    async with running_bench(ListenConfig(is_volcano_served=True, **allowed)) as bench:
        assert (await bench.http.post("/volcano/prioritize", data=io.BytesIO(body))).status == status


async def test_a_packed_body_is_not_unpacked(bench: Bench) -> None:
    document = pod("plain", gpus=0, annotations={"note": "x" * 2**19})
    body = zlib.compress(json.dumps({"Pod": document, "NodeNames": NODES}).encode())
    answer = await bench.http.post("/filter", data=body, headers={"Content-Encoding": "deflate"})
    assert answer.status == 400


@pytest.mark.parametrize("path", ["/bind", "/volcano/jobEnqueueable", "/volcano/prioritize"])
async def test_what_is_not_configured_is_not_served(path: str) -> None:
    async with running_bench(ListenConfig(), is_caller_known=True) as bench:
        document = bench.kube.add_pod(pod("plain"))
        body = {"PodName": "plain", "PodNamespace": "default", "PodUID": document["metadata"]["uid"], "Node": "n1"}
        assert (await bench.http.post(path, json=body)).status == 404
        assert bench.kube.bound == []
        assert await bench.refused("not_served") == 1


async def test_health_has_a_port_of_its_own_where_nothing_else_is_answered() -> None:
    async with running_bench(ListenConfig(is_bind_served=True)) as bench:
        extender = Extender(bench.host, fail_open_s=0.0)
        face = Face(extender, VolcanoExtender(bench.host, 0.0), AdapterMetrics(), bench.host.is_synced)
        async with TestClient(ReadyServer(face.health_server())) as http:
            assert [(await http.get(page)).status for page in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
            assert (await http.post("/filter", json={})).status == 404


async def test_a_decided_pod_is_bound_to_its_node_and_to_no_other(bench: Bench) -> None:
    documents = [bench.kube.add_pod(item) for item in gang("g", 2)]
    await bench.decide("n3", "n4")
    assert "decided for n3" in await bench.bind(documents[0], "n1")
    assert "decided for n3" in await bench.bind(documents[0], "n4")
    for other in ({"PodName": "g-1"}, {"PodNamespace": "kube-system"}, {"PodUID": "another"}):
        assert await bench.bind(documents[0], "n3", **other) != ""
    assert bench.kube.bound == []
    assert await bench.bind(documents[0], "n3") == ""
    assert await bench.refused("not_decided") == 2


async def test_a_decision_that_was_taken_back_binds_nothing(bench: Bench) -> None:
    (document,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    await bench.decide("n3")
    assert (await bench.filter(document))["NodeNames"] == ["n3"]
    (job,) = [job for job in bench.host.pods.news(full=True) if job.stage is Stage.APPLIED]
    await bench.host.withdraw(job)
    assert await bench.bind(document, "n3") != ""
    assert bench.kube.bound == []


@pytest.mark.parametrize("annotations", [{}, {names.IGNORE: "true"}])
async def test_nothing_undecided_is_bound_for_a_caller_without_a_certificate(
    bench: Bench, annotations: dict[str, str]
) -> None:
    foreign = bench.kube.add_pod(pod("foreign", annotations=annotations))
    (waiting,) = [bench.kube.add_pod(item) for item in gang("g", 1)]
    assert (await bench.filter(foreign))["NodeNames"] == NODES
    await bench.filter(waiting)
    for document in (foreign, waiting):
        assert "client certificate" in await bench.bind(document, "n1")
    await bench.released()
    assert (await bench.filter(waiting))["NodeNames"] == NODES
    assert "client certificate" in await bench.bind(waiting, "n1")
    assert bench.kube.bound == []
    assert await bench.refused("no_certificate") == 3


async def test_with_a_certificate_a_pod_that_was_let_through_is_bound_where_the_last_filter_call_says(
    guarded: Bench,
) -> None:
    foreign = guarded.kube.add_pod(pod("foreign"))
    documents = [guarded.kube.add_pod(item) for item in gang("g", 2)]
    assert "filter call" in await guarded.bind(foreign, "n1")  # none yet
    assert (await guarded.filter(foreign, ["n1", "n2"]))["NodeNames"] == ["n1", "n2"]
    assert "filter call" in await guarded.bind(foreign, "n3")
    await guarded.filter(foreign, ["n2"])
    assert "filter call" in await guarded.bind(foreign, "n1")  # no longer
    assert "filter call" in await guarded.bind(foreign, "n2", PodName="g-0")
    assert await guarded.bind(foreign, "n2") == ""
    # A waiting pod passes for no caller; once it is released, it does.
    assert (await guarded.filter(documents[0]))["NodeNames"] == []
    assert "filter call" in await guarded.bind(documents[0], "n1")
    await guarded.released()
    assert (await guarded.filter(documents[0], ["n1"]))["NodeNames"] == ["n1"]
    assert await guarded.bind(documents[0], "n1") == ""
    assert [guarded.node_of(name) for name in ("foreign", "g-0", "g-1")] == ["n2", "n1", ""]
    assert await guarded.refused("not_let_through") == 5


async def test_what_was_let_through_is_forgotten_when_the_pod_is_bound_gone_or_told_otherwise(guarded: Bench) -> None:
    documents = [guarded.kube.add_pod(pod(name)) for name in ("bound", "gone", "unlisted", "reported")]
    for document in documents:
        await guarded.filter(document)
    assert remembered(guarded, documents) == ["bound", "gone", "unlisted", "reported"]
    await guarded.bind(documents[0], "n1")
    guarded.kube.remove_pod("/api/v1/namespaces/default/pods/gone")
    await guarded.kube.seen()
    assert remembered(guarded, documents) == ["unlisted", "reported"]
    guarded.host.pods.replace([guarded.host.pods.read(documents[3])])
    assert remembered(guarded, documents) == ["reported"]
    (waiting,) = gang("g", 1)
    metadata = documents[3]["metadata"] | {key: waiting["metadata"][key] for key in ("labels", "annotations")}
    assert (await guarded.filter(waiting | {"metadata": metadata}))["NodeNames"] == []
    assert remembered(guarded, documents) == []


def remembered(bench: Bench, documents: list[dict[str, Any]]) -> list[str]:
    """Pods of which the adapter knows that the last filter call left them n1."""
    pods = [parse_pod(document) for document in documents]
    return [pod.name for pod in pods if bench.host.pods.passed.allows(pod, "n1")]


def test_what_was_let_through_is_remembered_up_to_a_limit() -> None:
    passed = PassedPods(most_names=100)
    pods = [Pod("default", f"p{number}", f"uid-{number}") for number in range(50)]
    for each in pods:
        passed.note(each, ["n1", "n2"])
    kept = [each.name for each in pods if passed.allows(each, "n2")]
    assert kept == [f"p{number}" for number in range(40, 50)]  # each counts as eight names, and its two
    passed.note(pods[49], [f"n{number}" for number in range(90)])
    assert [each.name for each in pods if passed.allows(each, "n2")] == ["p49"]


async def test_pods_of_our_own_scheduler_name_are_bound_by_nobody_else(guarded: Bench) -> None:
    (document,) = [guarded.kube.add_pod(item) for item in gang("g", 1, scheduler=RULES.own_scheduler)]
    await guarded.kube.seen()
    gang_of_pod = guarded.host.pods.book.gang_of(document["metadata"]["uid"])
    assert gang_of_pod is not None
    gang_of_pod.build(RULES)
    gang_of_pod.mark_applied(Placement((Assignment(task="w", role=TaskGroup.WORKER, node="n3"),), decision_id="d-1"))
    assert await guarded.bind(document, "n3") != ""
    assert guarded.kube.bound == []


async def test_a_call_about_a_pod_of_our_own_scheduler_name_does_not_let_its_gang_go(guarded: Bench) -> None:
    (document,) = [guarded.kube.add_pod(item) for item in gang("g", 1, scheduler=RULES.own_scheduler)]
    await guarded.kube.seen()
    opening = Extender(guarded.host, fail_open_s=0.0, is_caller_known=True)
    assert (await opening.filter({"Pod": document, "NodeNames": NODES}))["NodeNames"] == []
    assert [job.key for job in await guarded.waiting()] == ["default/g/00000001"]


@pytest.mark.parametrize(
    "other",
    [
        {"PodName": "x/../../../../../../apis/any"},
        {"PodName": ".."},
        {"PodName": "x%2f..%2fy"},
        {"PodName": "x?y"},
        {"PodName": ""},
        {"PodName": "X"},
        {"PodName": "a" * 254},
        {"PodName": "x\n"},
        {"PodNamespace": "default/pods/x"},
        {"PodNamespace": "a.b"},
        {"PodNamespace": 5},
        {"Node": "../n1"},
    ],
)
async def test_a_name_that_the_api_does_not_know_reaches_no_path(guarded: Bench, other: dict[str, Any]) -> None:
    document = guarded.kube.add_pod(pod("plain"))
    body = {"PodName": "plain", "PodNamespace": "default", "PodUID": document["metadata"]["uid"], "Node": "n1"}
    await guarded.filter(document)
    assert "RFC 1123" in (await guarded.post("/bind", body | other))["Error"]
    assert guarded.kube.posted == []
    assert await guarded.refused("bad_name") == 1


async def test_pods_that_only_a_caller_knows_become_no_gangs(bench: Bench) -> None:
    forged = [document for index in range(5) for document in gang(f"ghost-{index}", 2)]
    for number, document in enumerate(forged):
        document["metadata"] |= {"uid": f"ghost-{number}", "namespace": "default"}
    answers = await asyncio.gather(*(bench.filter(document) for document in forged))
    assert all(answer["NodeNames"] == [] for answer in answers)
    assert bench.host.pods.book.gangs == {}
    assert await bench.waiting() == []
    assert await bench.refused("unknown_pod") == len(forged)


async def test_more_calls_of_unknown_pods_than_a_scheduler_makes_do_not_wait(bench: Bench) -> None:
    waits = [asyncio.ensure_future(bench.host.pods.wait_shown(f"ghost-{number}", 60)) for number in range(MOST_AWAITED)]
    await asyncio.sleep(0)
    assert await bench.host.pods.wait_shown("one-more", 60) is None  # at once
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert await bench.host.pods.wait_shown("one-more", 0) is None


async def test_a_pod_that_its_scheduler_saw_first_is_waited_for(bench: Bench) -> None:
    (item,) = gang("g", 1)
    item["metadata"] |= {"uid": "soon", "namespace": "default"}
    extender = Extender(bench.host, fail_open_s=0.0, is_open_failing=False)
    asked = asyncio.ensure_future(extender.filter({"Pod": item, "NodeNames": NODES}))
    await asyncio.sleep(0)
    bench.kube.add_pod(item)
    assert set((await asked)["FailedNodes"].values()) == {"Placewise: a decision is under way"}
    assert [job.key for job in await bench.waiting()] == ["default/g/soon"]


async def test_a_forged_copy_of_a_known_pod_changes_nothing(bench: Bench) -> None:
    documents = [bench.kube.add_pod(item) for item in gang("g", 2)]
    await bench.decide("n1", "n2")
    forged = documents[0] | {"spec": documents[0]["spec"] | {"nodeName": "n2"}}
    await bench.post("/prioritize", {"Pod": forged, "NodeNames": NODES})
    assert [(await bench.filter(document))["NodeNames"] for document in documents] == [["n1"], ["n2"]]
