"""Volcano's extender protocol: jobEnqueueable (AdmitOrWait) and prioritize (Place). Answers from memory.

The payloads are Volcano's own Go structures as JSON: they change with every minor release, so only the few fields
needed are read and everything else is accepted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise_kubernetes import names
from placewise_kubernetes.gang import (
    DEFAULT_ROLE,
    PARAMETER_SERVER_ROLES,
    GangRef,
    GangRules,
    GroupFacts,
    Manage,
    Source,
)
from placewise_kubernetes.gangs import Gang
from placewise_kubernetes.groups import facts_of
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.objects import Pod, parse_pod
from placewise_kubernetes.quantity import parse_quantity

log = logging.getLogger(__name__)

PERMIT, ABSTAIN, REJECT = 1, 0, -1
# Scores of Volcano's own plugins are up to 100 × their weight: a decision has to stand above their sum.
DECIDED_SCORE = 100_000.0
MILLI = 1000.0
_METADATA = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp")


@dataclass(frozen=True, slots=True)
class VolcanoExtender:
    """Answers Volcano's calls; each method takes and gives decoded JSON."""

    host: KubernetesHost
    enqueue_budget_s: float
    clock: Callable[[], float] = time.monotonic

    async def job_enqueueable(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """1 once the gang is admitted and its place reserved, -1 while it waits, 0 where Placewise has no say.

        Raises:
            ValueError, KeyError: the job cannot be read.
        """
        info = arguments["job"]
        gang = self._gang(info)
        if gang is None:
            return {"status": ABSTAIN}
        await self.host.settled(gang, self.enqueue_budget_s)
        if gang.is_released:
            return {"status": ABSTAIN}
        return {"status": PERMIT if gang.plan is not None or gang.has_started else REJECT}

    async def prioritize(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A score for the decided node that no other plugin's can outweigh; nothing where nothing was decided."""
        pod = _pod_of(arguments["task"])
        offered = {str(node.get("Name", "")) for node in arguments.get("nodes") or ()}
        gang = self.host.pods.book.gang_of(pod.uid) or self.host.pods.book.find(_reference(arguments["task"]["Job"]))
        # An object is expected even where there is nothing to say: null counts as an error.
        scores: dict[str, float] = {}
        if gang is not None and gang.plan is not None and not gang.is_released:
            self.host.pods.book.put_into(gang, pod)
            task = gang.task_of(pod)
            if task is not None and task.node in offered:
                scores[task.node] = DECIDED_SCORE
        return {"nodeScore": scores, "errorMessage": ""}

    def _gang(self, info: Mapping[str, Any]) -> Gang | None:
        """The gang of a PodGroup; made from its minimal resources where it has no pods yet."""
        group = info.get("PodGroup") or {}
        facts = facts_of(Source.VOLCANO, _fields(group))
        if self.host.rules.manage is Manage.LABELLED and names.JOB not in facts.annotations:
            return None
        if facts.annotations.get(names.IGNORE, "").lower() == "true":
            return None
        reference = GangRef(Source.VOLCANO, str(info["Namespace"]), str(info["Name"]))
        is_new = self.host.pods.book.find(reference) is None
        uid = facts.uid or str(info.get("PgUID") or info.get("UID") or reference.name)
        gang = self.host.pods.book.open(reference, uid)
        gang.asked_at_s = self.clock()
        if is_new or not (gang.templates or gang.pods):
            self._fill(gang, info, facts)
        return gang

    def _fill(self, gang: Gang, info: Mapping[str, Any], facts: GroupFacts) -> None:
        spec = _fields(info.get("PodGroup") or {}).get("spec") or {}
        roles = dict(facts.roles) or {DEFAULT_ROLE: max(1, int(info.get("MinAvailable") or 1))}
        gang.facts = GroupFacts(facts.uid, roles, facts.queue, facts.priority_class, facts.created_s, facts.annotations)
        gang.templates = _templates(gang, roles, spec.get("minResources") or {}, self.host.rules)
        for task in (info.get("Tasks") or {}).values():
            gang.templates[_role(task)] = _pod_of(task)
        self.host.pods.book.touch(gang)
        self.host.poke()


def _fields(group: Mapping[str, Any]) -> dict[str, Any]:
    """A PodGroup's metadata, spec and status, however the release spells the keys.

    Volcano sends its internal type, which for long had no names for JSON: then the fields of the metadata stand beside
    `Spec`, and those of the spec are called as in Go (`MinMember`).
    """
    lowered = _lowered(group)
    inner = lowered.get("podGroup")
    if isinstance(inner, Mapping):
        return _fields(inner)
    lowered.setdefault("metadata", {key: lowered[key] for key in _METADATA if key in lowered})
    lowered["spec"] = _lowered(lowered.get("spec") or {})
    return lowered


def _lowered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Go's names of fields as the API spells them; what is in a field stays: names of roles and resources are names."""
    return {key[:1].lower() + key[1:]: value for key, value in fields.items()}


def _reference(job_id: str) -> GangRef:
    namespace, _, name = str(job_id).partition("/")
    return GangRef(Source.VOLCANO, namespace, name)


def _role(task: Mapping[str, Any]) -> str:
    return str(task.get("TaskRole") or DEFAULT_ROLE)


def _pod_of(task: Mapping[str, Any]) -> Pod:
    """The pod of a TaskInfo; from its own copy of the pod where it carries one, else from the task's fields."""
    document = task.get("Pod")
    if isinstance(document, Mapping) and document.get("spec") and document.get("metadata", {}).get("uid"):
        return parse_pod(document)
    _, _, group = str(task.get("Job", "")).partition("/")
    return Pod(
        namespace=str(task.get("Namespace") or "default"),
        name=str(task.get("Name") or task["UID"]),
        uid=str(task["UID"]),
        scheduler="volcano",
        annotations={names.VOLCANO_GROUP: group, names.ROLE: _role(task)},
        requests=amounts_of(task.get("Resreq") or task.get("InitResreq") or {}),
    )


def amounts_of(resource: Mapping[str, Any]) -> dict[str, float]:
    """A Volcano Resource in base units: CPU and every scalar are in thousandths, memory is bytes."""
    amounts = {"cpu": float(resource.get("MilliCPU") or 0) / MILLI, "memory": float(resource.get("Memory") or 0)}
    for name, milli in (resource.get("ScalarResources") or {}).items():
        amounts[name] = float(milli) / MILLI
    return amounts


def _templates(gang: Gang, roles: Mapping[str, int], minimum: Mapping[str, Any], rules: GangRules) -> dict[str, Pod]:
    """One stand-in pod per role, from what the group needs in sum.

    The sum does not say who needs what: GPUs go to the roles that are no parameter servers, the rest in equal parts.
    Whole GPUs are asked for, since a pod cannot hold part of one.
    """
    computing = [role for role in roles if role.lower() not in PARAMETER_SERVER_ROLES] or list(roles)
    total = sum(roles.values())
    computing_total = sum(roles[role] for role in computing)
    shares: dict[str, dict[str, float]] = {role: {} for role in roles}
    for name, quantity in _requests(minimum).items():
        amount = parse_quantity(quantity)
        is_gpu = name in rules.gpu_resources
        for role in computing if is_gpu else roles:
            part = amount / (computing_total if is_gpu else total)
            shares[role][name] = math.ceil(part - 1e-9) if is_gpu else part
    return {role: _template(gang, role, shares[role]) for role in roles}


def _requests(minimum: Mapping[str, Any]) -> dict[str, Any]:
    """minResources may name requests ("requests.cpu"), limits, counts; only what a pod requests matters."""
    plain = {
        name: amount for name, amount in minimum.items() if not name.startswith(("requests.", "limits.", "count/"))
    }
    prefixed = {
        name.removeprefix("requests."): amount for name, amount in minimum.items() if name.startswith("requests.")
    }
    return {**prefixed, **plain}


def _template(gang: Gang, role: str, requests: Mapping[str, float]) -> Pod:
    facts = gang.facts or GroupFacts()
    return Pod(
        namespace=gang.ref.namespace,
        name=f"{gang.ref.name}-{role}",
        uid="",
        scheduler="volcano",
        created_s=facts.created_s,
        annotations={names.ROLE: role, **_settings(facts.annotations.items())},
        requests=requests,
    )


def _settings(annotations: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What the PodGroup says about its job, other than its role and size."""
    skipped = (names.ROLE, names.GANG)
    return {name: value for name, value in annotations if name.startswith(names.DOMAIN) and name not in skipped}
