"""kube-scheduler's extender protocol: filter, prioritize, bind. By node names only; it never reads a Node object.

A gang is decided once; each of its pods is answered from that decision, and the same at every repeat. What Placewise
does not manage passes through, save that GPUs held for a gang in the middle of being bound are kept free. Nothing is
decided for a pod that only a caller knows. Pods are bound only as decided, or as the last filter call allowed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewise.v1.cluster_pb2 import Assignment
from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.bind import Bound
from placewise_kubernetes.kube.objects import Pod, parse_pod
from placewise_kubernetes.kube.paths import is_label, is_name

log = logging.getLogger(__name__)

TOP_SCORE = 10
# A reason is repeated for each node it holds for; more repeats would not help the user.
FAILED_NODES_LIMIT = 200
DECIDING = "a decision is under way"
UNKNOWN = "the API server has not shown this pod to the adapter yet"
NO_CERTIFICATE = "a pod that Placewise has not decided is bound for callers with a client certificate only"
# How far kube-scheduler's own watch of pods may be ahead of ours.
WATCH_LEAD_S = 0.05


@dataclass(frozen=True, slots=True)
class Extender:
    """Answers the extender's calls; each method takes and gives decoded JSON.

    `is_caller_known`: callers show a certificate. Only then does it bind pods that Placewise has not decided.
    """

    host: KubernetesHost
    fail_open_s: float
    is_open_failing: bool = True
    is_reservation_protected: bool = True
    is_caller_known: bool = False

    async def filter(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The one node the pod's task was given, all nodes for a pod that is let through, none while it waits.

        Raises:
            ValueError, KeyError: this is no call to an extender with nodeCacheCapable.
        """
        offered = _names(arguments)
        uid = arguments["Pod"]["metadata"]["uid"]
        self.host.pods.passed.forget(uid)
        due_s = time.monotonic() + self.fail_open_s
        gang = self.host.pods.book.gang_of(uid)
        if gang is None:  # else the watch has shown it: it need not be read again while its scheduler waits
            pod = self.host.devices.complete(parse_pod(arguments["Pod"]))
            if not self.host.rules.is_managed(pod):
                return self._filter_foreign(pod, offered)
            gang = await self.host.pods.wait_shown(uid, WATCH_LEAD_S)
        if gang is None:
            self.host.refused.labels("unknown_pod").inc()
            return _failed(offered, f"Placewise: {UNKNOWN}")
        if gang.is_own:  # the adapter itself schedules it: this call comes from no scheduler
            return _failed(offered, "Placewise binds pods of this schedulerName itself")
        pod = gang.pods[uid]
        if gang.stage is Stage.RUNNING and gang.plan is None:
            return self._let_through(pod, offered)
        await self._settle(gang, max(0.0, due_s - time.monotonic()))
        return self._answer(gang, pod, offered)

    async def prioritize(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The top score for the decided node, nothing for the others."""
        uid, offered = arguments["Pod"]["metadata"]["uid"], _names(arguments)
        gang = self.host.pods.book.gang_of(uid)
        task = gang.task_of(gang.pods[uid]) if gang is not None and gang.plan else None
        if task is None or task.node not in offered:
            return [{"Host": name, "Score": 0} for name in offered]
        return [{"Host": name, "Score": TOP_SCORE if name == task.node else 0} for name in offered]

    async def bind(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Creates the Binding, with the decision noted on the pod. A refusal gives its reason.

        Raises:
            KeyError: this is no call to an extender with a bindVerb.
        """
        node = arguments["Node"]
        pod = Pod(arguments["PodNamespace"], arguments["PodName"], arguments["PodUID"])
        if not (is_label(pod.namespace) and is_name(pod.name) and is_name(node)):
            return self._unbound("bad_name", "namespace, pod and node need names that the API knows (RFC 1123)")
        gang = self.host.pods.book.gang_of(pod.uid)
        task = _decided(gang, pod)
        if task is None:
            if not self.is_caller_known:
                return self._unbound("no_certificate", NO_CERTIFICATE)
            if not self.host.pods.passed.allows(pod, node):
                return self._unbound("not_let_through", f"the last filter call did not leave {node} to {pod.path}")
        elif task.node != node:
            return self._unbound("not_decided", f"{pod.path} was decided for {task.node}, not for {node}")
        notes = gang.notes(task) if gang is not None and task is not None else {}
        outcome = await self.host.binder.bind(pod, node, notes)
        return {"Error": "" if outcome is Bound.DONE else f"binding to {node}: {outcome.value}"}

    def _unbound(self, reason: str, text: str) -> dict[str, str]:
        self.host.refused.labels(reason).inc()
        log.warning("bind refused: %s", text)
        return {"Error": f"Placewise: {text}"}

    async def _settle(self, gang: Gang, timeout_s: float) -> None:
        """Waits for the decision of a complete gang; this holds up the scheduler, so never for longer than allowed.

        An incomplete gang is not waited for: the scheduler has to go on to the pods that complete it.
        """
        is_incomplete = gang.facts is not None and gang.plan is None and gang.missing()
        if is_incomplete or await self.host.wait_settled(gang, timeout_s):
            return
        if self.is_open_failing and not gang.missing():
            log.warning("gang %s: no decision within %.0f ms, left to the scheduler", gang.key, self.fail_open_s * 1e3)
            self.host.release_gang(gang)

    def _answer(self, gang: Gang, pod: Pod, offered: Sequence[str]) -> dict[str, Any]:
        if gang.stage is Stage.RELEASED:
            return self._filter_foreign(pod, offered)
        if gang.plan is None:
            return self._refuse(gang, pod, offered, gang.text or gang.missing() or DECIDING)
        task = gang.task_of(pod)
        if task is None:
            return self._let_through(pod, offered)
        if task.node not in offered:
            return self._refuse(gang, pod, offered, f"the scheduler does not offer the decided node {task.node} now")
        return _passed([task.node])

    def _refuse(self, gang: Gang, pod: Pod, offered: Sequence[str], text: str) -> dict[str, Any]:
        gang.refused[pod.uid] = gang.text or text
        return _failed(offered, f"Placewise: {text}")

    def _filter_foreign(self, pod: Pod, offered: Sequence[str]) -> dict[str, Any]:
        """A pod that is not ours, or was released, must not take the GPUs that a gang was promised a moment ago."""
        wanted = sum(pod.requests.get(name, 0.0) for name in self.host.rules.gpu_resources)
        held = self.host.pods.gpus_held() if wanted and self.is_reservation_protected else {}
        if not held:
            return self._let_through(pod, offered)
        in_use = self.host.pods.gpus_in_use(held)
        taken = {name for name in held if self.host.nodes.gpus(name) - in_use.get(name, 0.0) < wanted}
        result = self._let_through(pod, [name for name in offered if name not in taken])
        reasons = [name for name in offered if name in taken][:FAILED_NODES_LIMIT]
        result["FailedNodes"] = dict.fromkeys(reasons, "Placewise: GPUs are held for a gang")
        return result

    def _let_through(self, pod: Pod, left: Sequence[str]) -> dict[str, Any]:
        if self.is_caller_known:
            self.host.pods.passed.note(pod, left)
        return _passed(left)


def _decided(gang: Gang | None, pod: Pod) -> Assignment | None:
    """The pod's task of its gang's current decision; None also for pods of our own scheduler name: others bind none."""
    if gang is None or gang.plan is None or gang.is_own:
        return None
    known = gang.pods[pod.uid]
    return gang.task_of(known) if (known.namespace, known.name) == (pod.namespace, pod.name) else None


def _names(arguments: Mapping[str, Any]) -> list[str]:
    names = arguments.get("NodeNames")
    if names is None:
        raise ValueError("no NodeNames: configure the extender with nodeCacheCapable: true")
    return list(names)


def _passed(names: Sequence[str]) -> dict[str, Any]:
    return {"Nodes": None, "NodeNames": list(names), "FailedNodes": {}, "Error": ""}


def _failed(names: Sequence[str], text: str) -> dict[str, Any]:
    """No node, and no use in looking for pods to evict: newer schedulers read the second map, older ones the first."""
    reasons = dict.fromkeys(names[:FAILED_NODES_LIMIT], text)
    return {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": reasons,
        "FailedAndUnresolvableNodes": reasons,
        "Error": "",
    }
