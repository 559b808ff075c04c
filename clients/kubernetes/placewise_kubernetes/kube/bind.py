"""Binds pods to nodes through the Binding subresource. Binding twice to the same node is no error."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence

from placewise.v1.cluster_pb2 import Assignment
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.paths import CORE, object_path

NOT_FOUND, CONFLICT = 404, 409
_AT_ONCE = 32


class Bound(enum.Enum):
    """The outcome of one binding."""

    DONE = "done"
    GONE = "gone"
    """The pod was deleted, or somebody else has bound it."""
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


Target = tuple[Pod, str, Mapping[str, str]]


class Binder:
    """Creates Bindings."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def bind_all(self, targets: Sequence[Target]) -> list[Bound]:
        """Binds pods side by side: (pod, node, annotations) each; the outcomes in the same order."""
        return list(await asyncio.gather(*(self.bind(pod, node, notes) for pod, node, notes in targets)))

    async def bind(self, pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> Bound:
        """Binds one pod; the annotations reach the pod with the binding."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.name, "uid": pod.uid, "annotations": dict(annotations or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        async with self._gate:
            try:
                await self._client.create(object_path(CORE, pod.namespace, "pods", pod.name, "binding"), body)
            except KubeUnreachableError:
                return Bound.UNREACHABLE
            except KubeError as error:
                return await self._refused(pod, node, error)
        return Bound.DONE

    async def _refused(self, pod: Pod, node: str, error: KubeError) -> Bound:
        """A conflict may be our own earlier binding, whose answer was lost."""
        if error.status == NOT_FOUND:
            return Bound.GONE
        if error.status != CONFLICT:
            return Bound.REFUSED
        try:
            current = await self._client.get(object_path(CORE, pod.namespace, "pods", pod.name))
        except KubeUnreachableError:
            return Bound.UNREACHABLE
        except KubeError:
            return Bound.GONE
        is_ours = current["metadata"]["uid"] == pod.uid and current["spec"].get("nodeName") == node
        return Bound.DONE if is_ours else Bound.GONE


def decision_notes(task: Assignment, decision_id: str) -> dict[str, str]:
    """Annotations that tell a bound pod's user which decision put it there, and the GPUs it was meant to have."""
    notes = {names.DECISION: decision_id} if decision_id else {}
    if task.gpu_indices:
        notes[names.GPU_INDICES] = ",".join(map(str, task.gpu_indices))
    return notes
