"""Volcano's extender protocol: jobEnqueueable (AdmitOrWait) and prioritize (Place). Answers from memory.

The payloads are Volcano's own Go structures as JSON, which change with every minor release, and anybody who reaches the
port may make one up. So only names are taken from them: groups and pods are read from the API server.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise_client.adapter.native import Stage
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.spec import (
    DEFAULT_ROLE,
    PARAMETER_SERVER_ROLES,
    GangRef,
    GangRules,
    GroupFacts,
    Manage,
    Source,
)
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.client import KubeUnreachableError
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import parse_quantity

log = logging.getLogger(__name__)

PERMIT, ABSTAIN, REJECT = 1, 0, -1
# Scores of Volcano's own plugins are up to 100 × their weight: a decision has to stand above their sum.
DECIDED_SCORE = 100_000.0
# How far Volcano's own watch of pods may be ahead of ours.
WATCH_LEAD_S = 0.02


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
        reference = GangRef(Source.VOLCANO, str(info["Namespace"]), str(info["Name"]))
        try:
            gang = self._known(reference) or await self._opened(reference)
        except KubeUnreachableError as error:
            log.warning("group %r/%r: %s", reference.namespace, reference.name, error)
            return {"status": REJECT}  # it asks again in a second
        if gang is None or not self._has_say(gang.facts or GroupFacts()):
            return {"status": ABSTAIN}
        gang.asked_at_s = self.clock()
        await self.host.wait_settled(gang, self.enqueue_budget_s)
        if gang.stage is Stage.RELEASED:
            return {"status": ABSTAIN}
        return {"status": PERMIT if gang.plan is not None or gang.stage is Stage.RUNNING else REJECT}

    async def prioritize(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A score for the decided node that outweighs all plugins; no score if nothing was decided."""
        uid = str(arguments["task"]["UID"])
        offered = {str(node.get("Name", "")) for node in arguments.get("nodes") or ()}
        gang = self.host.pods.book.gang_of(uid)
        if gang is None and self.host.pods.book.find(_reference(arguments["task"]["Job"])) is not None:
            gang = await self.host.pods.wait_shown(uid, WATCH_LEAD_S)
        # An object is always expected: null counts as an error.
        scores: dict[str, float] = {}
        if gang is not None and gang.plan is not None:
            task = gang.task_of(gang.pods[uid])
            if task is not None and task.node in offered:
                scores[task.node] = DECIDED_SCORE
        return {"nodeScore": scores, "errorMessage": ""}

    def _known(self, reference: GangRef) -> Gang | None:
        """The gang of a PodGroup that was asked about before, or has pods."""
        gang = self.host.pods.book.find(reference)
        if gang is None or gang.stage is Stage.ENDED or not (gang.templates or gang.pods):
            return None
        return gang

    async def _opened(self, reference: GangRef) -> Gang | None:
        """The gang of a PodGroup that has no pods yet, made from its minimal resources; None if it is not ours.

        Raises:
            KubeUnreachableError: the API server did not say in time whether there is such a group.
        """
        facts = await self.host.groups.find(reference)
        if facts is None:
            self.host.refused.labels("unknown_group").inc()
            return None
        if not self._has_say(facts):
            return None
        facts = dataclasses.replace(facts, roles=facts.roles or {DEFAULT_ROLE: 1})
        templates = _templates(reference, facts, self.host.rules)
        gang = self.host.pods.book.open(reference, facts.uid)
        if not (gang.templates or gang.pods):  # another call, or the pods, may have been quicker
            gang.facts, gang.templates = facts, templates
            self.host.pods.book.touch(gang)
            self.host.poke()
        return gang

    def _has_say(self, facts: GroupFacts) -> bool:
        if self.host.rules.manage is Manage.LABELLED and names.JOB not in facts.annotations:
            return False
        return facts.annotations.get(names.IGNORE, "").lower() != "true"


def _reference(job_id: str) -> GangRef:
    namespace, _, name = str(job_id).partition("/")
    return GangRef(Source.VOLCANO, namespace, name)


def _templates(reference: GangRef, facts: GroupFacts, rules: GangRules) -> dict[str, Pod]:
    """One stand-in pod per role, cut from the group's total demand.

    GPUs go to the roles that are no parameter servers, the rest in equal parts: the total does not name its parts.
    Whole GPUs are asked for, since a pod cannot hold part of one.
    """
    roles = facts.roles
    computing = [role for role in roles if role.lower() not in PARAMETER_SERVER_ROLES] or list(roles)
    total = sum(roles.values())
    computing_total = sum(roles[role] for role in computing)
    shares: dict[str, dict[str, float]] = {role: {} for role in roles}
    for name, quantity in _requests(facts.min_resources).items():
        amount = parse_quantity(quantity)
        is_gpu = name in rules.gpu_resources
        for role in computing if is_gpu else roles:
            part = amount / (computing_total if is_gpu else total)
            shares[role][name] = math.ceil(part - 1e-9) if is_gpu else part
    return {role: _template(reference, facts, role, shares[role]) for role in roles}


def _requests(minimum: Mapping[str, Any]) -> dict[str, Any]:
    """minResources may name requests ("requests.cpu"), limits, counts; only the requests matter."""
    bare = {name: amount for name, amount in minimum.items() if not name.startswith(("requests.", "limits.", "count/"))}
    prefixed = {
        name.removeprefix("requests."): amount for name, amount in minimum.items() if name.startswith("requests.")
    }
    return {**prefixed, **bare}


def _template(reference: GangRef, facts: GroupFacts, role: str, requests: Mapping[str, float]) -> Pod:
    return Pod(
        namespace=reference.namespace,
        name=f"{reference.name}-{role}",
        uid="",
        scheduler="volcano",
        created_s=facts.created_s,
        annotations={names.ROLE: role, **_settings(facts.annotations.items())},
        requests=requests,
    )


def _settings(annotations: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The PodGroup's settings of its job, other than role and size."""
    skipped = (names.ROLE, names.GANG)
    return {name: value for name, value in annotations if name.startswith(names.DOMAIN) and name not in skipped}
