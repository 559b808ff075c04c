"""Writes annotations that wake pods, nodes to be tried first, and events and conditions that say why pods wait.

Best effort: a pod that is gone or an API that is away is logged and left; the scheduler's own retry comes later.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import STRATEGIC_MERGE_PATCH, KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.paths import CORE, collection_path, object_path

log = logging.getLogger(__name__)

# Patches under way at once: a gang of hundreds must not take every connection.
_AT_ONCE = 16
_EVENT_TEXT_LIMIT = 1000
_EVENT_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class _Nomination:
    """A node to be named on a pod; "" takes the name away."""

    pod: Pod
    node: str
    notes: Mapping[str, str | None]
    has_failed: Callable[[], None]

    def body(self) -> dict[str, Any]:
        metadata = {"uid": self.pod.uid, "annotations": dict(self.notes)}
        return {"metadata": metadata, "status": {"nominatedNodeName": self.node}}


class PodWriter:
    """Writes to pods in the background, nodes of one pod in their order, all else in none.

    `drain` waits for the writes under way.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[object]] = set()
        self._last_nominations: dict[str, _Nomination] = {}
        self._count = 0

    def wake(self, pods: Iterable[Pod], annotations: Mapping[str, str] | None = None) -> None:
        """Changes an annotation, upon which the scheduler looks at the pod again at once."""
        for pod in pods:
            self._count += 1
            body = {"metadata": {"annotations": {names.WAKE: str(self._count), **(annotations or {})}}}
            self._start(self._patch(pod, body))

    def nominate(
        self, pod: Pod, node: str, has_failed: Callable[[], None], notes: Mapping[str, str | None] | None = None
    ) -> None:
        """Names the node that the pod's scheduler is to try first, with annotations; "" takes the name away.

        While a name is on its way to the pod, the next one waits for it, and takes the place of others that wait.
        """
        is_under_way = pod.uid in self._last_nominations
        self._last_nominations[pod.uid] = _Nomination(pod, node, notes or {}, has_failed)
        if not is_under_way:
            self._start(self._nominate(pod.uid))

    def explain_object(self, involved: Mapping[str, str], text: str) -> None:
        """An event on another object than a pod: a gang that has no pods yet waits."""
        message = f"Placewise: {text}"
        self._start(self._tell(involved, "Normal", "PlacewiseWaiting", message))

    def explain(self, pods: Iterable[Pod], text: str) -> None:
        """An event with the reason why the pod waits."""
        for pod in pods:
            self._start(self._event(pod, "Warning", "FailedScheduling", f"Placewise: {text}"))

    def unschedulable(self, pods: Iterable[Pod], text: str) -> None:
        """An event and a condition, as the default scheduler leaves them on a pod it cannot place."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": text[:_EVENT_TEXT_LIMIT],
        }
        pods = list(pods)
        for pod in pods:
            self._start(self._patch(pod, {"status": {"conditions": [condition]}}))
        self.explain(pods, text)

    def hold(self, pods: Iterable[Pod], text: str) -> None:
        """An event and a condition of our own on pods that our gate holds: their PodScheduled is the API server's."""
        condition = {
            "type": names.ADMITTED,
            "status": "False",
            "reason": "Waiting",
            "message": text[:_EVENT_TEXT_LIMIT],
        }
        for pod in pods:
            self._start(self._patch(pod, {"status": {"conditions": [condition]}}))
            self._start(self._event(pod, "Normal", "PlacewiseWaiting", f"Placewise: {text}"))

    def report_left(self, pods: Iterable[Pod], text: str) -> None:
        """The event that a pod's gate is taken away without a decision."""
        for pod in pods:
            self._start(self._event(pod, "Normal", "PlacewiseNotDecided", f"Placewise: {text}"))

    def report_admitted(self, pod: Pod, node: str, decision_id: str) -> None:
        """The event with the node that a pod was nominated for."""
        text = f"Placewise: decided for {node} (decision {decision_id}); its scheduler may take it now"
        self._start(self._event(pod, "Normal", "PlacewiseAdmitted", text, _EVENT_DELAY_S))

    def report_scheduled(self, pod: Pod, node: str, decision_id: str) -> None:
        """The event with the pod's node; a little later, so that it delays no binding."""
        text = f"Successfully assigned {pod.path} to {node} (decision {decision_id})"
        self._start(self._event(pod, "Normal", "Scheduled", text, _EVENT_DELAY_S))

    async def drain(self) -> None:
        """Waits for the writes under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _nominate(self, uid: str) -> None:
        while True:
            nomination = self._last_nominations[uid]
            is_done = await self._patch(nomination.pod, nomination.body())
            if self._last_nominations[uid] is nomination:  # no other has come meanwhile
                del self._last_nominations[uid]
                if not is_done:
                    nomination.has_failed()
                return

    async def _patch(self, pod: Pod, body: Mapping[str, Any]) -> bool:
        """By way of the status, where annotations may be changed, too: that takes no right to change a pod's images."""
        path = object_path(CORE, pod.namespace, "pods", pod.name, "status")
        return await self._quietly(self._client.patch(path, body, STRATEGIC_MERGE_PATCH), f"patch of {pod.path}")

    async def _event(self, pod: Pod, kind: str, reason: str, text: str, delay_s: float = 0.0) -> None:
        await asyncio.sleep(delay_s)
        involved = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        await self._tell(involved, kind, reason, text)

    async def _tell(self, involved: Mapping[str, str], kind: str, reason: str, text: str) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{involved['name']}.", "namespace": involved["namespace"]},
            "involvedObject": dict(involved),
            "type": kind,
            "reason": reason,
            "message": text[:_EVENT_TEXT_LIMIT],
            "source": {"component": names.MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        path = collection_path(CORE, involved["namespace"], "events")
        await self._quietly(self._client.create(path, body), f"event on {involved['namespace']}/{involved['name']}")

    async def _quietly(self, call: Coroutine[Any, Any, Any], what: str) -> bool:
        """Whether the call succeeded."""
        async with self._gate:
            try:
                await call
            except (KubeError, KubeUnreachableError) as error:
                log.info("%s: %s", what, error)
                return False
        return True
