"""Nominates the pods of a gang and takes their gates away. Never touches a pod without our gate."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from placewise.v1.cluster_pb2 import Assignment
from placewise_client.adapter.native import Placement, Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import GangRules, proto_role, role_of
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.bind import NOT_FOUND, Bound, Target
from placewise_kubernetes.kube.client import STRATEGIC_MERGE_PATCH, KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.constraints import pinned, preferring
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.paths import CORE, object_path
from placewise_kubernetes.kube.quantity import resources_from

_AT_ONCE = 32
RELEASED = "released"
_UNGATED: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}


class Pin(enum.StrEnum):
    """How a pod is kept to its decided node."""

    SOFT = "soft"
    """It prefers the node; its scheduler takes another if the node has filled."""
    HARD = "hard"
    """It may use no other node, ever: a pod whose node has filled waits until there is room."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """Gangs that our scheduling gate `placewise.dev/admit` holds."""

    is_enabled: bool = False
    """Decides for pods with the gate, and takes it away. Needs the right to patch pods."""
    pin: Pin = Pin.SOFT
    """soft: a pod prefers its decided node. hard: it may use no other."""
    scale_up_after_s: float = 60.0
    """A gang that not even an empty cluster could take loses its gates after so long, so that an autoscaler sees it."""


def ungating(pod: Pod, node: str, notes: Mapping[str, str], pin: Pin) -> dict[str, Any]:
    """The patch that takes the gate away; without a node, the pod goes where its scheduler wants."""
    spec = dict(_UNGATED)
    if node:
        rule = pinned if pin is Pin.HARD else preferring
        spec["affinity"] = {"nodeAffinity": rule(pod.constraints, node)}
    return {"metadata": {"uid": pod.uid, "annotations": dict(notes)}, "spec": spec}


class GateOpener:
    """Starts pods as `Binder` does, in two steps: no pod loses its gate before all of the call are nominated."""

    def __init__(self, client: KubeClient, pin: Pin) -> None:
        self._client = client
        self.pin = pin
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self.undecided = Counter(
            "placewise_kubernetes_not_decided",
            "Pods that lost their gate without a decision, or whose claims are not evaluated, by reason",
            ["reason"],
            registry=None,
        )

    async def bind_all(self, targets: Sequence[Target]) -> list[Bound]:
        """Nominates all of them, then takes the gates away; the outcomes in the same order.

        If one cannot be nominated, none loses its gate.
        """
        placed = [(pod, node, {**notes, names.NODE: node}) for pod, node, notes in targets if node]
        nominated = await asyncio.gather(*(self._nominate(*target) for target in placed))
        if any(outcome is not Bound.DONE for outcome in nominated):
            await self.clear([pod for pod, _, _ in placed])
            worst = next(outcome for outcome in nominated if outcome is not Bound.DONE)
            return [worst] * len(targets)
        return list(await asyncio.gather(*(self.open(pod, node, notes) for pod, node, notes in targets)))

    async def open(self, pod: Pod, node: str, notes: Mapping[str, str]) -> Bound:
        """Takes one pod's gate away."""
        noted = {**notes, names.NODE: node} if node else notes
        outcome = await self._patch(pod, "", ungating(pod, node, noted, self.pin))
        if outcome is Bound.DONE and not node:
            self.undecided.labels(pod.unjudged or RELEASED).inc()
        return outcome

    async def clear(self, pods: Sequence[Pod]) -> None:
        """Takes nominations back; best effort: the next decision writes over them."""
        nothing = dict.fromkeys((names.NODE, *names.DECISION_NOTES))
        body = {"metadata": {"annotations": nothing}, "status": {"nominatedNodeName": ""}}
        await asyncio.gather(*(self._patch(pod, "status", body) for pod in pods))

    async def _nominate(self, pod: Pod, node: str, notes: Mapping[str, str]) -> Bound:
        body = {
            "metadata": {"uid": pod.uid, "annotations": dict(notes)},
            "status": {
                "nominatedNodeName": node,
                "conditions": [{"type": names.ADMITTED, "status": "True", "reason": "Decided", "message": node}],
            },
        }
        return await self._patch(pod, "status", body)

    async def _patch(self, pod: Pod, part: str, body: Mapping[str, Any]) -> Bound:
        async with self._gate:
            try:
                await self._client.patch(
                    object_path(CORE, pod.namespace, "pods", pod.name, part), body, STRATEGIC_MERGE_PATCH
                )
            except KubeUnreachableError:
                return Bound.UNREACHABLE
            except KubeError as error:
                return Bound.GONE if error.status == NOT_FOUND else Bound.REFUSED
        return Bound.DONE


def restore(gang: Gang, rules: GangRules) -> bool:
    """Goes on with the decision of an earlier run if that run has removed a pod's gate: annotations on the other pods
        name their nodes.

    False if none has, or if the gang is not complete: then the service is asked for its decision.
    """
    pods = gang.live()
    noted = [pod for pod in pods if pod.annotations.get(names.NODE)]
    is_begun = any(pod.admitted_to and not pod.node for pod in noted) or any(pod.is_held for pod in noted)
    has_lost_gates = any(pod.admitted_to for pod in noted)
    if gang.plan is not None or gang.stage is not Stage.WAITING or len(noted) < len(pods):
        return False
    if not (is_begun and has_lost_gates and gang.is_complete()):
        return False
    gang.build(rules)
    tasks = [(pod, _task(pod, rules)) for pod in noted]
    decision_id = next((pod.annotations[names.DECISION] for pod in noted if names.DECISION in pod.annotations), "")
    gang.is_by_gate = True
    gang.mark_applied(Placement(tuple(task for _, task in tasks), decision_id=decision_id))
    gang.held = {pod.uid: task for pod, task in tasks}
    return True


def _task(pod: Pod, rules: GangRules) -> Assignment:
    indices = pod.annotations.get(names.GPU_INDICES, "")
    return Assignment(
        task=pod.name,
        role=proto_role(role_of(pod)),
        node=pod.node or pod.annotations[names.NODE],
        demand=resources_from(pod.requests, rules.gpu_resources, is_whole=rules.is_whole),
        gpu_indices=[int(index) for index in indices.split(",") if index.isdigit()],
    )
