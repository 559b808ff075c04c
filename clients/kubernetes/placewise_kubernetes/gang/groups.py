"""Reads the object behind a gang (PodGroup, batch Job) for its size. Never writes; a group it may not read is empty."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from placewise_kubernetes.gang.owners import OBJECTS
from placewise_kubernetes.gang.spec import POD_GROUPS, GangRef, GroupFacts, Source
from placewise_kubernetes.gang.vcjobs import count_of, first_pods, read_tasks
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.objects import Pod, controller_of, parse_pod, parse_time, template_pod
from placewise_kubernetes.kube.paths import BadNameError, object_path
from placewise_kubernetes.kube.topology import read_topology

log = logging.getLogger(__name__)

_KINDS = {
    Source.NATIVE: ("/apis/scheduling.k8s.io/v1beta1", "podgroups"),
    Source.POD_GROUP: ("/apis/scheduling.x-k8s.io/v1alpha1", "podgroups"),
    Source.VOLCANO: ("/apis/scheduling.volcano.sh/v1beta1", "podgroups"),
    Source.BATCH_JOB: ("/apis/batch/v1", "jobs"),
    Source.VOLCANO_JOB: ("/apis/batch.volcano.sh/v1alpha1", "jobs"),
}
# Collections of other projects' definitions, or behind a feature gate, which a cluster may have or not.
WATCHED_PATHS: dict[Source, str] = {source: "/".join(_KINDS[source]) for source in (*POD_GROUPS, Source.VOLCANO_JOB)}
# Volcano waits for an answer, and asks about one group after the other.
_LOOKUP_LIMIT_S = 0.1
_MOST_LOOKUPS = 32


async def read_group(
    client: KubeClient, reference: GangRef, read: Callable[[Mapping[str, Any]], Pod] = parse_pod
) -> GroupFacts | None:
    """The facts of the group object; None if it does not exist or must not be read. `read`: of a pod's template.

    Raises:
        KubeUnreachableError: the API did not answer.
    """
    owner = OBJECTS.get(reference.kind)
    root, kind = (owner.root, owner.plural) if owner is not None else _KINDS[reference.source]
    try:
        document = await client.get(object_path(root, reference.namespace, kind, reference.name))
    except (KubeError, BadNameError) as error:
        log.warning("%s %r/%r: %s", reference.source.value, reference.namespace, reference.name, error)
        return None
    if owner is not None:
        return facts_of_owner(document, reference.kind, read)
    return facts_of(reference.source, document)


class GroupLookup:
    """Reads groups that a caller names: a few at once, and none for longer than the caller waits."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._under_way = 0

    async def find(self, reference: GangRef) -> GroupFacts | None:
        """The facts of the group object; None if it does not exist or must not be read.

        Raises:
            KubeUnreachableError: the API did not answer in time, or too many groups are being looked up.
        """
        if self._under_way >= _MOST_LOOKUPS:
            raise KubeUnreachableError("too many groups are being looked up")
        self._under_way += 1
        try:
            async with asyncio.timeout(_LOOKUP_LIMIT_S):
                return await read_group(self._client, reference)
        except TimeoutError as error:
            raise KubeUnreachableError("the group was not read in time") from error
        finally:
            self._under_way -= 1


def group_object(reference: GangRef, facts: GroupFacts) -> dict[str, str]:
    """A PodGroup as an event names it."""
    root = _KINDS[reference.source][0].removeprefix("/apis/")
    of = {"namespace": reference.namespace, "name": reference.name, "uid": facts.uid}
    return {"apiVersion": root, "kind": "PodGroup", **of}


def facts_of_owner(
    document: Mapping[str, Any], kind: str, read: Callable[[Mapping[str, Any]], Pod] = parse_pod
) -> GroupFacts:
    """Facts of a controller's object. Without a size if it is not of the shape that we know, but another release's."""
    facts = GroupFacts()
    try:
        facts = facts_of(Source.OWNER, document)
        shape = OBJECTS[kind].shape(document.get("spec") or {})
        roles = {role: count for role, number in shape.roles.items() if (count := count_of(number))}
        later = {role: template for role, template in shape.templates.items() if shape.is_in_order and role in roles}
        templates = {role: _of_role(role, template_pod(document["metadata"], later[role], read)) for role in later}
    except (KeyError, TypeError, ValueError, AttributeError):
        log.warning("the size of a gang cannot be read from its %s", kind)
        return facts
    return dataclasses.replace(facts, roles=roles, templates=templates, is_in_order=shape.is_in_order)


def _of_role(role: str, pod: Pod) -> Pod:
    return dataclasses.replace(pod, annotations={names.ROLE: role, **pod.annotations})


def facts_of(source: Source, document: Mapping[str, Any]) -> GroupFacts:
    """Facts of a group object as the API gives it."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    roles, templates = read_tasks(document) if source is Source.VOLCANO_JOB else ({}, {})
    roles = roles or _roles(source, spec)
    return GroupFacts(
        uid=metadata.get("uid", ""),
        roles=roles,
        queue=spec.get("queue") or "",
        priority_class=spec.get("priorityClassName") or "",
        created_s=parse_time(metadata.get("creationTimestamp")),
        annotations={**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})},
        min_resources=spec.get("minResources") or {},
        owner=controller_of(metadata),
        templates=templates,
        topology=read_topology(spec) if source is Source.VOLCANO else None,
        is_basic=source is Source.NATIVE and not roles,
        is_admitted=(document.get("status") or {}).get("phase") == "Inqueue",
    )


def _roles(source: Source, spec: Mapping[str, Any]) -> dict[str, int]:
    """Pods by role. A batch Job runs `parallelism` pods side by side, but never more than are left to complete.

    Empty without a size: a Job that is scaled to none and still has pods does not make each a gang of one.
    """
    if source is Source.BATCH_JOB:
        if spec.get("parallelism") == 0:
            return {}
        parallelism = count_of(spec.get("parallelism")) or 1
        completions = count_of(spec.get("completions")) or parallelism
        return {names.DEFAULT_ROLE: min(parallelism, completions)}
    if source is Source.NATIVE:
        gang = (spec.get("schedulingPolicy") or {}).get("gang") or {}
        return {names.DEFAULT_ROLE: count} if (count := count_of(gang.get("minCount"))) else {}
    total = count_of(spec.get("minMember"))
    by_task = {role: count for role, text in (spec.get("minTaskMember") or {}).items() if (count := count_of(text))}
    if by_task and sum(by_task.values()) >= total:
        return first_pods(total, by_task)
    return {names.DEFAULT_ROLE: total} if total else {}
