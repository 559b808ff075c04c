"""A Kubernetes API of any size over HTTP, in a thread of its own. Its answers are made beforehand, as bytes.

Objects are copies of one node, one running and one waiting pod, with the fields and the sizes that clusters in use
have. Nothing changes: a patch is answered with the pod as it would be, and watchers see it so, too. It counts pages of
lists, writes and events, and the bytes that it sends for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from msgspec import json

from placewise_kubernetes.kube import names

NODES, PODS, JOBS = "/api/v1/nodes", "/api/v1/pods", "/apis/batch/v1/jobs"
COUNTS, BEATS = "/counts", "/beats"
"""Paths of a test's own: GET what was counted since the last time; POST has the first `count` nodes send heartbeats."""
NODE_BYTES, POD_BYTES = 12_288, 8_192
GANG_PODS, GANGS_PER_QUEUE, POOLS = 2, 25, 10
_TIME = "2026-11-21T00:00:00Z"
_NODE_AMOUNTS = {
    "cpu": "64",
    "ephemeral-storage": "1777412096Ki",
    "hugepages-2Mi": "0",
    "memory": "527951832Ki",
    "nvidia.com/gpu": "8",
    "pods": "110",
}
_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_AWAY = [
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for state in ("not-ready", "unreachable")
]
Document = dict[str, Any]


def node_name(index: int) -> str:
    return f"node-{index:06d}"


class RecordedKube:
    """So many nodes, each with a pod that holds all of its GPUs, and so many gangs that wait.

    Gangs of two pods wait at our gate or for a scheduler of our name, with 25 gangs in each queue. Their node affinity
    is one of ten.
    """

    def __init__(self, nodes: int, gangs: int, *, is_gated: bool) -> None:
        node, running, waiting = _text(_node()), _text(_running_pod()), _text(_waiting_pod(is_gated))
        pods = [_filled(running, index=f"{i:06d}") for i in range(nodes)]
        self._waiting = {
            f"gang-{gang:06d}-{task}": _filled(
                waiting, gang=f"{gang:06d}", task=task, pool=gang % POOLS, queue=gang // GANGS_PER_QUEUE
            )
            for gang in range(gangs)
            for task in range(GANG_PODS)
        }
        self._objects: dict[str, list[bytes]] = {
            NODES: [_filled(node, index=f"{i:06d}", pool=i % POOLS) for i in range(nodes)],
            PODS: [*pods, *self._waiting.values()],
            JOBS: [],
        }
        self._watches: dict[str, web.StreamResponse] = {}
        self._counts: Counter[str] = Counter()
        self.port = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Every request comes here."""
        if request.path == COUNTS:
            counts, self._counts = self._counts, Counter()
            return web.Response(body=json.encode(counts))
        if request.path == BEATS:
            for item in self._objects[NODES][: json.decode(await request.read())["count"]]:
                await self._show(NODES, item)
            return web.Response(body=b"{}")
        if request.method == "GET":
            return await self._read(request)
        body = json.decode(await request.read())
        item = self._patched(request.path, body) if request.method == "PATCH" else json.encode(body)
        self._count("write", item)
        if request.method == "PATCH":
            await self._show(PODS, item)
        return web.Response(body=item)

    async def _read(self, request: web.BaseRequest) -> web.StreamResponse:
        objects = self._objects.get(request.path)
        if objects is None:
            status = json.encode({"reason": "NotFound", "message": "the server could not find the requested resource"})
            return web.Response(body=status, status=404)
        if request.query.get("watch"):
            response = web.StreamResponse()
            await response.prepare(request)
            self._watches[request.path] = response
            await asyncio.Event().wait()
        first, most = int(request.query.get("continue", 0)), int(request.query["limit"])
        rest = str(first + most) if first + most < len(objects) else ""
        metadata = json.encode({"resourceVersion": "1", "continue": rest})
        page = b'{"metadata":%b,"items":[%b]}' % (metadata, b",".join(objects[first : first + most]))
        self._count("list", page)
        return web.Response(body=page)

    async def _show(self, path: str, item: bytes) -> None:
        """Sends watchers an object that has changed."""
        event = b'{"type":"MODIFIED","object":%b}\n' % item
        self._count("event", event)
        with contextlib.suppress(ConnectionError):  # a caller that has gone
            await self._watches[path].write(event)

    def _patched(self, path: str, body: Document) -> bytes:
        pod = json.decode(self._waiting[path.removesuffix("/status").rsplit("/", 1)[1]])
        conditions = {item["type"]: item for item in (*pod["status"]["conditions"], *body["status"]["conditions"])}
        pod["status"]["conditions"] = list(conditions.values())
        return json.encode(pod)

    def _count(self, kind: str, answer: bytes) -> None:
        self._counts[f"{kind}s"] += 1
        self._counts[f"{kind}_bytes"] += len(answer)


@contextlib.contextmanager
def recorded_kube(nodes: int, gangs: int, *, is_gated: bool) -> Iterator[int]:
    """The port of such an API on loopback while the block runs."""
    kube = RecordedKube(nodes, gangs, is_gated=is_gated)
    is_up, found = threading.Event(), list[Callable[[], object]]()

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(kube.answer, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        kube.port = runner.addresses[0][1]
        found.append(lambda: loop.call_soon_threadsafe(stop.set))
        is_up.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(30)
    try:
        yield kube.port
    finally:
        found[0]()
        thread.join(30)


def _text(document: Document) -> str:
    return json.encode(document).decode()


def _filled(text: str, **values: object) -> bytes:
    for word, value in values.items():
        text = text.replace(f"<{word}>", str(value))
    return text.encode()


def _padded(document: Document, entries: list[Document], entry: Callable[[int], Document], size: int) -> Document:
    """The document with its managed fields, and with as many entries as bring it to its size in bytes."""
    managed = {"manager": "kubelet", "operation": "Update", "time": _TIME, "fieldsType": "FieldsV1"}
    document["metadata"]["managedFields"] = [{**managed, "fieldsV1": _fields(document)}]
    while len(_text(document)) < size:
        entries.append(entry(len(entries)))
    return document


def _fields(value: Any) -> Document:
    """Managed fields name every field of the object."""
    return {f"f:{name}": _fields(part) for name, part in value.items()} if isinstance(value, dict) else {}


def _metadata(name: str, **more: Any) -> Document:
    return {"name": name, "uid": f"{name}-9f1c-4f0e", "resourceVersion": "1", "creationTimestamp": _TIME, **more}


def _condition(kind: str, status: str, reason: str, message: str = "") -> Document:
    times = {"lastHeartbeatTime": _TIME, "lastTransitionTime": _TIME}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def _node() -> Document:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": "node-<index>",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "pool-<pool>",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.product": "A100",
        "topology.kubernetes.io/zone": "zone-<pool>",
        **{f"feature.node.kubernetes.io/cpu-cpuid.FLAG{i}": "true" for i in range(24)},
    }
    images: list[Document] = []
    pressures = [_condition(f"{kind}Pressure", "False", "Enough") for kind in ("Memory", "Disk", "PID")]
    status = {
        "capacity": _NODE_AMOUNTS,
        "allocatable": _NODE_AMOUNTS,
        "conditions": [*pressures, _condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "node-<index>"}],
        "nodeInfo": {"kernelVersion": "6.8.0", "kubeletVersion": "v1.34.0", "osImage": "Ubuntu 24.04 LTS"},
        "images": images,
    }
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    node = {
        "metadata": _metadata("node-<index>", labels=labels),
        "spec": {"podCIDR": "10.1.0.0/24", "taints": taints},
        "status": status,
    }
    return _padded(node, images, lambda i: {"names": [f"registry.example/image@{i:064x}"], "sizeBytes": 1}, NODE_BYTES)


def _pod(metadata: Document, gpus: int, spec: Document, status: Document) -> Document:
    amounts = {"cpu": str(4 * gpus), "memory": f"{32 * gpus}Gi", "nvidia.com/gpu": str(gpus)}
    environment: list[Document] = []
    container = {
        "name": "train",
        "image": "registry.example/train:1",
        "command": ["python", "train.py"],
        "env": environment,
        "resources": {"limits": amounts, "requests": amounts},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
    }
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "tolerations": [_GPU, *_AWAY],
        "volumes": [{"name": "token", "projected": {"sources": [token], "defaultMode": 420}}],
        **spec,
    }
    pod = {
        "metadata": {**metadata, "namespace": "default"},
        "spec": spec,
        "status": {"qosClass": "Burstable", **status},
    }
    return _padded(pod, environment, lambda i: {"name": f"SETTING_{i}", "value": "x" * 40}, POD_BYTES)


def _running_pod() -> Document:
    spec = {"nodeName": "node-<index>", "schedulerName": "default-scheduler"}
    status = {"phase": "Running", "startTime": _TIME, "conditions": [_condition("Ready", "True", "")]}
    return _pod(_metadata("runs-<index>", labels={"app": "train"}), 8, spec, status)


def _waiting_pod(is_gated: bool) -> Document:
    labels = {names.JOB: "gang-<gang>", names.QUEUE: "queue-<queue>"}
    pool = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["pool-<pool>"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [pool]}]}
    spec: Document = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    if is_gated:
        spec |= {"schedulerName": "default-scheduler", "schedulingGates": [{"name": names.GATE}]}
    else:
        spec |= {"schedulerName": "placewise"}
    reason = "SchedulingGated" if is_gated else ""
    status = {"phase": "Pending", "conditions": [_condition("PodScheduled", "False", reason)]}
    metadata = _metadata("gang-<gang>-<task>", labels=labels, annotations={names.GANG: str(GANG_PODS)})
    return _pod(metadata, 4, spec, status)
