"""A Kubernetes API in memory for the adapter's tests: pods, nodes, watches, bindings, patches, one admission policy.

`FakeKube` stands in for `KubeClient`. Watches are queues, so a test knows when everything has been seen.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import OPENED, KubeError, KubeUnreachableError

Document = dict[str, Any]
PODS, NODES, JOBS = "/api/v1/pods", "/api/v1/nodes", "/apis/batch/v1/jobs"
# Of other projects, or behind a feature gate: served only if a test names them in `FakeKube.served`.
VOLCANO_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/podgroups"
NATIVE_GROUPS = "/apis/scheduling.k8s.io/v1beta1/podgroups"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
VOLCANO_JOBS = "/apis/batch.volcano.sh/v1alpha1/jobs"


class FakeKube:
    """The API's objects and its requests."""

    def __init__(self) -> None:
        self.pods: dict[str, Document] = {}
        self.nodes: dict[str, Document] = {}
        self.groups: dict[str, Document] = {}
        self.jobs: dict[str, Document] = {}
        self.served: set[str] = set()
        """Collections of other projects' definitions that can be listed and watched."""
        self.events: list[Document] = []
        self.patches: list[tuple[str, Document]] = []
        self.bound: list[tuple[str, str]] = []
        self.posted: list[str] = []
        self.is_reachable = True
        self.refusals = 0
        """So many of the next Bindings, or openings of a gate, are refused."""
        self.answers_to_lose = 0
        """So many of the next Bindings, or openings of a gate, are made, and their answers lost."""
        self.has_gates = False
        """The chart's admission policy: a new pod with our label gets our gate."""
        self._queues: list[tuple[str, asyncio.Queue[tuple[str, Document] | None]]] = []
        self._version = itertools.count(1)
        self._last_version: dict[str, int] = {}
        self._uid = itertools.count(1)

    # --- what KubeClient offers ---------------------------------------------------------------------------------------

    async def get(self, path: str, **_: str) -> Document:
        self._check()
        return self._found(path)

    async def list_all(
        self, path: str, read: Callable[[Document], Any] = lambda item: item, **_: str
    ) -> tuple[list[Any], str]:
        self._check()
        store = {PODS: self.pods, NODES: self.nodes, JOBS: self.jobs}.get(path)
        if store is None:
            if path not in self.served:
                raise KubeError(404, "NotFound", "the server could not find the requested resource")
            store = {name: document for name, document in self.groups.items() if _collection(name) == path}
        return [read(copy.deepcopy(document)) for document in store.values()], str(next(self._version))

    async def watch(self, path: str, version: str) -> AsyncIterator[tuple[str, Document]]:
        self._check()
        if int(version) < self._last_version.get(path, 0):
            raise KubeError(410, "Expired", "too old: the changes since are not sent again")
        queue: asyncio.Queue[tuple[str, Document] | None] = asyncio.Queue()
        entry = (path, queue)
        self._queues.append(entry)
        try:
            yield OPENED, {}
            while True:
                item = await queue.get()
                if item is None:
                    raise KubeUnreachableError("connection lost")
                yield item
                queue.task_done()
        finally:
            self._queues.remove(entry)

    async def create(self, path: str, body: Mapping[str, Any]) -> Document:
        self._check()
        self.posted.append(path)
        if path.endswith("/binding"):
            self._bind_for(path.removesuffix("/binding"), body)
        elif path.endswith("/events"):
            self.events.append(dict(body))
        return dict(body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = "") -> Document:
        self._check()
        self.patches.append((path, dict(body)))
        document = self._found(path.removesuffix("/status"))
        metadata = body.get("metadata", {})
        _check_uid(document, metadata)
        if "spec" in body:
            self._refuse()
            _merge_spec(document["spec"], body["spec"])
        _annotate(document, metadata.get("annotations", {}))
        if "nominatedNodeName" in body.get("status", {}):
            document["status"]["nominatedNodeName"] = body["status"]["nominatedNodeName"]
        self._tell(PODS, "MODIFIED", document)
        if "spec" in body:
            self._lose_answer()
        return document

    # --- a test's actions --------------------------------------------------------------------------------------------

    def add_pod(self, document: Document) -> Document:
        document = copy.deepcopy(document)
        uid = f"{next(self._uid):08d}-uid"
        document["metadata"] = {"uid": uid} | document["metadata"] | {"creationTimestamp": "2026-11-21T00:00:00Z"}
        document["metadata"].setdefault("namespace", "default")
        document.setdefault("status", {"phase": "Pending"})
        if self.has_gates and names.JOB in document["metadata"].get("labels", {}):
            document["spec"]["schedulingGates"] = [{"name": names.GATE}]
        if NATIVE_GROUPS not in self.served:
            document["spec"].pop("schedulingGroup", None)  # without the feature gate, and with no word about it
        self.pods[_path(document)] = document
        self._tell(PODS, "ADDED", document)
        return document

    def add_node(self, document: Document) -> None:
        self.nodes[document["metadata"]["name"]] = document
        self._tell(NODES, "ADDED", document)

    def put_job(self, document: Document) -> Document:
        """Makes a Job, or changes it."""
        metadata = document["metadata"]
        kind = "MODIFIED" if metadata["name"] in self.jobs else "ADDED"
        metadata.setdefault("uid", f"{next(self._uid):08d}-job")
        metadata.setdefault("namespace", "default")
        metadata["generation"] = metadata.get("generation", 0) + 1
        self.jobs[metadata["name"]] = document
        self._tell(JOBS, kind, document)
        return document

    def remove_job(self, name: str) -> None:
        self._tell(JOBS, "DELETED", self.jobs.pop(name))

    def put_object(self, collection: str, document: Document) -> Document:
        """Makes an object of another project's definition, or changes it."""
        metadata = document["metadata"]
        metadata.setdefault("namespace", "default")
        path = _object(collection, metadata["name"])
        kind = "MODIFIED" if path in self.groups else "ADDED"
        self.groups[path] = document
        self._tell(collection, kind, document)
        return document

    def remove_object(self, collection: str, name: str) -> None:
        self._tell(collection, "DELETED", self.groups.pop(_object(collection, name)))

    def remove_node(self, name: str) -> None:
        self._tell(NODES, "DELETED", self.nodes.pop(name))

    def change_node(self, name: str, **spec: Any) -> None:
        self.nodes[name].setdefault("spec", {}).update(spec)
        self._tell(NODES, "MODIFIED", self.nodes[name])

    def set_phase(self, path: str, phase: str) -> None:
        self.pods[path]["status"]["phase"] = phase
        self._tell(PODS, "MODIFIED", self.pods[path])

    def remove_pod(self, path: str) -> None:
        self._tell(PODS, "DELETED", self.pods.pop(path))

    def bind(self, path: str, node: str, metadata: Mapping[str, Any]) -> None:
        document = self._found(path)
        _check_uid(document, metadata)
        if document["spec"].get("nodeName"):
            raise KubeError(409, "Conflict", "already assigned")
        document["spec"]["nodeName"] = node
        document["metadata"].setdefault("annotations", {}).update(metadata.get("annotations", {}))
        self.bound.append((path, node))
        self._tell(PODS, "MODIFIED", document)

    def lose_connections(self) -> None:
        self.is_reachable = False
        for _, queue in self._queues:
            queue.put_nowait(None)

    async def seen(self) -> None:
        """Returns when every watcher has had every event."""
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.gather(*(queue.join() for _, queue in self._queues))

    def _bind_for(self, path: str, body: Mapping[str, Any]) -> None:
        self._refuse()
        self.bind(path, body["target"]["name"], body["metadata"])
        self._lose_answer()

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise KubeError(403, "Forbidden", "a policy of the cluster")

    def _lose_answer(self) -> None:
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise KubeUnreachableError("the answer is lost")

    def _found(self, path: str) -> Document:
        for store in (self.pods, self.groups, {_object(JOBS, name): job for name, job in self.jobs.items()}):
            if path in store:
                return store[path]
        raise KubeError(404, "NotFound", path)

    def _tell(self, path: str, kind: str, document: Document) -> None:
        self._last_version[path] = next(self._version)
        document["metadata"]["resourceVersion"] = str(self._last_version[path])
        for watched, queue in self._queues:
            if watched == path:
                queue.put_nowait((kind, copy.deepcopy(document)))

    def _check(self) -> None:
        if not self.is_reachable:
            raise KubeUnreachableError("no route")


def _check_uid(document: Document, metadata: Mapping[str, Any]) -> None:
    if metadata.get("uid") not in (None, document["metadata"].get("uid")):
        raise KubeError(409, "Conflict", "uid")


def _annotate(document: Document, annotations: Mapping[str, str | None]) -> None:
    """None takes one away."""
    merged = document["metadata"].setdefault("annotations", {}) | annotations
    document["metadata"]["annotations"] = {name: value for name, value in merged.items() if value is not None}


def _merge_spec(spec: Document, changes: Mapping[str, Any]) -> None:
    """As a strategic merge patch that takes gates away and sets the affinity."""
    gone = {gate["name"] for gate in changes["schedulingGates"] if gate["$patch"] == "delete"}
    spec["schedulingGates"] = [gate for gate in spec.get("schedulingGates", ()) if gate["name"] not in gone]
    spec |= {name: value for name, value in changes.items() if name == "affinity"}


def _path(document: Document) -> str:
    metadata = document["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _object(collection: str, name: str) -> str:
    root, plural = collection.rsplit("/", 1)
    return f"{root}/namespaces/default/{plural}/{name}"


def _collection(path: str) -> str:
    root, _, rest = path.partition("/namespaces/")
    return f"{root}/{rest.split('/')[1]}"
