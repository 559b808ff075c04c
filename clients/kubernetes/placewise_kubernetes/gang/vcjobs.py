"""The tasks of a vcjob, Volcano's own Job: how many pods of each role make its gang, and their templates. Pure."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from placewise_kubernetes.gang.spec import MOST_COUNT, role_of
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod, template_pod

log = logging.getLogger(__name__)


def read_tasks(document: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Pod]]:
    """(Pods of the gang, a stand-in for such a pod) by role. Both are empty if the object is of another shape."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    templates: dict[str, Pod] = {}
    try:
        for task in spec.get("tasks") or ():
            replicas = count_of(task.get("replicas"))
            pod = template_pod(metadata, task["template"])
            pod = dataclasses.replace(pod, annotations={names.VOLCANO_TASK: task["name"], **pod.annotations})
            role = role_of(pod)
            templates.setdefault(role, pod)
            least[role] += replicas if task.get("minAvailable") is None else count_of(task["minAvailable"])
            most[role] += replicas
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("vcjob %s cannot be read, its PodGroup alone is: %r", metadata.get("name"), error)
        return {}, {}
    roles = first_pods(count_of(spec.get("minAvailable")) or most.total(), least, most)
    return roles, {role: templates[role] for role in roles}


def first_pods(total: int, least: Mapping[str, int], most: Mapping[str, int] | None = None) -> dict[str, int]:
    """The pods that Volcano starts together: `total`, of each role its least first, in the order of the roles.

    All of the least if no total is given.
    """
    left, roles = total or sum(least.values()), dict.fromkeys(least, 0)
    for limits in (least, most or least):
        for role, limit in limits.items():
            taken = max(0, min(limit - roles[role], left))
            roles[role] += taken
            left -= taken
    return {role: count for role, count in roles.items() if count}


def count_of(number: Any) -> int:
    """A number of pods; 0 if it is no number: an object's schema may be another release's, or unchecked."""
    try:
        return min(max(0, int(number or 0)), MOST_COUNT)
    except (TypeError, ValueError, OverflowError):
        return 0
