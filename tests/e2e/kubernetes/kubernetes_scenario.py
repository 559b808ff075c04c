"""Steps of the end-to-end tests on a real control plane: run the adapter, make gangs, watch them being bound."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from tests.e2e.kubernetes.kubernetes_cluster import ADAPTER_TOKEN, ADMIN_TOKEN, ControlPlane, fake_node
from tests.e2e.kubernetes.kubernetes_cluster import pod as fake_pod

from placewise_client.http1 import HttpPool
from placewise_kubernetes.kube.client import KubeAccess, KubeClient

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
NODES = 30
GPUS_PER_NODE = 8
POLL_S = 0.02
NODE_NAME = b'"nodeName":'
REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass
class AdapterProcess:
    """`placewise-kubernetes` as a process of its own, with the rights that the manifests give it and no more.

    Its callers show a certificate, as shipped. `api_url` is another way to the API server than the straight one.
    """

    plane: ControlPlane
    port: int
    name: str = "adapter"
    api_url: str = ""

    def __post_init__(self) -> None:
        self._client = self.plane.authority.issue(f"{self.name}-client")

    def start(self, service: str, **config: Any) -> None:
        """Starts it against a decision service."""
        certificate, key = self.plane.authority.issue(self.name)
        listen: dict[str, Any] = {
            "port": self.port,
            "certificate_path": str(certificate),
            "key_path": str(key),
            "client_ca_path": str(self.plane.authority.ca_path),
        } | config.pop("listen", {})
        adapter = {"retry_s": 0.25, "decide_budget_s": 2.0} | config.pop("adapter", {})
        document = {
            "cluster": "e2e",
            # As shipped: the real Lease, by the real Role.
            "lease": "placewise/placewise-kubernetes",
            "service": {"targets": [service]},
            "listen": listen,
            # Far beyond need: a machine that is busy with other things must not turn a test into another one.
            "fail_open_s": 5.0,
            "adapter": adapter,
        } | config
        path = self.plane.root / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(document))
        kubeconfig = self.plane.root / f"{self.name}.kubeconfig"
        kubeconfig.write_text(json.dumps(self.plane.kubeconfig(ADAPTER_TOKEN, self.api_url)))
        command = [sys.executable, "-m", "placewise_kubernetes.cli", "--config", str(path)]
        self.plane.start_process(
            self.name, *command, "--kubeconfig", str(kubeconfig), milli_cpu=_chart_milli_cpu(), cwd=REPOSITORY
        )

    async def ready(self) -> None:
        """Waits until nodes and pods are listed."""
        for _ in range(500):
            with suppress(OSError):
                if await asyncio.to_thread(self.get, "/readyz") == "ok\n":
                    return
            await asyncio.sleep(POLL_S)
        raise TimeoutError(self.plane.log(self.name)[-3000:])

    def get(self, path: str) -> str:
        """A page of the adapter's own."""
        return self._call(path, None)

    def post(self, path: str, body: Any) -> Any:
        """A scheduler's call."""
        return json.loads(self._call(path, json.dumps(body).encode()))

    def _call(self, path: str, data: bytes | None) -> str:
        context = self.plane.tls()
        context.load_cert_chain(*self._client)
        url = f"https://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, data=data, context=context, timeout=5) as response:
            return str(response.read().decode())

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        self.plane.stop_process(self.name)

    def kill(self) -> None:
        self.plane.kill_process(self.name)

    def extender(self) -> dict[str, Any]:
        """The extender's part of a kube-scheduler configuration."""
        certificate, key = self._client
        tls = {"caFile": str(self.plane.authority.ca_path), "certFile": str(certificate), "keyFile": str(key)}
        return {
            "urlPrefix": f"https://127.0.0.1:{self.port}",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "weight": 1,
            "nodeCacheCapable": True,
            "httpTimeout": "10s",
            "ignorable": True,
            "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": False}],
            "enableHTTPS": True,
            "tlsConfig": tls,
        }


def _chart_milli_cpu() -> int:
    """The resource requests of the adapter's chart."""
    values = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "chart" / "values.yaml").read_text())
    return int(values["resources"]["requests"]["cpu"].removesuffix("m"))


@dataclass
class Watched:
    """When each pod was made and bound, as an observer of the API sees it. Times are monotonic seconds.

    It shares the processors with the system under test: work done before or left out takes no time from that.
    """

    plane: ControlPlane
    kube: KubeClient
    pool: HttpPool
    created_s: dict[str, float] = field(default_factory=dict)
    bound_s: dict[str, float] = field(default_factory=dict)
    node: dict[str, str] = field(default_factory=dict)

    async def create(self, pods: Iterable[dict[str, Any]]) -> None:
        """Makes pods as the controller of batch Jobs does: one, then two at once, then four, and so on."""
        left, at_once = [(names_of([pod])[0], json.dumps(pod).encode()) for pod in pods], 1
        while left:
            batch, left = left[:at_once], left[at_once:]
            await asyncio.gather(*(self._create(name, body) for name, body in batch))
            at_once *= 2

    async def make_job(self, name: str, pods: list[dict[str, Any]]) -> None:
        """Makes the batch Job that these pods, which are still to be created, are of."""
        owner = _owner(await self.kube.create(JOBS, _batch_job(name, len(pods), pods[0])))
        for document in pods:
            document["metadata"]["ownerReferences"] = [owner]

    async def _create(self, name: str, body: bytes) -> None:
        answer = await self.pool.request("POST", PODS, self.plane.headers(), body)
        self.created_s[name] = time.monotonic()
        assert answer.status == 201, answer.body

    async def until_bound(self, names: Iterable[str], limit_s: float = 30.0) -> None:
        """Waits until all of these pods have a node; raises TimeoutError with those that have none."""
        names = list(names)
        async with asyncio.timeout(limit_s):
            while True:
                missing = [name for name in names if name not in self.node]
                if not missing:
                    return
                with suppress(TimeoutError):
                    await asyncio.sleep(POLL_S)

    def latencies_ms(self, names: Iterable[str]) -> list[float]:
        """From the answer to the creation to the sight of the binding, sorted."""
        return sorted((self.bound_s[name] - self.created_s[name]) * 1e3 for name in names)

    def gang_latencies_ms(self, names: Iterable[str]) -> list[float]:
        """Of each gang of these pods: from the creation of its last pod to the last binding."""
        gangs: dict[str, list[str]] = {}
        for name in names:
            gangs.setdefault(name.rsplit("-", 1)[0], []).append(name)
        return [
            (max(self.bound_s[name] for name in pods) - max(self.created_s[name] for name in pods)) * 1e3
            for pods in gangs.values()
        ]

    def on_nodes(self, gang: str) -> Counter[str]:
        """Pods of a gang by node."""
        return Counter(node for name, node in self.node.items() if name.rsplit("-", 1)[0] == gang)

    async def follow(self) -> None:
        """Lists and watches pods until it is cancelled. The API server ends a watch that reads too slowly."""
        while True:
            items, version = await self.kube.list_all(PODS)
            for name in self.node.keys() - {item["metadata"]["name"] for item in items}:
                del self.node[name]
            for item in items:
                self._see({"type": "ADDED", "object": item}, time.monotonic())
            self.kube_ready.set()
            await self._watch(version)

    async def _watch(self, version: str) -> None:
        url, context = f"{self.plane.url}{PODS}?watch=true&resourceVersion={version}", self.plane.tls()
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.get(url, headers=self.plane.headers(), ssl=context) as response,
        ):
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if NODE_NAME in line:  # nothing else is of interest, and reading JSON takes time
                        self._see(json.loads(line), time.monotonic())

    def _see(self, event: dict[str, Any], now_s: float) -> None:
        name, node = event["object"]["metadata"]["name"], event["object"]["spec"].get("nodeName")
        if event["type"] == "DELETED":
            self.node.pop(name, None)
        elif node and name not in self.node:
            self.node[name], self.bound_s[name] = node, now_s

    kube_ready: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def watching(plane: ControlPlane) -> AsyncIterator[Watched]:
    """An observer with administrator's rights, who leaves no pod behind."""
    access = KubeAccess(plane.url, str(plane.authority.ca_path), ADMIN_TOKEN)
    async with KubeClient(access) as kube:
        watched = Watched(plane, kube, HttpPool(plane.url.removeprefix("https://"), plane.tls()))
        task = asyncio.create_task(watched.follow())
        await watched.kube_ready.wait()
        try:
            yield watched
        finally:
            task.cancel()
            await watched.pool.close()
            await asyncio.to_thread(remove_pods, plane)


def remove_pods(plane: ControlPlane) -> None:
    """Deletes every pod at once, without a grace period that no kubelet would end."""
    options = {"gracePeriodSeconds": 0}
    plane.request("DELETE", PODS, options)


def make_nodes(plane: ControlPlane, count: int = NODES) -> None:
    """Fake nodes n00 …"""
    for index in range(count):
        plane.request("POST", "/api/v1/nodes", fake_node(f"n{index:02d}", GPUS_PER_NODE))


def finish(plane: ControlPlane, names: Sequence[str], phase: str = "Succeeded") -> None:
    """Acts as a kubelet after the end of these pods' containers."""
    body = {"status": {"phase": phase}}
    for name in names:
        plane.request("PATCH", f"{PODS}/{name}/status", body, "application/merge-patch+json")


def names_of(pods: Iterable[dict[str, Any]]) -> list[str]:
    return [document["metadata"]["name"] for document in pods]


def events_of(plane: ControlPlane, pod: str) -> list[str]:
    """Messages of a pod's events, as `kubectl describe pod` shows them."""
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{pod}"
    return [item["message"] for item in plane.request("GET", path)["items"]]


def described(plane: ControlPlane, pod: str) -> str | None:
    """`kubectl describe pod`; None without kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return None
    config = plane.root / "admin.kubeconfig"
    config.write_text(json.dumps(plane.kubeconfig(ADMIN_TOKEN)))
    command = [kubectl, "--kubeconfig", str(config), "describe", "pod", pod]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def make_pod_group(plane: ControlPlane, name: str, size: int) -> str:
    """A PodGroup as the scheduler-plugins project defines it, with the definition itself at the first call."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with suppress(urllib.error.HTTPError):
        plane.request("POST", definitions, POD_GROUP_DEFINITION)
    path = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    body = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size},
    }
    for _ in range(100):
        try:
            plane.request("POST", path, body)
        except urllib.error.HTTPError:
            time.sleep(0.1)  # the definition is not served yet
        else:
            return name
    raise TimeoutError("PodGroups are not served")


def make_batch_job(plane: ControlPlane, name: str, parallelism: int) -> dict[str, Any]:
    """A batch Job, which no controller works on here; the owner reference of its pods."""
    return _owner(plane.request("POST", JOBS, _batch_job(name, parallelism, fake_pod(name))))


def _batch_job(name: str, parallelism: int, pod: dict[str, Any]) -> dict[str, Any]:
    """A Job whose pods are like this one."""
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": parallelism,
            "template": {"metadata": metadata, "spec": pod["spec"]},
        },
    }


def _owner(made: dict[str, Any]) -> dict[str, Any]:
    """The reference by which the pods of a Job name it."""
    metadata = made["metadata"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return reference | {"controller": True}


POD_GROUP_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        # The group is reserved for Kubernetes' own definitions unless this says that nobody approved it.
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"minMember": {"type": "integer"}}}},
                    }
                },
            }
        ],
    },
}
