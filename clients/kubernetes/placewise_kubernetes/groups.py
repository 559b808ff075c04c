"""Reads the object behind a gang (PodGroup, batch Job) for its size. Never writes; a group it may not read is empty."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from placewise_kubernetes.gang import DEFAULT_ROLE, MOST_COUNT, GangRef, GroupFacts, Source
from placewise_kubernetes.kube import KubeClient, KubeError
from placewise_kubernetes.objects import parse_time

log = logging.getLogger(__name__)

_PATHS = {
    Source.POD_GROUP: "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace}/podgroups/{name}",
    Source.VOLCANO: "/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups/{name}",
    Source.BATCH_JOB: "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
}


async def read_group(client: KubeClient, reference: GangRef) -> GroupFacts:
    """What the group object says; empty facts where it is not there or not to be read.

    Raises:
        KubeUnreachableError: the API did not answer.
    """
    path = _PATHS[reference.source].format(namespace=reference.namespace, name=reference.name)
    try:
        document = await client.get(path)
    except KubeError as error:
        log.warning("%s %s/%s: %s", reference.source.value, reference.namespace, reference.name, error)
        return GroupFacts()
    return facts_of(reference.source, document)


def facts_of(source: Source, document: Mapping[str, Any]) -> GroupFacts:
    """Facts of a group object as the API gives it."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    return GroupFacts(
        uid=metadata.get("uid", ""),
        roles=_roles(source, spec),
        queue=spec.get("queue") or "",
        priority_class=spec.get("priorityClassName") or "",
        created_s=parse_time(metadata.get("creationTimestamp")),
        annotations={**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})},
    )


def _roles(source: Source, spec: Mapping[str, Any]) -> dict[str, int]:
    """Pods by role. A batch Job runs `parallelism` pods side by side, but never more than are left to complete.

    Empty where it says no size: a Job that is scaled to none and still has pods does not make each a gang of one.
    """
    if source is Source.BATCH_JOB:
        if spec.get("parallelism") == 0:
            return {}
        parallelism = _count(spec.get("parallelism")) or 1
        completions = _count(spec.get("completions")) or parallelism
        return {DEFAULT_ROLE: min(parallelism, completions)}
    total = _count(spec.get("minMember"))
    by_task = {role: count for role, text in (spec.get("minTaskMember") or {}).items() if (count := _count(text))}
    if by_task and sum(by_task.values()) >= total:
        return by_task
    return {DEFAULT_ROLE: total} if total else {}


def _count(number: Any) -> int:
    """A number of pods; 0 for what is none. A PodGroup's schema may be another release's, or not be checked at all."""
    try:
        return min(max(0, int(number or 0)), MOST_COUNT)
    except (TypeError, ValueError, OverflowError):
        return 0
