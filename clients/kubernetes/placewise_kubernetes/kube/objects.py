"""Pods as the adapter needs them, parsed once from the API's JSON. Never talks to the API."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.constraints import Constraints
from placewise_kubernetes.kube.quantity import pod_requests


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller that made a pod."""

    kind: str
    name: str
    uid: str
    api: str = ""


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A pod's use of a ResourceClaim. `claim` is "" until it has been made from its template.

    `is_extended`: kube-scheduler has made it for extended resources that the pod requests.
    """

    claim: str
    is_extended: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as last seen.

    `requests` are base units by resource name; times are seconds since the epoch, 0 where unknown.
    """

    namespace: str
    name: str
    uid: str
    scheduler: str = "default-scheduler"
    node: str = ""
    phase: str = "Pending"
    reason: str = ""
    created_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    is_deleting: bool = False
    is_gone: bool = False
    gates: tuple[str, ...] = ()
    is_gated: bool = False
    """It has scheduling gates that others take away."""
    is_held: bool = False
    """It has our scheduling gate, and we take it away."""
    is_unread: bool = False
    """Its volumes are still to be read."""
    is_unschedulable: bool = False
    nominated: str = field(default="", compare=False)
    """The node that its status names for its scheduler to try first."""
    priority_class: str = ""
    owner: Owner | None = None
    gang: str = ""
    """Name of its controller's gang, by the table of owners (gang/owners.py)."""
    group: str = ""
    """The PodGroup of `scheduling.k8s.io` that the stored pod names."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)
    """Of a held pod."""
    device_claims: tuple[ClaimUse, ...] = ()
    claimed_gpus: float = 0.0
    """Those of `requests` that its claims ask for or hold. This and the rest is set by gang/devices/inventory.py."""
    gpu_indices: tuple[int, ...] = ()
    """The GPUs on its node that its claims hold."""
    unjudged_claims: str = ""
    """The reason why Placewise does not evaluate its claims."""
    is_unclaimed: bool = False
    """A claim of it is still to be made, or has not been seen as allocated although the pod has a node."""
    is_by_claim: bool = False
    """Its devices are allocated by kube-scheduler alone: nobody else may bind it."""

    @property
    def path(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def unjudged(self) -> str:
        """A rule that Placewise does not evaluate: then its scheduler alone places the pod."""
        return self.constraints.unjudged or self.unjudged_claims

    @property
    def is_ended(self) -> bool:
        """Terminal: its resources are free again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_over(self) -> bool:
        """Terminal, or no longer there."""
        return self.is_ended or self.is_gone

    @property
    def is_waiting(self) -> bool:
        """It still needs a node."""
        return not self.node and not self.is_over and not self.is_deleting

    @property
    def admitted_to(self) -> str:
        """Node that we decided for a pod whose gate we have taken away; empty if there is none."""
        return "" if self.is_held else self.annotations.get(names.NODE, "")

    def setting(self, name: str, default: str = "") -> str:
        """A label or annotation of this name; the label wins."""
        return self.labels.get(name) or self.annotations.get(name) or default


def parse_pod(document: Mapping[str, Any]) -> Pod:
    """A v1.Pod.

    Raises:
        ValueError, KeyError: the document is no pod.
    """
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    phase = status.get("phase") or "Pending"
    gates = tuple(gate.get("name") or "" for gate in spec.get("schedulingGates") or ())
    return Pod(
        namespace=metadata.get("namespace") or "default",
        name=metadata["name"],
        uid=metadata["uid"],
        scheduler=spec.get("schedulerName") or "default-scheduler",
        node=spec.get("nodeName") or "",
        phase=phase,
        reason=status.get("reason") or "",
        created_s=parse_time(metadata.get("creationTimestamp")),
        started_s=parse_time(status.get("startTime")),
        ended_s=_ended_s(status) if phase in ("Succeeded", "Failed") else 0.0,
        is_deleting=bool(metadata.get("deletionTimestamp")),
        is_unschedulable=_is_unschedulable(status),
        nominated=status.get("nominatedNodeName") or "",
        gates=gates,
        is_gated=bool(gates),
        priority_class=spec.get("priorityClassName") or "",
        owner=controller_of(metadata),
        group=(spec.get("schedulingGroup") or {}).get("podGroupName") or "",
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        node_selector=spec.get("nodeSelector") or {},
        requests=pod_requests(spec),
        device_claims=_claim_uses(spec, status),
    )


def template_pod(
    owner: Mapping[str, Any],
    template: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], Pod] = parse_pod,
) -> Pod:
    """A stand-in for the pods that an object with these metadata will make from a pod template.

    Raises:
        ValueError, KeyError: it is no template.
    """
    metadata = template.get("metadata") or {}
    metadata = {"labels": metadata.get("labels"), "annotations": metadata.get("annotations")}
    named = {"name": owner["name"], "namespace": owner.get("namespace"), "uid": ""}
    return read({"metadata": named | metadata, "spec": template["spec"]})


def parse_time(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 for none."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _claim_uses(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[ClaimUse, ...]:
    """Claims by name, those made from templates, and the one behind extended resources.

    A template may make none: then the name in the status is missing, too.
    """
    made = {item["name"]: item.get("resourceClaimName") for item in status.get("resourceClaimStatuses") or ()}
    named = (item.get("resourceClaimName") or made.get(item["name"], "") for item in spec.get("resourceClaims") or ())
    uses = [ClaimUse(name) for name in named if name is not None]
    extended = (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName")
    return (*uses, ClaimUse(extended, is_extended=True)) if extended else tuple(uses)


def _is_unschedulable(status: Mapping[str, Any]) -> bool:
    """Whether a scheduler has tried the pod and put it aside."""
    return any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable"
        for condition in status.get("conditions") or ()
    )


def controller_of(metadata: Mapping[str, Any]) -> Owner | None:
    """The controller that made an object; None if it has none."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            return Owner(*(reference.get(key) or "" for key in ("kind", "name", "uid", "apiVersion")))
    return None


def _ended_s(status: Mapping[str, Any]) -> float:
    """When the last container ended."""
    times = [
        parse_time(((container.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for container in status.get("containerStatuses") or ()
    ]
    return max(times, default=0.0)
