"""What the node controller, `kubectl cordon` and `kubectl drain` write: no kubelet and no controller runs here."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.error import HTTPError

from tests.e2e.kubernetes.faults.kubernetes_fault_world import ENDED
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, fake_node
from tests.e2e.kubernetes.kubernetes_scenario import GPUS_PER_NODE, PODS, finish

_NODES = "/api/v1/nodes"
_MERGE = "application/merge-patch+json"
_UNREACHABLE = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in ("NoSchedule", "NoExecute")]


def lose(plane: ControlPlane, node: str) -> None:
    """The node's kubelet is heard no more."""
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no word of the kubelet"}
    plane.request("PATCH", f"{_NODES}/{node}/status", {"status": {"conditions": [ready]}}, _MERGE)
    plane.request("PATCH", f"{_NODES}/{node}", {"spec": {"taints": _UNREACHABLE}}, _MERGE)


def delete(plane: ControlPlane, node: str) -> None:
    plane.request("DELETE", f"{_NODES}/{node}")


def bring_back(plane: ControlPlane, node: str) -> None:
    """The kubelet is heard again, or registers the node anew."""
    made = fake_node(node, GPUS_PER_NODE)
    with suppress(HTTPError):  # it is not gone
        plane.request("POST", _NODES, made)
        return
    conditions = {"status": {"conditions": made["status"]["conditions"]}}
    plane.request("PATCH", f"{_NODES}/{node}/status", conditions, _MERGE)
    plane.request("PATCH", f"{_NODES}/{node}", {"spec": {"taints": None}}, _MERGE)


def cordon(plane: ControlPlane, node: str, *, is_cordoned: bool = True) -> None:
    plane.request("PATCH", f"{_NODES}/{node}", {"spec": {"unschedulable": is_cordoned or None}}, _MERGE)


def clear(plane: ControlPlane, node: str, *, has_failed: bool = False) -> None:
    """The pods of a node are deleted, or fail."""
    names = [document["metadata"]["name"] for document in _pods_on(plane, node)]
    if has_failed:
        finish(plane, names, "Failed")
        return
    for name in names:
        plane.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


def _pods_on(plane: ControlPlane, node: str) -> list[dict[str, Any]]:
    items = plane.request("GET", f"{PODS}?fieldSelector=spec.nodeName%3D{node}")["items"]
    return [item for item in items if item["status"].get("phase") not in ENDED]
