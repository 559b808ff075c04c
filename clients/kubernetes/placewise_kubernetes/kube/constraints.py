"""Where a pod may run by its own rules: required node affinity, taints. Pure.

It names the rules that nobody here judges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Term = Mapping[str, Any]
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Constraints:
    """The rules of one pod. `terms` and `preferred` are its node affinity as the API has it."""

    terms: Sequence[Term] = ()
    preferred: Sequence[Mapping[str, Any]] = ()
    tolerations: Sequence[Mapping[str, Any]] = ()
    claims: tuple[str, ...] = ()
    """Its volume claims, by name."""
    unjudged: str = ""
    """A rule that Placewise does not evaluate: then its scheduler alone places the pod."""


def parse_constraints(document: Mapping[str, Any]) -> Constraints:
    """The rules of a v1.Pod. Raises KeyError, TypeError: it is no pod."""
    spec = document["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    volumes = spec.get("volumes") or ()
    return Constraints(
        terms=required.get("nodeSelectorTerms") or (),
        preferred=affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or (),
        tolerations=spec.get("tolerations") or (),
        claims=tuple(volume["persistentVolumeClaim"]["claimName"] for volume in volumes if _is_claim(volume)),
        unjudged=_unjudged(document),
    )


def _is_claim(volume: Mapping[str, Any]) -> bool:
    return bool(volume.get("persistentVolumeClaim"))


def _unjudged(document: Mapping[str, Any]) -> str:
    """The first of the pod's rules that is not evaluated; empty if there is none."""
    metadata, spec = document["metadata"], document["spec"]
    affinity = spec.get("affinity") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    ports = (port for container in containers for port in container.get("ports") or ())
    found = {
        "kube_system": metadata.get("namespace") == "kube-system",
        "daemon_set": any(owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ()),
        "pod_affinity": affinity.get("podAffinity") or affinity.get("podAntiAffinity"),
        "topology_spread": spec.get("topologySpreadConstraints"),
        "host_ports": any(port.get("hostPort") for port in ports) or (spec.get("hostNetwork") and _has_ports(spec)),
        "ephemeral_volume": any(volume.get("ephemeral") for volume in spec.get("volumes") or ()),
    }
    return next((reason for reason, holds in found.items() if holds), "")


def _has_ports(spec: Mapping[str, Any]) -> bool:
    return any(container.get("ports") for container in spec.get("containers") or ())


def is_selected(terms: Sequence[Term], name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node satisfies one of the terms of a node selector; every node does if there are none."""
    return not terms or any(_is_met(term, name, labels) for term in terms)


def _is_met(term: Term, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term selects nothing
    named = {"metadata.name": name}
    return all(_holds(rule, labels) for rule in expressions) and all(_holds(rule, named) for rule in fields)


def _holds(rule: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    key, operator, wanted = rule["key"], rule["operator"], rule.get("values") or ()
    value = values.get(key)
    match operator:
        case "In":
            return value is not None and value in wanted
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, operator, wanted)
    return False


def _compares(value: str | None, operator: str, wanted: Sequence[str]) -> bool:
    try:
        left, right = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def tolerates(tolerations: Iterable[Mapping[str, Any]], taints: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a pod may go to a node with these taints."""
    tolerations = list(tolerations)
    blocking = (taint for taint in taints if taint.get("effect") in BLOCKING_EFFECTS)
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in blocking)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
    return False


def pinned(constraints: Constraints, node: str) -> dict[str, Any]:
    """Node affinity that leaves a pod this node alone, beside the rules that it has."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), field]} for term in constraints.terms]
    required = {"nodeSelectorTerms": terms or [{"matchFields": [field]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": required}


def preferring(constraints: Constraints, node: str) -> dict[str, Any]:
    """Node affinity by which a pod prefers this node, beside the preferences that it has."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    added = {"weight": 100, "preference": {"matchFields": [field]}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [*constraints.preferred, added]}
