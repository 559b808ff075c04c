"""Stand-ins for the pods of a PodGroup that has none yet: its vcjob's templates, or its total demand in parts. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from placewise_kubernetes.gang.spec import PARAMETER_SERVER_ROLES, GangRef, GangRules, GroupFacts, group_settings
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import parse_quantity


def stand_ins(reference: GangRef, facts: GroupFacts, rules: GangRules) -> dict[str, Pod]:
    """One pod per role, with the PodGroup's settings of its job. Raises ValueError: a demand cannot be read."""
    settings = group_settings(facts.annotations)
    if not facts.templates:
        return _parts(reference, facts, settings, rules)
    return {
        role: dataclasses.replace(pod, created_s=facts.created_s, annotations={**settings, **pod.annotations})
        for role, pod in facts.templates.items()
    }


def _parts(reference: GangRef, facts: GroupFacts, settings: Mapping[str, str], rules: GangRules) -> dict[str, Pod]:
    """Cut from the group's total demand.

    GPUs go to the roles that are no parameter servers, the rest in equal parts: the total does not name its parts.
    Whole GPUs are asked for, since a pod cannot hold part of one.
    """
    roles = facts.roles
    computing = [role for role in roles if role.lower() not in PARAMETER_SERVER_ROLES] or list(roles)
    total = sum(roles.values())
    computing_total = sum(roles[role] for role in computing)
    shares: dict[str, dict[str, float]] = {role: {} for role in roles}
    for name, amount in minimum_requests(facts.min_resources).items():
        is_gpu = name in rules.gpu_resources
        for role in computing if is_gpu else roles:
            part = amount / (computing_total if is_gpu else total)
            shares[role][name] = math.ceil(part - 1e-9) if is_gpu else part
    return {role: _template(reference, facts, role, settings, shares[role]) for role in roles}


def minimum_requests(minimum: Mapping[str, Any]) -> dict[str, float]:
    """minResources may name requests ("requests.cpu"), limits, counts; only the requests matter.

    Raises:
        ValueError: a request is no quantity.
    """
    bare = {name: amount for name, amount in minimum.items() if not name.startswith(("requests.", "limits.", "count/"))}
    prefixed = {
        name.removeprefix("requests."): amount for name, amount in minimum.items() if name.startswith("requests.")
    }
    return {name: parse_quantity(amount) for name, amount in {**prefixed, **bare}.items()}


def _template(
    reference: GangRef, facts: GroupFacts, role: str, settings: Mapping[str, str], requests: Mapping[str, float]
) -> Pod:
    return Pod(
        namespace=reference.namespace,
        name=f"{reference.name}-{role}",
        uid="",
        scheduler="volcano",
        created_s=facts.created_s,
        annotations={names.ROLE: role, **settings},
        requests=requests,
    )
