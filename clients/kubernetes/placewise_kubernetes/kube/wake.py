"""Writes annotations that wake pods, and events and conditions that give the reason why they wait.

Best effort: a pod that is gone or an API that is away is logged and left; the scheduler's own retry comes later.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Coroutine, Iterable, Mapping
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


class PodWriter:
    """Writes to pods in the background, in no order; `drain` waits for the writes under way."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0

    def wake(self, pods: Iterable[Pod], annotations: Mapping[str, str] | None = None) -> None:
        """Changes an annotation, upon which the scheduler looks at the pod again at once."""
        for pod in pods:
            self._count += 1
            body = {"metadata": {"annotations": {names.WAKE: str(self._count), **(annotations or {})}}}
            self._start(self._patch(pod, body))

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

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _patch(self, pod: Pod, body: Mapping[str, Any]) -> None:
        """By way of the status, where annotations may be changed, too: that takes no right to change a pod's images."""
        path = object_path(CORE, pod.namespace, "pods", pod.name, "status")
        await self._quietly(self._client.patch(path, body, STRATEGIC_MERGE_PATCH), f"patch of {pod.path}")

    async def _event(self, pod: Pod, kind: str, reason: str, text: str, delay_s: float = 0.0) -> None:
        await asyncio.sleep(delay_s)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "type": kind,
            "reason": reason,
            "message": text[:_EVENT_TEXT_LIMIT],
            "source": {"component": names.MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        path = collection_path(CORE, pod.namespace, "events")
        await self._quietly(self._client.create(path, body), f"event on {pod.path}")

    async def _quietly(self, call: Coroutine[Any, Any, Any], what: str) -> None:
        async with self._gate:
            try:
                await call
            except (KubeError, KubeUnreachableError) as error:
                log.info("%s: %s", what, error)
